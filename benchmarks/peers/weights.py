"""The same weights in the files that peers read: GGUF in BF16 or Q8_0, and a Hugging Face folder."""

from __future__ import annotations

from pathlib import Path

import gguf
import torch

_KINDS = {"bf16": gguf.GGMLQuantizationType.BF16, "q8_0": gguf.GGMLQuantizationType.Q8_0}
_FILE_TYPES = {"bf16": gguf.LlamaFileType.MOSTLY_BF16, "q8_0": gguf.LlamaFileType.MOSTLY_Q8_0}
_OWN = ("GGUF.version", "GGUF.tensor_count", "GGUF.kv_count", "general.architecture", "general.file_type")


def requantised(source: Path, kind: str, target: Path) -> Path:
    """`source` with every matrix dequantised and stored as `kind`; vectors stay float32. Kept once made."""
    if target.is_file():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    reader = gguf.GGUFReader(source)
    part = target.with_suffix(".part")
    writer = gguf.GGUFWriter(part, "llama")
    for name, entry in reader.fields.items():
        if name not in _OWN:
            value_type = entry.types[0]
            inner = entry.types[-1] if value_type == gguf.GGUFValueType.ARRAY else None
            writer.add_key_value(name, entry.contents(), value_type, inner)
    writer.add_file_type(_FILE_TYPES[kind])
    for tensor in reader.tensors:
        values = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        wanted = gguf.GGMLQuantizationType.F32 if values.ndim == 1 else _KINDS[kind]
        writer.add_tensor(tensor.name, gguf.quants.quantize(values, wanted), raw_dtype=wanted)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    part.rename(target)
    return target


def hugging_face(source: Path, target: Path) -> Path:
    """A folder in bfloat16 with the tokenizer, written by `transformers` itself. Kept once made."""
    if target.is_dir():
        return target
    from transformers import AutoModelForCausalLM, AutoTokenizer

    part = target.with_name(f"{target.name}.part")
    model = AutoModelForCausalLM.from_pretrained(source.parent, gguf_file=source.name, dtype=torch.bfloat16)
    del model.config.quantization_config
    model.save_pretrained(part)
    AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name).save_pretrained(part)
    part.rename(target)
    return target
