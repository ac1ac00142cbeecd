"""Policies, statistics and jobs as JSON: what the API and `--json` give."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import msgspec

from controlplane.caching.documents import Change
from controlplane.caching.models import PolicyVersion, StoreAlert, WarmJob
from controlplane.caching.overview import Contents, Split
from controlplane.caching.previews import PolicyPreview


def version_json(row: PolicyVersion, differing: list[Change] | None = None) -> dict[str, Any]:
    found = {
        "version": row.number,
        "policy": row.body,
        "created_at": row.created_at.isoformat(),
        "created_by": row.created_by,
        "reason": row.reason,
        "restores": row.restores,
    }
    return found if differing is None else found | {"changes": [asdict(change) for change in differing]}


def preview_json(preview: PolicyPreview) -> dict[str, Any]:
    return {
        "base_version": preview.base_version,
        "problems": preview.problems,
        "changes": [asdict(change) for change in preview.changes],
        "effect": msgspec.to_builtins(preview.effect),
        "unavailable": preview.unavailable,
    }


def contents_json(contents: Contents) -> dict[str, Any]:
    found: dict[str, Any] = msgspec.to_builtins(contents)
    for row, use in zip(found["classes"], contents.classes, strict=True):
        row["hit_rate"] = use.hit_rate
    return found


def split_json(split: Split) -> dict[str, Any]:
    return {**asdict(split), "total": split.total, "hit_rate": split.hit_rate}


def alert_json(alert: StoreAlert) -> dict[str, Any]:
    return {
        "source": alert.source,
        "trouble": alert.trouble,
        "reason": alert.reason,
        "since": alert.since.isoformat(),
        "seen_at": alert.seen_at.isoformat(),
        "cleared_at": alert.cleared_at.isoformat() if alert.cleared_at else None,
    }


def warm_json(job: WarmJob) -> dict[str, Any]:
    return {
        "id": job.pk,
        "state": job.state,
        "note": job.note,
        "model": job.model,
        "tenant": job.tenant,
        "class": job.retention_class,
        "pin": job.pin,
        "total": job.total,
        "done": job.done,
        "failed": job.failed,
        "prompt_tokens": job.prompt_tokens,
        "hit_tokens": job.hit_tokens,
        "created_at": job.created_at.isoformat(),
        "created_by": job.created_by,
        "finished_at": job.finished_at.isoformat() if job.finished_at else None,
    }
