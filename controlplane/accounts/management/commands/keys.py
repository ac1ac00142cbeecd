"""`manage.py keys ...`: API keys."""

from controlplane.commands import NounCommand


class Command(NounCommand):
    help = __doc__ or ""
    verbs_package = "controlplane.accounts.management.keys_verbs"
