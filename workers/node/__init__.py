"""The node agent: keeps the worker processes of one host running as the fleet wants them (docs/operations/workers.md).

`python -m workers.node` runs it as a Celery worker on the host's queue; `supervisor` is the part that starts and stops
processes, and knows neither Django nor Celery.
"""
