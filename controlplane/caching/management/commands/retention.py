"""`manage.py retention ...`: how long prefixes live, by class; versions of the policy; pins."""

from controlplane.commands import NounCommand


class Command(NounCommand):
    help = __doc__ or ""
    verbs_package = "controlplane.caching.management.retention_verbs"
