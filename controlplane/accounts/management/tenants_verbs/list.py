"""List tenants with their limits."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from django.core.management.base import OutputWrapper

from controlplane.accounts import selectors
from controlplane.accounts.limit_options import describe


def add_arguments(parser: ArgumentParser) -> None:
    pass


def run(options: Namespace, out: OutputWrapper) -> None:
    for tenant in selectors.tenants():
        out.write(f"{tenant.slug}\t{tenant.name}\t{describe(tenant.limits)}")
