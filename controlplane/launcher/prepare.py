"""What needs Django before the processes start: `python -m controlplane.launcher.prepare STEP...`, in one process.

Each step is idempotent and prints lines of progress. Run by the launcher, which shows them.
"""

from __future__ import annotations

import hashlib
import json
import os
import socket
import sys
from collections.abc import Callable
from pathlib import Path

import django

from controlplane.launcher.files import write_private


def migrate() -> None:
    """Bring the tables up to date."""
    from django.core.management import call_command

    call_command("migrate", interactive=False, verbosity=1)


def static() -> None:
    """Collect, hash and compress the static files, when they changed."""
    from django.conf import settings
    from django.contrib.staticfiles.finders import get_finders
    from django.core.management import call_command

    digest = hashlib.sha256(django.__version__.encode())
    for finder in get_finders():
        for name, storage in finder.list([]):
            digest.update(f"{name}\0{storage.size(name)}\0{storage.get_modified_time(name).timestamp()}\0".encode())
    stamp = Path(settings.STATIC_ROOT) / ".made-from"
    if stamp.exists() and stamp.read_text() == digest.hexdigest():
        return
    call_command("collectstatic", interactive=False, clear=True, verbosity=0)
    stamp.write_text(digest.hexdigest())


def accounts() -> None:
    """The first administrator and API key; `first-run.json` is written before the transaction commits."""
    from django.db import transaction

    from controlplane.accounts.services import bootstrap
    from controlplane.config import home, settings
    from controlplane.launcher.readiness import Readiness

    with transaction.atomic():
        secrets = bootstrap()
        if secrets is None:
            return
        content = {
            "url": Readiness(settings().host, settings().port).url,
            "admin_user": secrets.admin_user,
            "admin_password": secrets.admin_password,
            "api_key": secrets.api_key,
        }
        write_private(home().first_run, json.dumps(content, indent=2) + "\n")


def deploy() -> None:
    """Let this node's agent run workers again; on the first run, deploy the default model."""
    from controlplane.accounts.permissions import SYSTEM
    from controlplane.config import home, settings
    from controlplane.fleet import selectors, services
    from controlplane.launcher.programs import DEPLOYMENT, MODEL
    from workers.spec import EngineSettings

    services.node_seen(name=settings().node, hostname=socket.gethostname(), cores=os.cpu_count() or 1)
    services.node_resume(actor=SYSTEM, node=settings().node, reason="make up")
    marker = home().state / "first-deployment"
    # Also without the marker there may be some: a run that was cut short here, or a database older than the folder.
    if not marker.exists() and not selectors.deployments().exists():
        services.deployment_create(
            actor=SYSTEM,
            name=DEPLOYMENT,
            model=MODEL,
            prefill_replicas=1,
            decode_replicas=1,
            engine=EngineSettings(),
            aliases=(MODEL,),
            reason="first run",
        )
    marker.touch()
    services.reconcile()


def stop_node() -> None:
    """Ask this node's agent to stop every worker, until `deploy` lets it run them again."""
    from controlplane.accounts.permissions import SYSTEM
    from controlplane.config import settings
    from controlplane.fleet import services

    services.node_stop_all(actor=SYSTEM, node=settings().node, reason="make down")


STEPS: dict[str, Callable[[], None]] = {
    "migrate": migrate,
    "static": static,
    "accounts": accounts,
    "deploy": deploy,
    "stop-node": stop_node,
}


def main(names: list[str]) -> None:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "controlplane.settings")
    django.setup()
    for name in names:
        print(f"step {name}", flush=True)
        STEPS[name]()


if __name__ == "__main__":
    main(sys.argv[1:])
