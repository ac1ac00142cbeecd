"""`manage.py <noun> <verb>`: one management command per noun; verbs are modules of a package, found by name.

A verb module has a docstring (its help), `add_arguments(parser)` and `run(options, out)`. For a user's mistake it
raises `CommandFailure("what happened; what to do about it")`, printed as one line, `error: ...`.
"""

from __future__ import annotations

import importlib
import pkgutil
import sys
from argparse import ArgumentParser, Namespace
from typing import Any, ClassVar, Protocol, cast

from django.core.management.base import BaseCommand, CommandError, CommandParser, OutputWrapper


class CommandFailure(CommandError):
    """Printed to the user without a traceback; exit status 1."""


class Verb(Protocol):
    __doc__: str

    @staticmethod
    def add_arguments(parser: ArgumentParser) -> None: ...

    @staticmethod
    def run(options: Namespace, out: OutputWrapper) -> None: ...


class NounCommand(BaseCommand):
    """Base of a noun. `verbs_package` names the package whose modules are the verbs (`_` becomes `-`)."""

    verbs_package: ClassVar[str]
    requires_system_checks: Any = ()

    def add_arguments(self, parser: CommandParser) -> None:
        subparsers = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
        package = importlib.import_module(self.verbs_package)
        for info in pkgutil.iter_modules(package.__path__):
            if info.name.startswith("_"):
                continue
            verb = cast(Verb, importlib.import_module(f"{self.verbs_package}.{info.name}"))
            text = (verb.__doc__ or "").strip()
            sub = subparsers.add_parser(
                info.name.replace("_", "-"), help=text.splitlines()[0] if text else "", description=text
            )
            verb.add_arguments(sub)
            sub.set_defaults(run_verb=verb.run)

    def execute(self, *args: Any, **options: Any) -> str | None:
        try:
            return super().execute(*args, **options)
        except CommandFailure as failure:
            if not getattr(self, "_called_from_command_line", False) or options.get("traceback"):
                raise
            self.stderr.write(f"error: {failure}")  # Django itself would print the exception's class before it
            sys.exit(failure.returncode)

    def handle(self, *args: Any, **options: Any) -> None:
        run = options.pop("run_verb")
        run(Namespace(**options), self.stdout)
