"""What no gateway of ours sends: numbers outside their meaning. Refused here, before they reach a kernel or a clock."""

from __future__ import annotations

import math

from workers.constraints import MAX_GRAMMAR_BYTES
from workers.protocol import Decode, Prefill, Sampling

MAX_LOGPROBS = 1024
"""Alternatives beside each token: what bounds the size of a frame, far above what the API offers."""
MAX_BIAS = 100.0
MAX_BIASED = 4096
"""Tokens that one request may bias."""


def fault(frame: Prefill | Decode) -> str | None:
    """What is wrong with a request's numbers; None where nothing is."""
    if math.isnan(frame.deadline_s):
        return "deadline_s is not a number"
    return sampling_fault(frame.sampling)


def sampling_fault(sampling: Sampling) -> str | None:
    """Written so that NaN, which compares to nothing, is a fault."""
    s = sampling
    if not 0.0 <= s.temperature < math.inf:
        return f"temperature is {s.temperature}, a finite number of at least 0 is needed"
    if not 0.0 < s.top_p <= 1.0:
        return f"top_p is {s.top_p}, more than 0 and at most 1 is needed"
    if not 0.0 <= s.min_p <= 1.0:
        return f"min_p is {s.min_p}, 0 to 1 is needed"
    if s.top_k < 0:
        return f"top_k is {s.top_k}, at least 0 is needed"
    if s.max_tokens < 1:
        return f"max_tokens is {s.max_tokens}, at least 1 is needed"
    if s.logprobs is not None and not 0 <= s.logprobs <= MAX_LOGPROBS:
        return f"logprobs is {s.logprobs}, 0 to {MAX_LOGPROBS} is needed"
    for name, value in (("presence_penalty", s.presence_penalty), ("frequency_penalty", s.frequency_penalty)):
        if not -MAX_BIAS <= value <= MAX_BIAS:
            return f"{name} is {value}, -{MAX_BIAS:g} to {MAX_BIAS:g} is needed"
    if len(s.logit_bias) > MAX_BIASED:
        return f"logit_bias names {len(s.logit_bias)} tokens, at most {MAX_BIASED} are possible"
    if not all(-MAX_BIAS <= bias <= MAX_BIAS for bias in s.logit_bias.values()):
        return f"logit_bias holds numbers outside -{MAX_BIAS:g} to {MAX_BIAS:g}"
    if len(s.grammar) > MAX_GRAMMAR_BYTES:
        return f"the grammar is larger than {MAX_GRAMMAR_BYTES} characters"
    return None
