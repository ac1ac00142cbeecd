from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("metering", "0003_ledger"),
    ]

    operations = [
        migrations.RemoveIndex(model_name="ledgerentry", name="metering_ledger_time"),
        migrations.RemoveIndex(model_name="ledgerentry", name="metering_ledger_tenant"),
        migrations.AddIndex(
            model_name="ledgerentry",
            index=models.Index(fields=["admitted_at", "id"], name="metering_ledger_time"),
        ),
        migrations.AddIndex(
            model_name="ledgerentry",
            index=models.Index(fields=["tenant", "admitted_at", "id"], name="metering_ledger_tenant"),
        ),
        migrations.AddIndex(
            model_name="usagebucket",
            index=models.Index(fields=["root_key", "start"], name="metering_bucket_key"),
        ),
    ]
