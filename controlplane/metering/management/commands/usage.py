"""`manage.py usage ...`: the ledger."""

from controlplane.commands import NounCommand


class Command(NounCommand):
    help = __doc__ or ""
    verbs_package = "controlplane.metering.management.usage_verbs"
