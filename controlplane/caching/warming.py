"""Warming: prompts of a file go through the inference API with one token of output, so that their prefixes are stored.

A job advances in slices of some seconds, so that no thread of the control queue belongs to it and a restart costs one
slice.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Final

import httpx
from django.db import transaction
from django.db.models import F, Q
from django.utils import timezone

from controlplane.accounts import selectors as accounts
from controlplane.accounts.models import Tenant
from controlplane.accounts.permissions import SYSTEM, Action, Principal, require
from controlplane.audit.services import record
from controlplane.caching import selectors, tickets
from controlplane.caching.errors import CachingError, WarmRefused
from controlplane.caching.models import FINAL_WARM_STATES, WarmJob, WarmState
from controlplane.caching.policies import pin_name_problem, pins_add
from controlplane.caching.prefixes import deployment_of, prefixes_of
from controlplane.caching.prompts import Messages
from controlplane.config import settings
from controlplane.fleet.signals import run_soon
from controlplane.launcher.programs import reachable_host

log = logging.getLogger(__name__)

WARM_TASK: Final = "controlplane.caching.tasks.warm"
SLICE_S: Final = 15.0
REQUEST_TIMEOUT_S: Final = 300.0
CLAIM_S: Final = SLICE_S + REQUEST_TIMEOUT_S
MAX_OPEN_JOBS: Final = 20

Progress = Callable[[WarmJob], None]


def gateway_url() -> str:
    """Where this installation's gateway is reached from its own hosts."""
    return f"http://{reachable_host(settings().host)}:{settings().port}"


@transaction.atomic
def warm_create(
    *,
    actor: Principal,
    model: str,
    tenant: str,
    retention_class: str,
    prompts: list[Messages],
    pin: str = "",
    reason: str = "",
    start: bool = True,
) -> WarmJob:
    """Queue prompts for warming. Their tokens are the tenant's usage. Raises PermissionRefused and CachingError."""
    require(actor, Action.CACHE_MANAGE)
    # Locked: a tenant that is being deleted gets no job that its deletion does not see.
    if not Tenant.objects.select_for_update().filter(slug=tenant, deleted_at=None).exists():
        raise WarmRefused(f"there is no tenant {tenant}")
    if retention_class not in {item.name for item in selectors.current_policy().classes}:
        raise WarmRefused(f"there is no retention class {retention_class}")
    if pin.strip() and (problem := pin_name_problem(pin.strip())):
        raise WarmRefused(problem)
    deployment_of(model)
    if selectors.warm_jobs_waiting().count() >= MAX_OPEN_JOBS:
        raise WarmRefused(f"{MAX_OPEN_JOBS} jobs wait already; cancel some, or wait")
    job = WarmJob(
        model=model,
        tenant=tenant,
        retention_class=retention_class,
        pin=pin.strip(),
        prompts=prompts,
        total=len(prompts),
        created_by=actor.label,
        note="waits for its turn",
    )
    job.full_clean()
    job.save()
    record(
        actor=actor,
        action="store.warm",
        target=f"warming:{job.pk}",
        before=None,
        after={"model": model, "class": retention_class, "prompts": len(prompts), "pin": job.pin},
        reason=reason,
        tenant=tenant,
    )
    if start:
        run_soon(WARM_TASK)
    return job


@transaction.atomic
def warm_cancel(*, actor: Principal, job: int, reason: str = "") -> WarmJob:
    """What was warmed stays. Idempotent. Raises WarmRefused for a job that does not exist."""
    require(actor, Action.CACHE_MANAGE)
    row = WarmJob.objects.select_for_update().filter(pk=job).first()
    if row is None:
        raise WarmRefused(f"there is no warming job {job}")
    if not row.ended:
        _cancel(row, actor, reason=reason)
    return row


@transaction.atomic
def warm_cancel_tenant(*, actor: Principal, tenant: str) -> int:
    """Ends every open job of a tenant that is being deleted; how many there were."""
    rows = WarmJob.objects.select_for_update().exclude(state__in=FINAL_WARM_STATES).filter(tenant=tenant)
    for row in rows:
        _cancel(row, actor, reason="the tenant was deleted")
    return len(rows)


def _cancel(row: WarmJob, actor: Principal, *, reason: str) -> None:
    record(
        actor=actor,
        action="store.warm_cancel",
        target=f"warming:{row.pk}",
        before={"state": row.state, "done": row.done},
        after={"state": WarmState.CANCELLED.value},
        reason=reason,
        tenant=row.tenant,
    )
    _end(row, WarmState.CANCELLED, f"cancelled by {actor.label}")


def warm_claim(*, job: int | None = None) -> WarmJob | None:
    """The next job that nobody works on, now ours for CLAIM_S."""
    now = timezone.now()
    with transaction.atomic():
        rows = WarmJob.objects.exclude(state__in=FINAL_WARM_STATES).filter(
            Q(claimed_until=None) | Q(claimed_until__lt=now)
        )
        rows = rows if job is None else rows.filter(pk=job)
        row = rows.select_for_update(skip_locked=True).order_by("id").first()
        if row is not None:
            row.state, row.note = WarmState.RUNNING, ""
            row.claimed_until = now + timedelta(seconds=CLAIM_S)
            row.save(update_fields=["state", "note", "claimed_until"])
        return row


def warm_advance(
    job: WarmJob, *, seconds: float = SLICE_S, url: str | None = None, progress: Progress | None = None
) -> WarmJob:
    """Send prompts of a claimed job for about `seconds`, then let it go. A prompt that is refused is counted."""
    until = time.monotonic() + seconds
    ticket = tickets.Ticket(job=job.pk, tenant=job.tenant, retention_class=job.retention_class)
    with httpx.Client(base_url=url or gateway_url(), timeout=REQUEST_TIMEOUT_S) as client:
        while job.done + job.failed < job.total and time.monotonic() < until:
            if accounts.tenant_by_slug(job.tenant) is None:
                return _stop(job, f"the tenant {job.tenant} is gone")
            messages: Messages = job.prompts[job.done + job.failed]
            try:
                tokens = _send(client, job, messages, tickets.issue(ticket))
            except (httpx.HTTPError, ValueError) as error:
                _count(job, None, note=f"prompt {job.done + job.failed + 1}: {error}")
            else:
                _count(job, tokens)
            if progress is not None:
                progress(job)
            if job.ended:  # cancelled meanwhile
                return job
    return _let_go(job)


def _send(client: httpx.Client, job: WarmJob, messages: Messages, ticket: str) -> tuple[int, int]:
    """One prompt, one token of output. Returns (prompt tokens, those that hit). Raises httpx.HTTPError, ValueError."""
    answer = client.post(
        "/v1/chat/completions",
        json={"model": job.model, "messages": messages, "max_tokens": 1},
        headers={tickets.HEADER: ticket},
    )
    if answer.is_error:
        raise ValueError(f"{answer.status_code} {_message(answer)}")
    usage = answer.json()["usage"]
    return int(usage["prompt_tokens"]), int((usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0))


def _message(answer: httpx.Response) -> str:
    try:
        return str(answer.json()["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return answer.text[:200]


def _count(job: WarmJob, tokens: tuple[int, int] | None, *, note: str = "") -> None:
    """One prompt more: its (prompt, hit) tokens, or None where it was refused. Only while nobody has ended the job."""
    values: dict[str, Any] = {"claimed_until": timezone.now() + timedelta(seconds=CLAIM_S)}
    if tokens is None:
        values |= {"failed": F("failed") + 1, "note": note[:1000]}
    else:
        values["done"] = F("done") + 1
        values["prompt_tokens"] = F("prompt_tokens") + tokens[0]
        values["hit_tokens"] = F("hit_tokens") + tokens[1]
    WarmJob.objects.filter(pk=job.pk).exclude(state__in=FINAL_WARM_STATES).update(**values)
    prompts = job.prompts
    job.refresh_from_db(fields=["state", "note", "done", "failed", "prompt_tokens", "hit_tokens"])
    job.prompts = prompts


def _stop(job: WarmJob, why: str) -> WarmJob:
    with transaction.atomic():
        row = WarmJob.objects.select_for_update().get(pk=job.pk)
        if not row.ended:
            _end(row, WarmState.FAILED, why)
    return row


def _let_go(job: WarmJob) -> WarmJob:
    with transaction.atomic():
        row = WarmJob.objects.select_for_update().get(pk=job.pk)
        if row.ended:
            return row
        whole = row.done + row.failed >= row.total
        # The claim stays while we pin: nobody else shall do the same.
        row.claimed_until = timezone.now() + timedelta(seconds=CLAIM_S) if whole else None
        row.save(update_fields=["claimed_until"])
        if not whole:
            return row
    refused = f"{row.failed} refused, the last: {row.note}" if row.failed else ""
    pinned = _pin(row) if row.pin and row.done else ""
    with transaction.atomic():
        row = WarmJob.objects.select_for_update().get(pk=job.pk)
        if row.ended:  # cancelled while we pinned
            return row
        state = WarmState.DONE if row.done else WarmState.FAILED
        _end(row, state, "; ".join(filter(None, (refused, pinned))))
    return row


def _pin(job: WarmJob) -> str:
    """Pin every prompt of the job; what became of it, for the job's note."""
    try:
        tips: dict[str, None] = {}
        for prefix in prefixes_of(model=job.model, tenant=job.tenant, prompts=job.prompts):
            tips[prefix.tip] = None
            if not _hold(job):
                return "not pinned: the job ended meanwhile"
        several = len(tips) > 1
        named = {f"{job.pin}-{place}" if several else job.pin: tip for place, tip in enumerate(tips, 1)}
        pins_add(actor=SYSTEM, pins=named, reason=f"warming job {job.pk} of {job.created_by}")
    except CachingError as error:
        return f"not pinned: {error}"
    return f"pinned as {', '.join(list(named)[:3])}{' ...' if len(named) > 3 else ''}"


def _hold(job: WarmJob) -> bool:
    """Our claim, anew; False where the job has ended."""
    rows = WarmJob.objects.filter(pk=job.pk).exclude(state__in=FINAL_WARM_STATES)
    return rows.update(claimed_until=timezone.now() + timedelta(seconds=CLAIM_S)) > 0


def _end(row: WarmJob, state: WarmState, note: str) -> None:
    row.state, row.note = state, note[:2000]
    row.prompts, row.claimed_until, row.finished_at = [], None, timezone.now()
    row.save(update_fields=["state", "note", "prompts", "claimed_until", "finished_at"])
