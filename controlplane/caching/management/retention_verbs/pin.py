"""Keep a prefix until the pin is removed: one that a prompt begins with, or one by its hash.

A file of messages that end with the user's is pinned whole; a system prompt alone stands for every conversation that
begins with it.
"""

from __future__ import annotations

import json
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Any

from django.core.management.base import OutputWrapper

from controlplane.accounts.permissions import SYSTEM
from controlplane.caching import services
from controlplane.caching.management.store_verbs._errors import explained
from controlplane.caching.prefixes import prefix_of
from controlplane.caching.prompts import check_messages
from controlplane.commands import CommandFailure


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("name", help="what the pin is called")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--tip", help="hash of the prefix's last block, hex")
    what.add_argument("--messages", type=Path, metavar="FILE", help="JSON list of messages")
    what.add_argument("--system", type=Path, metavar="FILE", help="text of a system prompt")
    parser.add_argument("--model", help="as clients name it; with --messages and --system")
    parser.add_argument("--tenant", default="default")
    parser.add_argument("--reason", default="manage.py retention pin")


def run(options: Namespace, out: OutputWrapper) -> None:
    with explained():
        tip = options.tip or _tip(options, out)
        row = services.pins_add(actor=SYSTEM, pins={options.name: tip}, reason=options.reason)
    out.write(f"{options.name} is pinned (version {row.number}): {tip}")


def _tip(options: Namespace, out: OutputWrapper) -> str:
    if options.model is None:
        raise CommandFailure("--model says whose tokens the prompt becomes")
    messages: Any
    if options.system is not None:
        messages = [{"role": "system", "content": options.system.read_text()}]
    else:
        try:
            messages = json.loads(options.messages.read_text())
        except json.JSONDecodeError as error:
            raise CommandFailure(f"{options.messages}: {error}") from error
    prefix = prefix_of(model=options.model, tenant=options.tenant, messages=check_messages(messages, "the file"))
    out.write(f"{prefix.tokens} tokens in {prefix.blocks} full blocks")
    return prefix.tip
