"""Prefill and decode in two network namespaces, joined by a wire that can be cut: as two hosts are.

That takes no privileges where the kernel lets everybody have a user namespace.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
WIRE = """
set -e
ip link set lo up
unshare --net sleep 600 & other=$!
trap 'kill $other' EXIT
for try in 1 2 3 4 5 6 7 8 9 10; do
    [ "$(readlink /proc/$other/ns/net)" = "$(readlink /proc/self/ns/net)" ] || break
    sleep 0.1
done
ip link add near type veth peer name far netns $other
ip address add 10.77.0.1/24 dev near
ip link set near up
nsenter --target $other --net sh -c 'ip link set lo up; ip address add 10.77.0.2/24 dev far; ip link set far up'
OTHER=$other "$@"
"""


def in_two_namespaces(*command: str, timeout_s: float) -> subprocess.CompletedProcess[str]:
    """Run `command` in the first; `OTHER` in its environment is a process in the second."""
    return subprocess.run(
        ["unshare", "--user", "--map-root-user", "--net", "sh", "-c", WIRE, "sh", *command],
        cwd=ROOT, capture_output=True, text=True, timeout=timeout_s, check=False,
    )  # fmt: skip


@pytest.fixture(scope="module")
def namespaces() -> None:
    try:
        tried = in_two_namespaces("true", timeout_s=30)
    except (OSError, subprocess.TimeoutExpired) as error:
        pytest.skip(f"no network namespaces here: {error}")
    if tried.returncode != 0:
        pytest.skip(f"no network namespaces here: {tried.stderr.strip()[-200:]}")


@pytest.mark.usefixtures("namespaces")
def test_a_pair_on_two_hosts(tmp_path: Path) -> None:
    """Equal text over the wire; the wire is cut in mid-transfer, both sides let go; it is mended, and serves again."""
    ran = in_two_namespaces(sys.executable, "-m", "tests.workers.transfer.two_hosts", str(tmp_path), timeout_s=150)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert ran.stdout.split() == ["equal", "cut", "mended"]
