"""The index in Valkey: which extent holds a block, who claims an extent, and since when it was not used.

Keys, all below one name space `P` (with a hash tag, so that a cluster keeps them together; scripts are in `lua/`):

    P:b:<name>      string  extent id, u16 number of the block in it; a name is 16 bytes of the block's hash
    P:x:<id>        hash    h names, n blocks, b bytes, d depth, p parent's name, k kind, t salt id, f fingerprint,
                            m file time, c:<claim> last use
    P:u:<claim>     zset    extent id -> last use, again; a claim is a class, `<class>/sidecar` or `!pin`
    P:all           zset    extent id -> creation        P:trash  zset  files to remove
    P:size:<part>   hash    bytes, blocks, extents by owner (total, t:<salt id>, m:<fingerprint>, k:<kind>);
                            claims: bytes by claim
    P:policy        hash    version, body                P:meta   hash  store id
    P:gz:, P:gn:    ghosts  P:h:, P:gone:  histograms and counters by day (kept 16 days)

Metadata is bounded: by the most blocks the index takes, and by the number of ghosts per class. Every call is one
round trip and one bounded script; a server that does not answer raises `IndexUnavailable` at once until the next probe.
"""

from __future__ import annotations

import secrets
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import redis

from workers import valkey
from workers.kvstore.clock import Clock, micros
from workers.kvstore.extent import ExtentHeader, ExtentId, short_name
from workers.kvstore.health import Breaker

_LUA: Final = Path(__file__).with_name("lua")
DAY_US: Final = 86_400_000_000


class IndexUnavailable(Exception):
    """Valkey does not answer, or answers with an error: the caller goes on without the store."""


@dataclass(frozen=True, slots=True)
class Location:
    """`count` blocks of extent `extent`, from its block `offset` on."""

    extent: ExtentId
    offset: int
    count: int
    claims: dict[str, int]
    """Claim to last use in microseconds."""


@dataclass(frozen=True, slots=True)
class Lookup:
    policy_version: int
    store_id: str
    """Empty when the index is lost: nobody has filled it since the server started."""
    runs: list[Location]


@dataclass(frozen=True, slots=True)
class Released:
    claims: int
    blocks: int
    bytes: int
    claimed_bytes: int
    extents: list[ExtentId]


@dataclass(frozen=True, slots=True)
class Claim:
    """One class's use of one extent."""

    name: str
    last_us: int
    extent: ExtentId


class Index:
    """Thread-safe. `namespace` separates stores that share a server."""

    def __init__(
        self,
        url: str,
        *,
        clock: Clock,
        namespace: str = "galley:{kv}",
        timeout_s: float = 1.0,
        most_blocks: int = 50_000_000,
        ghosts: int = 100_000,
    ) -> None:
        self.clock = clock
        self.namespace = namespace
        self.breaker = Breaker(first_s=0.2, most_s=5.0)
        self._most_blocks = most_blocks
        self._ghosts = ghosts
        self.client = valkey.client(url, timeout_s=timeout_s)
        common = (_LUA / "common.lua").read_text()
        self._scripts = {
            path.stem: self.client.register_script(common + path.read_text())
            for path in sorted(_LUA.glob("*.lua"))
            if path.stem != "common"
        }

    def close(self) -> None:
        self.client.close()

    # -- calls -------------------------------------------------------------------------------------------------------

    @contextmanager
    def guarded(self) -> Iterator[Any]:
        """The client, untyped, with its errors turned into IndexUnavailable and counted by the breaker."""
        if not self.breaker.admits():
            raise IndexUnavailable(self.breaker.reason)
        try:
            yield self.client
        except (redis.RedisError, OSError) as error:
            self.breaker.failed(f"{type(error).__name__}: {error}")
            raise IndexUnavailable(self.breaker.reason) from error
        self.breaker.worked()

    def _call(self, script: str, args: Sequence[Any]) -> Any:
        with self.guarded() as client:
            return self._scripts[script](keys=[self.namespace], args=args, client=client)

    def key(self, *parts: str) -> str:
        return ":".join((self.namespace, *parts))

    def now_us(self) -> int:
        return micros(self.clock.now())

    def day(self) -> int:
        return self.now_us() // DAY_US

    # -- lookup and use ----------------------------------------------------------------------------------------------

    def lookup(self, names: bytes) -> Lookup:
        """Where the chain (16-byte names, from the root on) lies, up to the first block that nobody has. Not a use."""
        version, store_id, claims, rows = self._call("lookup", [names])
        known = claims.decode().split("\n") if claims else []
        runs = [
            Location(ExtentId(extent), offset, count, {k: int(v) for k, v in zip(known, last, strict=True) if v})
            for extent, offset, count, *last in struct.iter_unpack(f"<16sHH{len(known)}d", rows)
        ]
        return Lookup(int(version), store_id.decode(), runs)

    def locate(self, names: bytes) -> Lookup:
        """Like `lookup`, for names that are no chain; each that is missing has a location with `count == 0`."""
        version, store_id, *rows = self._call("locate", [names])
        runs = []
        for row in rows:
            extent, offset, count, flat = row or (b"", 0, 0, ())
            claims = {flat[i].decode(): int(flat[i + 1]) for i in range(0, len(flat), 2)}
            runs.append(Location(ExtentId(extent), int(offset), int(count), claims))
        return Lookup(int(version), store_id.decode(), runs)

    def touch(
        self, names: bytes, claim: str, *, record_from: int = 0, prompt_blocks: int = 0, stale_after_s: float = 3600.0
    ) -> tuple[int, list[ExtentId]]:
        """Use the chain, all extents at once. Returns blocks found, and the extents whose file time is to be renewed.

        Reuse intervals of blocks from `record_from` on enter the histograms; `prompt_blocks` > 0 counts one request.
        """
        now = self.now_us()
        found, *renew = self._call(
            "touch", [names, claim, now, record_from, now // DAY_US, prompt_blocks, now - micros(stale_after_s)]
        )
        return int(found), [ExtentId(item) for item in renew]

    def touch_ids(self, extents: Sequence[ExtentId], claim: str) -> int:
        """Use sidecars by their ids; their blocks are touched with the chain."""
        return int(self._call("touch_ids", [claim, self.now_us(), *extents])) if extents else 0

    # -- changes -----------------------------------------------------------------------------------------------------

    def commit(
        self,
        header: ExtentHeader,
        claim: str,
        *,
        store_id: str,
        file_bytes: int,
        last_us: int | None = None,
        file_time_us: int | None = None,
        rebuild: bool = False,
    ) -> str:
        """Make a written extent findable. Returns `stored`, `exists`, or why not: the file is then to be removed.

        `lost`: the index is not this store's; `purged`: purged since; `orphan`: its parent went; `twin`: another writer
        was first; `full`: the bound on metadata is reached.
        """
        now = self.now_us()
        answer = self._call(
            "commit",
            [
                header.extent_id,
                claim,
                now if last_us is None else last_us,
                header.written_us,
                header.salt_id,
                header.fingerprint,
                file_bytes,
                header.depth,
                short_name(header.parent),
                header.kind,
                header.short_hashes(),
                "0" if rebuild else "1",
                store_id,
                now if file_time_us is None else file_time_us,
                now // DAY_US,
                self._most_blocks,
            ],
        )
        return str(answer.decode())

    def release(self, claims: Sequence[Claim], *, reason: str, want_blocks: int = -1, want_bytes: int = -1) -> Released:
        """Let go of claims that were not used since `last_us`, in this order, until enough is freed (-1: all)."""
        now = self.now_us()
        args: list[Any] = [reason, now, now // DAY_US, self._ghosts, want_blocks, want_bytes]
        for claim in claims:
            args += [claim.name, claim.last_us, claim.extent]
        count, blocks, size, claimed, *extents = self._call("release", args)
        return Released(int(count), int(blocks), int(size), int(claimed), [ExtentId(item) for item in extents])

    def forget(self, extents: Sequence[ExtentId], *, reason: str) -> list[ExtentId]:
        """Remove extents at once, whoever claims them. Returns those that were known."""
        if not extents:
            return []
        now = self.now_us()
        return [ExtentId(item) for item in self._call("forget", [reason, now, now // DAY_US, *extents])]

    def pin(self, claim: str, tip: bytes) -> list[ExtentId]:
        """Claim every extent from the block `tip` up to the root; empty when the tip is not stored."""
        return [ExtentId(item) for item in self._call("pin", [claim, self.now_us(), short_name(tip)])]

    def publish_policy(self, version: int, body: bytes) -> bool:
        """Make `body` the policy unless the index holds this or a newer version."""
        return bool(self._call("publish", [version, body, self.key("policy")]))

    def policy(self) -> tuple[int, bytes] | None:
        with self.guarded() as client:
            version, body = client.hmget(self.key("policy"), "version", "body")
        return (int(version), body) if version is not None and body is not None else None

    def purges(self) -> dict[bytes, bytes]:
        """Scopes purged within the last hour, and when (microseconds)."""
        with self.guarded() as client:
            return dict(client.hgetall(self.key("purged")))

    # -- the store's own record --------------------------------------------------------------------------------------

    def store_id(self) -> str:
        """Id of the store whose extents are indexed; empty when the index is new or lost."""
        with self.guarded() as client:
            return (client.hget(self.key("meta"), "store") or b"").decode()

    def adopt(self, store_id: str) -> None:
        """Say whose index this is, and forget everything about another store."""
        with self.guarded() as client:
            if (client.hget(self.key("meta"), "store") or b"").decode() != store_id:
                self._drop(client)
                client.hset(self.key("meta"), "store", store_id)

    def _drop(self, client: Any) -> None:
        """Remove all keys but the policy, in bounded steps."""
        keep = self.key("policy").encode()
        pattern = self.namespace.replace("[", "\\[") + ":*"
        batch: list[bytes] = []
        for name in client.scan_iter(match=pattern, count=1000):
            if name == keep:
                continue
            batch.append(name)
            if len(batch) == 1000:
                client.unlink(*batch)
                batch.clear()
        if batch:
            client.unlink(*batch)

    @contextmanager
    def exclusive(self, task: str, *, seconds: float) -> Iterator[bool]:
        """Whether this process may do `task` now; others wait until it is done or `seconds` have passed."""
        name, token = self.key("lock", task), secrets.token_bytes(16)
        with self.guarded() as client:
            mine = bool(client.set(name, token, nx=True, px=max(1, int(seconds * 1000))))
        try:
            yield mine
        finally:
            if mine:
                try:
                    with self.guarded() as client:
                        if client.get(name) == token:
                            client.delete(name)
                except IndexUnavailable:
                    pass  # the lock expires by itself
