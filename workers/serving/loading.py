"""Loading the model and making its engine, on the engine's thread: the only place where torch comes in."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path

from workers.manifest import ManifestError, ModelManifest
from workers.serving.engine_thread import Loaded
from workers.serving.errors import BadSpec
from workers.spec import WorkerSpec

logger = logging.getLogger(__name__)


def engine_loader(spec: WorkerSpec, manifest: ModelManifest) -> Callable[[], Loaded]:
    """What the engine's thread runs first. Raises (there) BadSpec where starting again would not help."""

    def load() -> Loaded:
        began = time.monotonic()
        import torch

        from workers.engine.arena import ArenaError
        from workers.engine.engine import Engine
        from workers.kvstore.store import Store
        from workers.models.store import StoreError, cache_identity, load_model

        torch.set_num_threads(spec.threads)
        if spec.device != "cpu":
            raise BadSpec(f"device {spec.device!r} is not available to the engine; known is 'cpu'")
        try:
            model = load_model(
                Path(spec.model_path),
                weight_format=spec.engine.weight_format,
                batch_invariant=spec.engine.batch_invariant,
                prefill_trim=spec.engine.prefill_trim,
            )
        except (ManifestError, StoreError) as error:
            raise BadSpec(str(error)) from error
        identity = cache_identity(manifest, model, spec.device)
        store = None if spec.store is None else Store(spec.store)
        try:
            engine = Engine(model, spec.engine, identity, store=store)
        except ArenaError as error:
            raise BadSpec(str(error)) from error
        logger.info(
            "model loaded",
            extra={
                "fields": {
                    "model": spec.model,
                    "seconds": round(time.monotonic() - began, 2),
                    "threads": spec.threads,
                    "torch": torch.__version__,
                    "block_bytes": engine.arena.block_bytes,
                    "blocks": engine.arena.blocks_total,
                }
            },
        )
        return Loaded(engine, identity.fingerprint(), engine.max_context, identity, store)

    return load
