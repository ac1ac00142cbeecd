"""`python -m workers.serve SPEC.json`: one rank of one worker (docs/operations/workers.md).

Exit status 0: drained; 3: the specification or the model cannot be served; anything else: crashed.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec

from workers.manifest import ManifestError, ModelManifest, read_manifest
from workers.serving import logs
from workers.serving.engine_thread import Loaded
from workers.serving.errors import EXIT_BAD_SPEC, BadSpec
from workers.serving.worker import Worker
from workers.spec import WorkerSpec
from workers.transfer.deadlines import Deadlines

logger = logging.getLogger("workers.serve")

THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


def read_spec(path: Path) -> WorkerSpec:
    """Raises BadSpec."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=WorkerSpec)
    except (OSError, msgspec.DecodeError) as error:
        raise BadSpec(f"{path}: {error}") from error


def serve(
    spec: WorkerSpec,
    loader: Callable[[WorkerSpec, ModelManifest], Callable[[], Loaded]],
    deadlines: Deadlines | None = None,
) -> int:
    """Run one worker to its end; its exit code. `loader` gives what the engine's thread runs first."""
    logs.configure(spec)
    # Before torch is imported, which happens on the engine's thread: the thread pools are sized then.
    for variable in THREAD_VARIABLES:
        os.environ[variable] = str(spec.threads)
    try:
        manifest = read_manifest(Path(spec.model_path))
        load = loader(spec, manifest)
        return asyncio.run(_run(spec, manifest, load, deadlines))
    except (BadSpec, ManifestError) as error:
        logger.critical("cannot serve: %s", error)
        return EXIT_BAD_SPEC


async def _run(
    spec: WorkerSpec, manifest: ModelManifest, load: Callable[[], Loaded], deadlines: Deadlines | None
) -> int:
    return await Worker(spec, manifest, load, deadlines).run()


def main() -> None:
    from workers.serving.loading import engine_loader

    if len(sys.argv) != 2:
        sys.exit("usage: python -m workers.serve SPEC.json")
    try:
        spec = read_spec(Path(sys.argv[1]))
    except BadSpec as error:
        logging.basicConfig(level=logging.INFO)
        logger.critical("cannot serve: %s", error)
        sys.exit(EXIT_BAD_SPEC)
    code = serve(spec, engine_loader)
    logging.shutdown()
    # Not sys.exit: an engine that hangs in a step (or torch's own threads) must not keep a stopped worker alive.
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    main()
