"""The agent's periods and deadlines, in seconds (decision 0005)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    turn_s: float = 0.5
    """Wanted and running are compared this often."""
    start_s: float = 60.0
    """From spawning to the first greeting."""
    load_s: float = 900.0
    """From spawning to `ready`."""
    silent_s: float = 10.0
    """Without a status, or without a turn of the engine's loop, before a worker is reported as not answering."""
    loading_silent_s: float = 30.0
    """The same while it loads: importing torch keeps the interpreter to itself for seconds."""
    hung_s: float = 60.0
    """The same before it is killed and started again. Longer than any step."""
    steady_s: float = 60.0
    """Ready for so long, a worker's earlier failures are forgotten."""
    back_off_s: float = 1.0
    back_off_most_s: float = 60.0
    crash_loop: int = 4
    """Failures in a row from which a worker is reported as failed."""
    stop_drain_s: float = 4.0
    """Draining when the whole node is being stopped: `make down` has 15 s for everything."""
    drain_grace_s: float = 2.0
    """Beyond a worker's own drain deadline, before it is told again, and as long again before SIGKILL."""
    fleet_s: float = 1.0
    """The wanted state is read and reports are written this often."""
    report_again_s: float = 4.0
    """An unchanged report is repeated this often, so that its age stays small."""
    heartbeat_s: float = 1.0

    def back_off(self, failures: int) -> float:
        """Seconds to the next start after so many failures in a row: none after the first, then doubling."""
        return 0.0 if failures <= 1 else min(self.back_off_most_s, self.back_off_s * 2.0 ** (failures - 2))
