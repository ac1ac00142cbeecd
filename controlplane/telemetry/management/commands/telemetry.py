"""`manage.py telemetry ...`: the telemetry process."""

from controlplane.commands import NounCommand


class Command(NounCommand):
    help = __doc__ or ""
    verbs_package = "controlplane.telemetry.management.telemetry_verbs"
