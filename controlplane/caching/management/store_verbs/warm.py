"""Send the prompts of a file through prefill, so that their prefixes are stored before somebody needs them.

A line is a prompt: plain text, `{"prompt": "..."}` or `{"messages": [...]}`. Interrupt it at any time: what was warmed
stays.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path

from django.core.management.base import OutputWrapper

from controlplane.accounts.permissions import SYSTEM
from controlplane.caching import services
from controlplane.caching.management.store_verbs._errors import explained
from controlplane.caching.models import WarmJob, WarmState
from controlplane.caching.prompts import parse
from controlplane.commands import CommandFailure


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("file", type=Path)
    parser.add_argument("--model", required=True, help="as clients name it")
    parser.add_argument("--tenant", default="default", help="whose prefixes these are (default: default)")
    parser.add_argument("--class", dest="retention_class", default="chat", help="retention class (default: chat)")
    parser.add_argument("--pin", default="", metavar="NAME", help="keep the prefixes until the pin is removed")
    parser.add_argument("--background", action="store_true", help="let the control queue do it, and return")


def run(options: Namespace, out: OutputWrapper) -> None:
    with explained():
        job = services.warm_create(
            actor=SYSTEM,
            model=options.model,
            tenant=options.tenant,
            retention_class=options.retention_class,
            prompts=parse(options.file.read_bytes()),
            pin=options.pin,
            reason="manage.py store warm",
            start=options.background,
        )
    if options.background:
        out.write(f"job {job.pk} with {job.total} prompts is queued; the cache page shows its progress")
        return

    def progress(now: WarmJob) -> None:
        out.write(
            f"{now.done + now.failed}/{now.total}  {now.prompt_tokens} prompt tokens, {now.hit_tokens} of them hit"
        )

    try:
        job = _follow(job.pk, progress)
    except KeyboardInterrupt:
        job = services.warm_cancel(actor=SYSTEM, job=job.pk, reason="interrupted")
    if job.state != WarmState.DONE:
        raise CommandFailure(f"job {job.pk} is {job.state}: {job.note}")
    out.write(f"{job.done} of {job.total} prompts warmed" + (f"; {job.note}" if job.note else ""))


def _follow(job: int, progress: services.Progress) -> WarmJob:
    while True:
        claimed = services.warm_claim(job=job)
        if claimed is None:
            raise CommandFailure(f"job {job} was taken over by the control queue; see the cache page")
        advanced = services.warm_advance(claimed, progress=progress)
        if advanced.ended:
            return advanced
