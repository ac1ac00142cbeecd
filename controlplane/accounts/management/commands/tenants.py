"""`manage.py tenants ...`: tenants and their limits."""

from controlplane.commands import NounCommand


class Command(NounCommand):
    help = __doc__ or ""
    verbs_package = "controlplane.accounts.management.tenants_verbs"
