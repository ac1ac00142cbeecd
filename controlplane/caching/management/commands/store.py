"""`manage.py store ...`: what the KV store holds, whether it is sound, and its upkeep."""

from controlplane.commands import NounCommand


class Command(NounCommand):
    help = __doc__ or ""
    verbs_package = "controlplane.caching.management.store_verbs"
