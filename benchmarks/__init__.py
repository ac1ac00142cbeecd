"""Benchmarks: each is a module run with `python -m benchmarks.NAME`, prints one table and takes `--json OUT`."""
