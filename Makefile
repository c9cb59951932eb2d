# The only commands of this repository. Needs Python 3.11 or newer with its venv module; all else comes from PyPI.

PYTHON ?= python3
UV := 0.13.9
BIN := .venv/bin
READY := .venv/.ready
WORKERS ?= 2

CHAOS_MINUTES ?= 30

.PHONY: help setup demo test postgresql chaos-tools chaos check bench clean

help:
	@echo "make demo    walk the tutorial with short timers, and break what it promises to survive"
	@echo "make test    formatting, types and all tests"
	@echo "make chaos   break everything for half an hour (CHAOS_MINUTES=) and report whether a promise was broken"
	@echo "make check   formatting and types only"
	@echo "make bench   our figures beside those of others, on this machine"
	@echo "make setup   install into .venv (every command does this by itself)"
	@echo "make clean   remove .venv and what tools have left"

setup: $(READY)

$(READY): pyproject.toml uv.lock Makefile
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Perdure needs Python 3.11 or newer: make PYTHON=python3.12 …" >&2; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv || \
		{ rm -rf .venv; echo "Python has no venv module here: apt-get install python3-venv" >&2; exit 1; }
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check uv==$(UV)
	@VIRTUAL_ENV= $(BIN)/uv sync --frozen --quiet
	@touch $@

demo: $(READY)
	@$(BIN)/python -m demo

check: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

test: check postgresql chaos-tools
	$(BIN)/pytest -n $(WORKERS)

# The tests start a PostgreSQL server and PgBouncer of their own. Debian's packages would start them too: they are told
# not to.
postgresql:
	@ls /usr/lib/postgresql/*/bin/initdb >/dev/null 2>&1 || command -v initdb >/dev/null || test "$$(id -u)" -ne 0 || { \
		mkdir -p /etc/postgresql-common && echo 'create_main_cluster = false' >/etc/postgresql-common/createcluster.conf && \
		apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends postgresql; }
	@command -v pgbouncer >/dev/null || test "$$(id -u)" -ne 0 || ! command -v apt-get >/dev/null || { \
		test -e /usr/sbin/policy-rc.d || { made=/usr/sbin/policy-rc.d; printf '#!/bin/sh\nexit 101\n' >$$made; chmod +x $$made; }; \
		apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends pgbouncer; \
		status=$$?; rm -f $$made; exit $$status; }

# For root only: others cannot make network namespaces, and tests and chaos runs say what they do without.
chaos-tools:
	@test "$$(id -u)" -ne 0 || ! command -v apt-get >/dev/null || { command -v ip >/dev/null && \
		ls /usr/lib/*/faketime/libfaketimeMT.so.1 >/dev/null 2>&1; } || { apt-get update -qq && \
		DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends iproute2 libfaketime; }

chaos: $(READY) postgresql chaos-tools
	nice -n 5 $(BIN)/python -m tests.chaos --minutes $(CHAOS_MINUTES) --report docs/reference/chaos-report.md

bench: $(READY)
	$(BIN)/python -m bench

clean:
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis dist
	find src tests demo bench -name __pycache__ -type d -prune -exec rm -rf {} +
