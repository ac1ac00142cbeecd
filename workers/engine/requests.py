"""From a request to a sequence, or the reason why it can never run here."""

from __future__ import annotations

from dataclasses import dataclass

from workers.engine.api import EngineRequest, RequestRefused
from workers.engine.claims import Scope
from workers.engine.sequence import Phase, Sequence
from workers.identity import CacheIdentity, root_hash
from workers.kvstore.extent import salt_id
from workers.protocol import ErrorCode


@dataclass(frozen=True, slots=True)
class Limits:
    vocab_size: int
    max_context: int
    """Tokens of prompt and output together."""
    block_tokens: int


def accept(request: EngineRequest, phase: Phase, *, hold: bool, limits: Limits, identity: CacheIdentity) -> Sequence:
    """The request as a sequence; its prompt's blocks are not hashed yet. Raises RequestRefused."""
    prompt = len(request.tokens)
    if not prompt:
        raise RequestRefused(ErrorCode.INVALID, "the prompt is empty")
    if request.sampling.max_tokens < 1:
        raise RequestRefused(ErrorCode.INVALID, f"max_tokens is {request.sampling.max_tokens}, at least 1 is needed")
    if prompt >= limits.max_context:
        raise RequestRefused(
            ErrorCode.CONTEXT_LENGTH,
            f"the prompt has {prompt} tokens; at most {limits.max_context - 1} leave room for an answer "
            f"(context {limits.max_context})",
        )
    if not 0 <= min(request.tokens) <= max(request.tokens) < limits.vocab_size:
        raise RequestRefused(ErrorCode.INVALID, f"token ids lie outside the vocabulary of {limits.vocab_size}")
    return Sequence(
        request=request,
        phase=phase,
        hold=hold,
        root=root_hash(identity, request.salt),
        block_tokens=limits.block_tokens,
        output_limit=min(request.sampling.max_tokens, limits.max_context - prompt),
        tokens=list(request.tokens),
        scope=Scope(request.retention_class, salt_id(request.salt)),
    )
