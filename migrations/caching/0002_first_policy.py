"""The policy that an installation starts with: agent traffic 72 hours, chat 168 hours."""

from django.db import migrations

HOUR_S = 3600.0
BODY = {
    "version": 1,
    "classes": [
        {
            "name": name,
            "ttl_s": hours * HOUR_S,
            "byte_budget": None,
            "sidecars": {"keep": "unit_end", "ttl_s": None},
            "priority": 0,
        }
        for name, hours in (("agent", 72), ("chat", 168))
    ],
    "fallback": "chat",
    "total_bytes": None,
    "low_watermark": 0.95,
    "rules": [{"retention_class": "agent", "key_id": None, "header": None, "tools": True}],
    "pins": [],
}


def forward(apps, schema_editor):
    apps.get_model("caching", "PolicyVersion").objects.create(
        number=1, body=BODY, created_by="galley", reason="what an installation starts with"
    )


class Migration(migrations.Migration):
    dependencies = [("caching", "0001_initial")]
    operations = [migrations.RunPython(forward, migrations.RunPython.noop)]
