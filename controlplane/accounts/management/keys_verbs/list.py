"""List API keys by prefix, never the keys themselves."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from django.core.management.base import OutputWrapper

from controlplane.accounts import selectors


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--tenant", help="slug of one tenant")


def run(options: Namespace, out: OutputWrapper) -> None:
    line = "{:<12} {:<12} {:<8} {:<28} {:<20} {}"
    out.write(line.format("KEY", "TENANT", "STATE", "SCOPES", "LAST USED (UTC)", "NAME"))
    for key in selectors.api_keys(tenant=options.tenant):
        used = f"{key.last_used_at:%Y-%m-%d %H:%M:%S}" if key.last_used_at else "never"
        out.write(line.format(str(key), key.tenant.slug, key.state, ",".join(key.scopes), used, key.name))
