"""Remove a model from the store. Refused while a deployment uses it."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import OutputWrapper
from django.db import DatabaseError

from controlplane.commands import CommandFailure
from workers.home import Home
from workers.models.store import ModelStore, StoreError


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("name")
    parser.add_argument("--force", action="store_true", help="remove it although deployments cannot be checked")


def run(options: Namespace, out: OutputWrapper) -> None:
    store = ModelStore(Home.from_env().models)
    try:
        if not store.folder(options.name).is_dir():
            raise CommandFailure(f"{options.name} is not in the model store; `manage.py models list` shows what is")
        _refuse_if_used(options.name, force=options.force)
        store.remove(options.name)
    except StoreError as error:
        raise CommandFailure(str(error)) from error
    out.write(f"{options.name} removed.")


def _refuse_if_used(name: str, *, force: bool) -> None:
    # Imported here: the other verbs of this noun work without a database.
    from controlplane.fleet import selectors

    try:
        users = [deployment.name for deployment in selectors.deployments() if deployment.model_name == name]
    except (DatabaseError, ImproperlyConfigured) as error:
        if force:
            return
        raise CommandFailure(
            f"the database cannot be asked whether a deployment uses {name} ({str(error).strip().splitlines()[0]}); "
            "start Galley, or give --force"
        ) from error
    if users:
        raise CommandFailure(f"{name} is used by {', '.join(users)}; delete or change the deployment first")
