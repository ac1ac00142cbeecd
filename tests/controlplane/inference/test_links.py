"""The gateway's connection to a real worker process on TCP."""

from __future__ import annotations

import asyncio
from pathlib import Path

from controlplane.inference.connection import Connection
from controlplane.inference.limits import GatewayLimits
from tests.controlplane.inference.conftest import eventually
from tests.workers.certificates import mutual_tls, secret_file
from tests.workers.conftest import Process, a_pool
from workers.network.security import LinkSecurity
from workers.protocol import Role
from workers.spec import TransferChoice, WorkerLease


def lease_of(process: Process) -> WorkerLease:
    spec = process.spec
    return WorkerLease(
        address=spec.address, role=spec.role, node=spec.node, deployment=spec.deployment, revision=spec.revision,
        model=spec.model, endpoint=spec.endpoint, pid=process.popen.pid,
    )  # fmt: skip


async def test_only_with_what_the_worker_asks_for(tmp_path: Path, limits: GatewayLimits) -> None:
    ours = mutual_tls(tmp_path, "ours")
    gateways = {
        "ours": ours,
        "no TLS": LinkSecurity(secret_file=secret_file(tmp_path)),
        "nothing": LinkSecurity(),
        "another authority": mutual_tls(tmp_path, "theirs"),
        "a certificate of another authority": mutual_tls(tmp_path, "stranger", authority=ours.tls_ca),
    }
    with a_pool() as pool:
        process = pool.start(pool.spec(Role.BOTH, name="w", **pool.tcp("127.0.0.1", "w", ours, TransferChoice.AUTO)))
        await (await process.ready()).close()
        connections = {
            name: Connection(lease_of(process), gateway=name, limits=limits, security=security)
            for name, security in gateways.items()
        }
        tasks = [asyncio.create_task(connection.run()) for connection in connections.values()]
        await eventually(lambda: connections["ours"].usable)
        await eventually(lambda: all(one.error for name, one in connections.items() if name != "ours"))
        assert [name for name, one in connections.items() if one.usable] == ["ours"]
        assert "needs TLS" in connections["nothing"].error
        assert sum(connection.faults for connection in connections.values()) == 0
        for connection in connections.values():
            connection.close()
        await asyncio.gather(*tasks)
