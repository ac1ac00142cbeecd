"""What can be asked for: deployments by every name they answer to, and their models, loaded once.

Refreshed in the background; while PostgreSQL is away the last known state serves on.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from controlplane.inference.conversation import ChatModel, UnsupportedModel, load_chat_model
from controlplane.inference.rendering import TemplateError
from controlplane.inference.tokenization import TokenizerError
from workers.home import Home
from workers.manifest import MANIFEST_NAME, ManifestError, read_manifest

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """A deployment as clients reach it."""

    deployment: str
    model: str
    aliases: tuple[str, ...]
    revision: str
    """Hash of the wanted revision."""
    created: int
    max_context: int | None
    """The revision's setting, where it is below the model's."""
    wanted: bool
    """Whether any worker is wanted at all."""
    workers: tuple[str, ...]
    """Names of its worker rows: whose leases to read."""


class Unavailable(Exception):
    """The model is known and cannot be served by this gateway; the message says why."""


@dataclass(slots=True)
class _Loaded:
    stamp: int
    """Modification time of the manifest, nanoseconds."""
    model: ChatModel | None
    problem: str = ""


@dataclass(slots=True)
class Catalog:
    """`source` reads the routes (blocking); `models` is the model store."""

    home: Home
    source: Callable[[], Sequence[Route]]
    routes: tuple[Route, ...] = ()
    refreshed: bool = False
    _names: Mapping[str, Route] = field(default_factory=dict)
    _loaded: dict[str, _Loaded] = field(default_factory=dict)
    _thread: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1, "catalog"))
    """One thread for all reads: one database connection."""

    async def refresh(self) -> None:
        """Read the routes and load models that are new. Raises what `source` raises; the old state stays then."""
        routes = tuple(await asyncio.get_running_loop().run_in_executor(self._thread, self.source))
        for model in {route.model for route in routes}:
            await self._load(model)
        names: dict[str, Route] = {}
        # A deployment's own name wins over an alias, an alias over a model's name.
        for route in routes:
            names.setdefault(route.model, route)
        for route in routes:
            names.update(dict.fromkeys(route.aliases, route))
        names.update({route.deployment: route for route in routes})
        self.routes, self._names, self.refreshed = routes, names, True

    def find(self, name: str) -> Route | None:
        return self._names.get(name)

    def names(self) -> Mapping[str, Route]:
        return self._names

    def model(self, route: Route) -> ChatModel:
        """Raises Unavailable."""
        loaded = self._loaded.get(route.model)
        if loaded is None or loaded.model is None:
            raise Unavailable(loaded.problem if loaded else f"{route.model} is being loaded")
        return loaded.model

    async def _load(self, name: str) -> None:
        folder = self.home.models / name
        try:
            stamp = (folder / MANIFEST_NAME).stat().st_mtime_ns
        except OSError:
            stamp = 0
        known = self._loaded.get(name)
        if known is not None and known.stamp == stamp and (known.model is not None or stamp):
            return
        try:
            manifest = read_manifest(folder)
            model = await asyncio.to_thread(load_chat_model, folder, manifest)
            self._loaded[name] = _Loaded(stamp, model)
            log.info("model %s is known to the gateway", name)
        except (ManifestError, TokenizerError, TemplateError, UnsupportedModel, OSError) as error:
            if known is None or known.problem != str(error):
                log.error("model %s cannot be served: %s", name, error)
            self._loaded[name] = _Loaded(stamp, None, str(error))
