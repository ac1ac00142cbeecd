"""A worker's store in a process of its own, for `test_two_processes`: commands on stdin, answers as JSON lines."""

from __future__ import annotations

import json
import sys
import threading
from typing import Any

import msgspec

from controlplane.caching.store import store_settings
from tests.workers.kvstore.factories import IDENTITY, SALT, make_chain, put
from workers.kvstore.store import Store

_lock = threading.Lock()


def say(**answer: Any) -> None:
    with _lock:
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


def main() -> None:
    chain = make_chain(4)
    settings = msgspec.structs.replace(store_settings(), reserve_bytes=0, index_timeout_s=10.0)
    with Store(settings) as store:
        store.maintenance.look()
        say(ready=True)
        for line in sys.stdin:
            match line.strip():
                case "put":
                    put(store, chain, retention_class="chat", salt=SALT, fingerprint=IDENTITY.fingerprint())
                    say(blocks=len(chain))
                case "find":
                    say(blocks=store.find(chain).blocks, version=store.policy.current.version)
                case "watch":
                    store.policy.refresh_purges()
                    store.policy.watch(lambda policy: say(told=policy.version))
                    store.policy.watch_purges(lambda scope: say(purged=scope))
                    store.policy.start()
                    say(watching=True)


if __name__ == "__main__":
    main()
