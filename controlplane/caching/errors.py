"""What the caching services refuse, each with what to do about it."""

from __future__ import annotations


class CachingError(Exception):
    """Base of the refusals below; the message is for the person who asked."""


class PolicyRefused(CachingError):
    """The policy must not be published. `problems` has every reason, not only the first."""

    def __init__(self, *problems: str) -> None:
        super().__init__("; ".join(problems))
        self.problems = list(problems)


class PolicyConflict(CachingError):
    """Somebody saved another version meanwhile: look at it and decide again."""

    def __init__(self, *, expected: int, current: int) -> None:
        super().__init__(
            f"the policy is at version {current}, your change is based on version {expected}; reload and apply it again"
        )
        self.current = current


class UnknownVersion(CachingError):
    pass


class UnknownPin(CachingError):
    pass


class PrefixRefused(CachingError):
    """The prompt names no prefix that can be pinned; the message says why."""


class PurgeRefused(CachingError):
    pass


class WarmRefused(CachingError):
    """The file or the job cannot be taken; the message names line and reason."""


class StoreUnavailable(CachingError):
    """Index or folder cannot be reached; nothing was changed."""
