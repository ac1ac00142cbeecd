"""What the fleet's services refuse, each with what to do about it."""

from __future__ import annotations


class FleetError(Exception):
    """Base of the refusals below; the message is for the person who asked."""


class UnknownNode(FleetError):
    """No node of that name ever registered. It is not the same as a node without work: stop nothing because of it."""


class UnknownDeployment(FleetError):
    pass


class DeploymentRefused(FleetError):
    """The specification cannot work; the message says why and what would."""
