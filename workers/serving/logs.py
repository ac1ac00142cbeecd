"""One JSON object a line on stderr; the node agent puts them in the worker's log file."""

from __future__ import annotations

import logging
import sys
from datetime import UTC, datetime
from typing import Any

import msgspec

from workers.spec import WorkerSpec


class JsonFormatter(logging.Formatter):
    """`{"at", "level", "logger", "event", ...}`; whatever was logged with `extra={"fields": {...}}` is added."""

    def __init__(self, constant: dict[str, Any]) -> None:
        super().__init__()
        self._constant = constant

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "at": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": record.getMessage(),
            **self._constant,
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return msgspec.json.encode(line, enc_hook=str).decode()


def configure(spec: WorkerSpec, level: int = logging.INFO) -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        JsonFormatter({"worker": spec.address.worker, "epoch": spec.address.epoch, "rank": spec.address.rank})
    )
    logging.basicConfig(level=level, handlers=[handler], force=True)
