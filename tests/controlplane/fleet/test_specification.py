from __future__ import annotations

import json

import msgspec
import pytest

from controlplane.fleet.specification import ModelRef, RevisionSpec
from workers.protocol import Role
from workers.spec import EngineSettings, WeightFormat

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
    assert spec().hash() == "72166d1e96881674984ae59551f124c19b8845a43954b6ebb7536af49db7834f"


def test_unknown_fields_are_errors() -> None:
    with pytest.raises(msgspec.ValidationError):
        RevisionSpec.from_json(spec().to_json() | {"surprise": 1})
