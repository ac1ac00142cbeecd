"""What the model store says of a model (torch-free): `models/<name>/model.json`, read by gateways and workers."""

from __future__ import annotations

from pathlib import Path

import msgspec

MANIFEST_NAME = "model.json"


class ModelManifest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One model in the store. The weights, `tokenizer.json` and the licence lie in the same folder."""

    name: str
    family: str
    """`llama` or `deepseek_v41`."""
    display_name: str
    source: str
    """Where it came from: a package and version, or the folder it was copied from."""
    licence: str
    weights_fingerprint: str
    """SHA-256 over the weights as loaded (names, dtypes, shapes, bytes), hex."""
    tokenizer_fingerprint: str
    parameters: int
    max_context: int
    block_tokens: int
    vocab_size: int
    bos_token_id: int | None
    eos_token_ids: tuple[int, ...]
    chat_format: str
    """`chatml`, `deepseek_v41`, `jinja` (then `chat_template` holds it) or `none`."""
    chat_template: str | None = None
    special_tokens: dict[str, int] = {}


class ManifestError(Exception):
    """The folder holds no usable model; the message says what is wrong and what to do."""


def read_manifest(folder: Path) -> ModelManifest:
    path = folder / MANIFEST_NAME
    try:
        return msgspec.json.decode(path.read_bytes(), type=ModelManifest)
    except FileNotFoundError:
        raise ManifestError(f"{folder.name} is not in the model store; add it with `manage.py models add`") from None
    except msgspec.DecodeError as error:
        raise ManifestError(f"{path} is damaged ({error}); remove the model and add it again") from error


def write_manifest(folder: Path, manifest: ModelManifest) -> None:
    """Written last, by rename: a folder with a manifest is complete."""
    temporary = folder / f".{MANIFEST_NAME}.tmp"
    temporary.write_bytes(msgspec.json.format(msgspec.json.encode(manifest), indent=2) + b"\n")
    temporary.rename(folder / MANIFEST_NAME)
