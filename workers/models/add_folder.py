"""`models add NAME PATH`: copy a Hugging Face folder of either family into the store, after validating it."""

from __future__ import annotations

import hashlib
import json
import math
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from workers.manifest import ModelManifest, write_manifest
from workers.models.deepseek_v41.config import DeepseekV41Config
from workers.models.deepseek_v41.token_map import MAP_NAME, load_token_map
from workers.models.download import copy_with_progress, file_sha256
from workers.models.inspection import is_v41
from workers.models.llama.config import ConfigError, LlamaConfig
from workers.models.llama.names import check_names
from workers.models.safetensors_index import INDEX_NAME, CheckpointError, CheckpointIndex, read_index
from workers.models.store import ModelStore, Progress, StoreError

_CHUNK = 4 * 2**20
_OPTIONAL = ("generation_config.json", "tokenizer_config.json", "chat_template.jinja", MAP_NAME, INDEX_NAME)
_LICENCES = ("LICENSE", "LICENSE.txt", "LICENSE.md", "LICENCE", "USE_POLICY.md")


@dataclass(frozen=True, slots=True)
class _Found:
    """What a folder holds, as its family reads it."""

    family: str
    canonical: dict[str, Any]
    """The configuration as it counts for the weights' fingerprint."""
    index: CheckpointIndex
    parameters: int
    max_context: int
    block_tokens: int
    vocab_size: int
    bos_token_id: int | None
    eos_token_ids: tuple[int, ...]
    chat_format: str | None
    """None: by the chat template that lies in the folder, or does not."""


def add_folder(store: ModelStore, name: str, source: Path, progress: Progress | None = None) -> ModelManifest:
    """Raises StoreError where the folder is incomplete or holds what is not supported; nothing is copied then."""
    try:
        raw = _read_json(source / "config.json")
        found = _read_v41(source) if is_v41(raw) else _read_llama(source, raw)
        tokenizer = _read_tokenizer(source / "tokenizer.json")
    except (ConfigError, CheckpointError) as error:
        raise StoreError(f"{source} cannot be added: {error}") from error
    if tokenizer.get_vocab_size() > found.vocab_size:
        raise StoreError(
            f"{source}: tokenizer.json knows {tokenizer.get_vocab_size()} tokens, the model only {found.vocab_size}"
        )
    needed = sum(file.stat().st_size for file in found.index.files)
    with store.adding(name, needs_bytes=needed) as folder:
        for file in found.index.files:
            copy_with_progress(file, folder / file.name, f"copying {file.name}", progress)
        for extra in ("config.json", "tokenizer.json", *_OPTIONAL, *_LICENCES):
            if (source / extra).is_file():
                shutil.copyfile(source / extra, folder / extra)
        manifest = _describe(name, source, folder, found, tokenizer, progress)
        write_manifest(folder, manifest)
    return manifest


def _read_llama(source: Path, raw: dict[str, Any]) -> _Found:
    config = LlamaConfig.from_hf(raw)
    index = read_index(source)
    index.require_payloads()
    check_names(config, index)
    generation = _read_optional(source / "generation_config.json")
    eos = generation.get("eos_token_id", raw.get("eos_token_id"))
    return _Found(
        family="llama",
        canonical=config.canonical(),
        index=index,
        parameters=index.elements,
        max_context=config.max_context,
        block_tokens=config.block_tokens,
        vocab_size=config.vocab_size,
        bos_token_id=generation.get("bos_token_id", raw.get("bos_token_id")),
        eos_token_ids=() if eos is None else (eos,) if isinstance(eos, int) else tuple(eos),
        chat_format=None,
    )


def _read_v41(source: Path) -> _Found:
    from workers.models.deepseek_v41.loading import check_checkpoint

    config = DeepseekV41Config.from_folder(source)
    index = read_index(source)
    matches = check_checkpoint(index, config, draft=True)
    load_token_map(source, config)
    token_map = source / MAP_NAME
    return _Found(
        family="deepseek_v41",
        canonical=config.to_dict() | ({MAP_NAME: file_sha256(token_map)} if token_map.is_file() else {}),
        index=index,
        parameters=sum(math.prod(match.spec.shape) for match in matches),
        max_context=config.max_position_embeddings,
        block_tokens=config.sliding_window,
        vocab_size=config.vocab_size,
        bos_token_id=config.bos_token_id,
        eos_token_ids=(config.eos_token_id,),
        chat_format="deepseek_v41",
    )


def _describe(
    name: str, source: Path, folder: Path, found: _Found, tokenizer: Tokenizer, progress: Progress | None
) -> ModelManifest:
    tokenizer_config = _read_optional(folder / "tokenizer_config.json")
    specials = {
        token.content: number for number, token in tokenizer.get_added_tokens_decoder().items() if token.special
    }
    template = _template(folder, tokenizer_config) if found.chat_format is None else None
    eos_ids = list(found.eos_token_ids)
    end_of_turn = specials.get(_token_text(tokenizer_config.get("eos_token")))
    if end_of_turn is not None and end_of_turn not in eos_ids:
        eos_ids.append(end_of_turn)
    licence = next((file for file in _LICENCES if (folder / file).is_file()), None)
    return ModelManifest(
        name=name,
        family=found.family,
        display_name=name,
        source=str(source.resolve()),
        licence=f"see {licence}" if licence else "not stated",
        weights_fingerprint=weights_fingerprint(found.canonical, folder, found.index, progress),
        tokenizer_fingerprint=file_sha256(folder / "tokenizer.json"),
        parameters=found.parameters,
        max_context=found.max_context,
        block_tokens=found.block_tokens,
        vocab_size=found.vocab_size,
        bos_token_id=found.bos_token_id,
        eos_token_ids=tuple(eos_ids),
        chat_format=found.chat_format or ("jinja" if template else "none"),
        chat_template=template,
        special_tokens=specials,
    )


def weights_fingerprint(
    canonical: dict[str, Any], folder: Path, index: CheckpointIndex, progress: Progress | None = None
) -> str:
    """SHA-256 over the configuration and every tensor's name, dtype, shape and bytes, in name order."""
    digest = hashlib.sha256(json.dumps(canonical, sort_keys=True).encode())
    done = 0
    for entry in sorted(index, key=lambda entry: entry.name):
        digest.update(f"\0{entry.name}\0{entry.dtype}\0{entry.shape}\0".encode())
        with (folder / entry.file.name).open("rb") as stream:
            stream.seek(entry.begin)
            left = entry.nbytes
            while left:
                chunk = stream.read(min(left, _CHUNK))
                if not chunk:
                    raise StoreError(f"{entry.file.name} ends inside tensor {entry.name}; copy the file again")
                digest.update(chunk)
                left -= len(chunk)
        done += entry.nbytes
        if progress is not None:
            progress("fingerprint", done, index.nbytes)
    return digest.hexdigest()


def _template(folder: Path, tokenizer_config: dict[str, Any]) -> str | None:
    file = folder / "chat_template.jinja"
    if file.is_file():
        return file.read_text()
    template = tokenizer_config.get("chat_template")
    if isinstance(template, list):  # several named templates
        template = next((entry["template"] for entry in template if entry.get("name") == "default"), None)
    return template


def _token_text(token: Any) -> str:
    return token["content"] if isinstance(token, dict) else str(token)


def _read_tokenizer(path: Path) -> Tokenizer:
    if not path.is_file():
        raise ConfigError("tokenizer.json is missing (a folder in Hugging Face layout has one)")
    try:
        return Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises bare Exception for every unreadable file
        raise ConfigError(f"tokenizer.json cannot be read: {error}") from error


def _read_json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise ConfigError(f"{path.name} is missing") from None
    except ValueError as error:
        raise ConfigError(f"{path.name} is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise ConfigError(f"{path.name} is not a JSON object")
    return value


def _read_optional(path: Path) -> dict[str, Any]:
    return _read_json(path) if path.is_file() else {}
