"""What the model takes as a prompt. No torch, so that a request can be refused before anything is loaded."""

from collections.abc import Sequence

from workers.models.deepseek_v41.config import DeepseekV41Config
from workers.models.deepseek_v41.errors import InputError


def check_ids(config: DeepseekV41Config, ids: Sequence[int], start: int = 0) -> None:
    """Raise `InputError` where ids at positions start.. pass the context or one is outside the vocabulary."""
    end = start + len(ids)
    if end > config.max_position_embeddings:
        raise InputError(f"{end:,} tokens are more than the context of {config.max_position_embeddings:,}")
    for position, token in enumerate(ids, start):
        if not 0 <= token < config.vocab_size:
            raise InputError(f"token {position} is {token}, outside the vocabulary of {config.vocab_size:,}")
