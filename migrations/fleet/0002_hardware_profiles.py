"""Hardware profiles to start from. Prices are list prices to be replaced by what an installation really pays."""

from django.db import migrations

GB = 10**9
PROFILES = [
    # name, card, device, cards per node, cards per domain, memory, bandwidth, micro-dollars per card-hour
    ("generic-cpu", "The host's processors", "cpu", 1, 1, 0, 0, 50_000),
    ("h800-8", "NVIDIA H800 80 GB", "cuda", 8, 8, 80 * GB, 3_350 * GB, 2_000_000),
    ("h200-8", "NVIDIA H200 141 GB", "cuda", 8, 8, 141 * GB, 4_800 * GB, 3_500_000),
    ("b200-8", "NVIDIA B200 180 GB", "cuda", 8, 8, 180 * GB, 8_000 * GB, 5_000_000),
    ("gb200-72", "NVIDIA GB200 NVL72", "cuda", 4, 72, 186 * GB, 8_000 * GB, 5_500_000),
    ("ascend950-64", "Huawei Ascend 950, supernode of 64", "npu", 8, 64, 144 * GB, 4_000 * GB, 3_000_000),
]


def forward(apps, schema_editor):
    profile = apps.get_model("fleet", "HardwareProfile")
    for name, card, device, per_node, per_domain, memory, bandwidth, price in PROFILES:
        profile.objects.create(
            name=name,
            card=card,
            device=device,
            cards_per_node=per_node,
            cards_per_domain=per_domain,
            memory_bytes=memory,
            bandwidth=bandwidth,
            price_micro_usd_per_card_hour=price,
        )


class Migration(migrations.Migration):
    dependencies = [("fleet", "0001_initial")]
    operations = [migrations.RunPython(forward, migrations.RunPython.noop)]
