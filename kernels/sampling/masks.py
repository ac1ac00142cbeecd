"""What one request may not sample, and what it would rather (not): changes to rows of logits, in place."""

from __future__ import annotations

import torch

_BITS = 32


def words(vocabulary: int) -> int:
    """32-bit words of a mask over `vocabulary` tokens."""
    return -(-vocabulary // _BITS)


def apply_bitmask(logits: torch.Tensor, mask: torch.Tensor) -> None:
    """Set what `mask` forbids to -inf. Logits float32 [m, vocab]; mask int32 [m, words(vocab)], bit i of word j for
    token 32 * j + i, set where the token is allowed. m may be 0. A row that allows nothing becomes all -inf.
    """
    shifts = torch.arange(_BITS, dtype=torch.int32, device=logits.device)
    allowed = ((mask[:, :, None] >> shifts) & 1).bool().flatten(1)[:, : logits.shape[1]]
    logits.masked_fill_(~allowed, -torch.inf)


def add_bias(row: torch.Tensor, bias: dict[int, float]) -> None:
    """Add to the logits of single tokens. `row` float32 [vocab]; ids outside the vocabulary are left out."""
    known = {token: value for token, value in bias.items() if 0 <= token < row.shape[0]}
    if known:
        row[torch.tensor(list(known))] += torch.tensor(list(known.values()), dtype=row.dtype)


def penalise(row: torch.Tensor, outputs: torch.Tensor, *, presence: float, frequency: float) -> None:
    """OpenAI's penalties: `row` float32 [vocab] loses presence + count * frequency for each token of `outputs` int64
    [n], count being how often it is there. n may be 0.
    """
    tokens, counts = outputs.unique(return_counts=True)
    row[tokens] -= presence + counts.to(row.dtype) * frequency
