"""`manage.py fleet ...`: deployments, workers, nodes."""

from controlplane.commands import NounCommand


class Command(NounCommand):
    help = __doc__ or ""
    verbs_package = "controlplane.fleet.management.fleet_verbs"
