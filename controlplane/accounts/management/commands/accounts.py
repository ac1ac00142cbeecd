"""`manage.py accounts ...`: users and the first run."""

from controlplane.commands import NounCommand


class Command(NounCommand):
    help = __doc__ or ""
    verbs_package = "controlplane.accounts.management.accounts_verbs"
