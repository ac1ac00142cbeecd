"""`make up`: sets everything up, runs it on one machine, and stops it again (docs/decisions/0007).

`bootstrap`, `environment`, `frontend` and `progress` run on the system's Python with nothing but the standard library;
the rest runs in `.venv/`.
"""
