"""What saving a policy would do, before it is saved."""

from __future__ import annotations

from dataclasses import dataclass

from controlplane.caching import selectors
from controlplane.caching.documents import Change, changes
from controlplane.caching.errors import StoreUnavailable
from controlplane.caching.policies import policy_problems
from controlplane.caching.store import previewer, reachable
from workers.kvstore.policy import RetentionPolicy
from workers.kvstore.preview import Preview


@dataclass(frozen=True, slots=True)
class PolicyPreview:
    base_version: int
    """The version in force, which the draft is compared with."""
    problems: list[str]
    """Why it cannot be saved; empty where it can."""
    changes: list[Change]
    effect: Preview | None
    """None where the draft has problems, or the index is away."""
    unavailable: str = ""
    """Why there is no effect although there is no problem: such a draft can be saved all the same."""


def policy_preview(draft: RetentionPolicy) -> PolicyPreview:
    """Reads only; takes a few round trips per thousand extents."""
    current = selectors.current_policy()
    differing = changes(current, draft)
    if problems := policy_problems(draft):
        return PolicyPreview(current.version, problems, differing, None)
    try:
        with reachable():
            return PolicyPreview(current.version, [], differing, previewer().preview(current, draft))
    except StoreUnavailable as error:
        return PolicyPreview(current.version, [], differing, None, str(error))
