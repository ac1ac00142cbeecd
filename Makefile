# Everything goes through one bootstrap: it finds a Python, sets up .venv/ and goes on in there.
PYTHON ?= python3
BOOTSTRAP = @$(PYTHON) controlplane/launcher/bootstrap.py

.PHONY: up down test bench lint format lock help
.DEFAULT_GOAL := help

up: ## set up and run everything on this machine (PORT, GALLEY_HOME, GALLEY_*); Ctrl-C stops it
	$(BOOTSTRAP) -m controlplane.launcher up

down: ## stop everything that `make up` started with this GALLEY_HOME, from any terminal
	@if [ -x .venv/bin/python ]; then .venv/bin/python -m controlplane.launcher down; else echo "nothing is set up here"; fi

test: ## set up and run all checks and tests; PARTS="unit e2e" picks some of: static unit kernels integration e2e
	$(BOOTSTRAP) --dev tools/test.py $(PARTS)

bench: ## run every benchmark and print its table; JSON=folder keeps the figures
	$(BOOTSTRAP) --dev tools/bench.py $(if $(JSON),--json $(JSON))

lint: ## static checks: ruff, mypy, import contracts, tsc
	$(BOOTSTRAP) --dev tools/test.py static

format: ## format the sources and apply safe fixes
	$(BOOTSTRAP) --dev --no-frontend tools/format.py

lock: ## resolve pyproject.toml into the lock files again; UPGRADE=1 moves every pin
	$(BOOTSTRAP) --dev --no-frontend tools/lock.py $(if $(UPGRADE),--upgrade)

help: ## this list
	@sed -n 's/^\([a-z]*\): ## /\1:/p' Makefile | awk -F: '{ first = $$1; sub(/^[^:]*:/, ""); printf "  make %-8s %s\n", first, $$0 }'
