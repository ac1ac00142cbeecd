"""List deployments and workers, each with its state and the reason for it."""

from __future__ import annotations

import json
from argparse import ArgumentParser, Namespace

from django.core.management.base import OutputWrapper
from django.utils import timezone

from controlplane.fleet import selectors
from controlplane.fleet.presentation import deployment_json, node_json, worker_json


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="as the API gives it")


def run(options: Namespace, out: OutputWrapper) -> None:
    deployments, workers, nodes = list(selectors.deployments()), list(selectors.workers()), list(selectors.nodes())
    if options.json:
        whole = {
            "deployments": [deployment_json(row) for row in deployments],
            "workers": [worker_json(row) for row in workers],
            "nodes": [node_json(row) for row in nodes],
        }
        out.write(json.dumps(whole, indent=2))
        return
    freeze = selectors.eviction_freeze()
    if freeze is not None:
        out.write(f"FROZEN since {freeze.since:%H:%M:%S} UTC: {freeze.reason}")
    line = "{:<24} {:<12} {:<10} {}"
    for deployment in deployments:
        out.write(line.format(deployment.name, deployment.state, "", deployment.reason))
        for worker in (w for w in workers if w.pool.revision.deployment_id == deployment.pk):
            note = f"on {worker.node}" if worker.node else "no node"
            note += f", epoch {worker.epoch}, {worker.restarts} restarts"
            out.write(line.format(f"  {worker.name}", worker.state, worker.pool.role, f"{note}  {worker.reason}"))
    for node in nodes:
        note = f"stopped: {node.stopped_reason}" if node.stopped_at else f"{node.cores} cores, {node.profile}"
        out.write(line.format(f"node {node.name}", f"seen {node.seen_age_s(timezone.now()):.0f} s", "", note))
