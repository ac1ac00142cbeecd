"""`python -m tests.workers.fake_worker SPEC.json`: the real worker process around the fake engine.

The specification's model name carries the engine's options: `fake?step_s=0.05&blocks=32&load_s=1&hang_at=3`.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from urllib.parse import parse_qs

from tests.workers.fake_engine import FakeEngine
from workers.engine.api import StepOutput
from workers.manifest import ModelManifest
from workers.serve import read_spec, serve
from workers.serving.engine_thread import Loaded
from workers.serving.errors import BadSpec
from workers.spec import WorkerSpec
from workers.transfer.deadlines import Deadlines


class HangingEngine(FakeEngine):
    """Hangs for good in the step numbered `hang_at`."""

    hang_at = 0

    def step(self) -> StepOutput:
        output = super().step()
        while self.hang_at and self.stats().steps >= self.hang_at:
            time.sleep(1)
        return output


def loader(spec: WorkerSpec, manifest: ModelManifest) -> Callable[[], Loaded]:
    options = {key: float(values[-1]) for key, values in parse_qs(spec.model.partition("?")[2]).items()}

    def load() -> Loaded:
        time.sleep(options.get("load_s", 0))
        if options.get("fail_load"):
            raise BadSpec("told to fail")
        engine = HangingEngine(
            blocks=int(options.get("blocks", 64)),
            step_s=options.get("step_s", 0.0),
            chunk=int(options.get("chunk", 8)),
            max_queue=spec.engine.max_queue,
        )
        engine.hang_at = int(options.get("hang_at", 0))
        return Loaded(engine, "identity", 256)

    return load


def main() -> None:
    spec = read_spec(Path(sys.argv[-1]))
    # Short, for tests that wait for one; but longer than a busy machine keeps a healthy process from running.
    short = Deadlines(
        early_subscribe_s=4.0, subscribe_s=4.0, engine_s=7.0, credit_s=8.0, turn_s=0.3, progress_s=20.0,
        release_s=8.0, abort_s=4.0,
        link_ping_s=0.2, link_silence_s=5.0, sweep_s=0.05,
    )  # fmt: skip
    code = serve(spec, loader, short)
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    main()
