from __future__ import annotations

import json

import msgspec
import pytest

from controlplane.fleet.specification import ModelRef, RevisionSpec
from workers.protocol import Role
from workers.spec import EngineSettings, PrefillTrim, WeightFormat

MODEL = ModelRef(name="m", weights_fingerprint="w", tokenizer_fingerprint="t")


def spec(**changes: object) -> RevisionSpec:
    fields: dict[str, object] = {"model": MODEL, "engine": EngineSettings()} | changes
    return RevisionSpec(**fields)  # type: ignore[arg-type]


def test_through_json_and_back_nothing_changes() -> None:
    whole = spec(ranks={Role.DECODE: 8}, profile="h200-8", engine=EngineSettings(weight_format=WeightFormat.BF16))
    again = RevisionSpec.from_json(json.loads(json.dumps(whole.to_json())))
    assert again == whole
    assert again.hash() == whole.hash()


@pytest.mark.parametrize(
    "changes",
    [
        {"engine": EngineSettings(pool_blocks=1)},
        {"model": ModelRef(name="m", weights_fingerprint="other", tokenizer_fingerprint="t")},
        {"profile": "h200-8"},
        {"ranks": {Role.BOTH: 2}},
    ],
)
def test_every_field_counts(changes: dict[str, object]) -> None:
    assert spec(**changes).hash() != spec().hash()


def test_the_hash_is_the_same_in_every_process() -> None:
    assert spec().hash() == "60f6a7936168f960bffac96dc12f0a655b7c665e463ded071c2e9edc85e08376"


def test_unknown_fields_are_errors() -> None:
    with pytest.raises(msgspec.ValidationError):
        RevisionSpec.from_json(spec().to_json() | {"surprise": 1})


@pytest.mark.parametrize("weight_format", list(WeightFormat))
@pytest.mark.parametrize("trim", list(PrefillTrim))
def test_weight_formats_and_trims_are_settings_of_a_revision(weight_format: WeightFormat, trim: PrefillTrim) -> None:
    engine = json.dumps({"weight_format": weight_format.value, "prefill_trim": trim.value}).encode()
    settings = msgspec.json.decode(engine, type=EngineSettings)
    assert (settings.weight_format, settings.prefill_trim) == (weight_format, trim)
    default = (weight_format, trim) == (WeightFormat.W8, PrefillTrim.COMPACT)
    assert (spec(engine=settings).hash() == spec().hash()) is default


def test_another_weight_format_is_refused_by_name() -> None:
    with pytest.raises(msgspec.ValidationError, match="weight_format"):
        msgspec.json.decode(b'{"weight_format": "int3"}', type=EngineSettings)
