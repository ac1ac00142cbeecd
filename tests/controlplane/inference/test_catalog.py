from __future__ import annotations

import os
from pathlib import Path

import pytest

from controlplane.inference.catalog import Catalog, Route, Unavailable
from tests.controlplane.inference.conftest import write_tiny_model
from workers.home import Home


def route(deployment: str, model: str = "tiny-model", aliases: tuple[str, ...] = ()) -> Route:
    return Route(
        deployment=deployment,
        model=model,
        aliases=aliases,
        revision="r",
        created=1,
        max_context=None,
        wanted=True,
        workers=(),
    )


async def test_names_and_their_precedence(tmp_path: Path) -> None:
    routes = [route("one", aliases=("both",)), route("both"), route("three", model="one")]
    catalog = Catalog(Home(tmp_path), lambda: routes)
    await catalog.refresh()
    found = {name: catalog.find(name) for name in ("one", "both", "tiny-model")}
    assert {name: found.deployment for name, found in found.items() if found} == {
        "one": "one",
        "both": "both",
        "tiny-model": "one",
    }
    assert catalog.find("none") is None


async def test_models_are_loaded_once_and_again_when_they_change(tmp_path: Path) -> None:
    home = Home(tmp_path)
    catalog = Catalog(home, lambda: [route("tiny")])
    await catalog.refresh()
    with pytest.raises(Unavailable, match="not in the model store"):
        catalog.model(catalog.routes[0])
    write_tiny_model(home.models / "tiny-model")
    await catalog.refresh()
    first = catalog.model(catalog.routes[0])
    await catalog.refresh()
    assert catalog.model(catalog.routes[0]) is first
    os.utime(home.models / "tiny-model" / "model.json", ns=(1, 1))
    await catalog.refresh()
    assert catalog.model(catalog.routes[0]) is not first


async def test_a_model_without_a_usable_template_is_unavailable(tmp_path: Path) -> None:
    home = Home(tmp_path)
    write_tiny_model(home.models / "tiny-model", chat_format="none")
    catalog = Catalog(home, lambda: [route("tiny")])
    await catalog.refresh()
    with pytest.raises(Unavailable, match="'none'"):
        catalog.model(catalog.routes[0])


async def test_the_last_known_routes_stay_when_the_source_fails(tmp_path: Path) -> None:
    answers = [[route("tiny")]]
    catalog = Catalog(Home(tmp_path), lambda: answers.pop())
    await catalog.refresh()
    with pytest.raises(IndexError):
        await catalog.refresh()
    assert catalog.find("tiny") is not None
