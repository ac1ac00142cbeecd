"""What can be wrong with a V4.1 model's files or with a request to it."""

from workers.models.safetensors_index import CheckpointError


class ConfigError(CheckpointError):
    """`config.json` asks for something this model family does not have. The message names the key."""


class LayoutError(CheckpointError):
    """Tensors are missing, unexpected or misshapen. `problems` has one line for each, naming the tensor."""

    SHOWN = 8

    def __init__(self, folder: object, problems: list[str]) -> None:
        self.problems = problems
        more = len(problems) - self.SHOWN
        lines = problems[: self.SHOWN] + ([f"and {more} more"] if more > 0 else [])
        super().__init__(f"{folder}: the checkpoint does not fit its config.json: " + "; ".join(lines))


class TokenMapError(CheckpointError):
    """The token map has the wrong number of entries or of distinct compressed ids."""


class InputError(ValueError):
    """Token ids the model cannot take: outside the vocabulary, or more than the context holds."""


class CacheError(RuntimeError):
    """A sequence cache was asked for rows it no longer has."""
