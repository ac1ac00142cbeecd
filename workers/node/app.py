"""The Celery application as the node agent runs it: the common one, with the agent's step and its tasks."""

from __future__ import annotations

import django

from controlplane.celery import app

django.setup()  # `celery -A` imports this module before Celery's own Django support does so

from workers.node import tasks  # noqa: E402, F401 - registers the nudge
from workers.node.bootstep import NodeAgentStep  # noqa: E402

app.steps["worker"].add(NodeAgentStep)
