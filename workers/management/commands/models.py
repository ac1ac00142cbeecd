"""`manage.py models ...`: the model store, checkpoints and numerics."""

from controlplane.commands import NounCommand


class Command(NounCommand):
    help = __doc__ or ""
    verbs_package = "workers.management.models_verbs"
