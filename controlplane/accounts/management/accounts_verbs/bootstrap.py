"""First run: tenant, administrator and API key. Prints JSON with the secrets once; `{}` where there are users."""

from __future__ import annotations

import json
from argparse import ArgumentParser, Namespace
from dataclasses import asdict

from django.core.management.base import OutputWrapper

from controlplane.accounts import services


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--user", default="admin", help="name of the administrator (default: admin)")


def run(options: Namespace, out: OutputWrapper) -> None:
    first = services.bootstrap(admin_username=options.user)
    out.write(json.dumps(asdict(first) if first is not None else {}))
