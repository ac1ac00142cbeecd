"""What happens to one request at a worker, as the gateway's own code sees it."""

from __future__ import annotations

from dataclasses import dataclass

from workers.protocol import Address, ErrorCode, Failed, Finish, Scheduled, TokenDelta, TokenLogprobs


@dataclass(slots=True)
class Lost:
    """The connection to `address` ended, or its engine stalled: nothing more will come from there."""

    address: Address
    reason: str


WorkerEvent = Scheduled | TokenDelta | Failed | Lost


@dataclass(slots=True)
class Output:
    """Tokens in order, without gaps. `finish` is set on the last."""

    tokens: list[int]
    finish: Finish | None
    logprobs: list[TokenLogprobs] | None


class Restarted:
    """The request was started again elsewhere: forget its output so far (none of it was sent)."""


class RequestFailed(Exception):
    """The request ended without a finish, and is not retried any more."""

    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


Event = Scheduled | Output | Restarted | RequestFailed
