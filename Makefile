# Everything a fresh clone needs: `make test` builds .venv and checks the whole tree, `make demo` shows it at work.

VENV := .venv
PY := $(VENV)/bin/python
STAMP := $(VENV)/.installed
EXTRAS ?= dev
JOBS ?= auto
SECONDS ?= 0
PYTHON ?= $(shell for p in python3.11 python3.12 python3.13 python3.14 python3; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)

.PHONY: help venv demo test lint needs bench completion clean distclean
.DEFAULT_GOAL := help

help:
	@echo "make test              lint, type checks and all tests (JOBS=$(JOBS) processes)"
	@echo "make lint              ruff and mypy alone"
	@echo "make demo              a DRO, a source and receivers on this machine, live; SECONDS=10 ends it by itself"
	@echo "make bench             the benchmarks, one after another"
	@echo "make completion        the shell completion in deploy/completion, from the argument parsers"
	@echo "make clean             caches and build products; make distclean: .venv too"

venv: $(STAMP)

$(STAMP): pyproject.toml
	@test -n "$(PYTHON)" || { echo "Python 3.11 or newer is needed; name it with PYTHON=..." >&2; exit 1; }
	test -x $(PY) || $(PYTHON) -m venv $(VENV)
	$(PY) -m pip install --quiet --disable-pip-version-check --editable '.[$(EXTRAS)]'
	touch $@

demo: $(STAMP)
	$(PY) -m supervisor.demo --seconds $(SECONDS)

lint: $(STAMP)
	$(VENV)/bin/ruff check
	$(VENV)/bin/ruff format --check
	$(VENV)/bin/mypy

needs:
	@.ci/needs || true

test: lint needs
	$(PY) -m pytest -q -rs -n $(JOBS)

bench: $(STAMP) needs
	$(PY) -m tests.bench

completion: $(STAMP)
	$(PY) -m deploy.completion.generate

clean:
	rm -rf build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -path ./$(VENV) -prune -o -name __pycache__ -type d -print0 | xargs -0 rm -rf

distclean: clean
	rm -rf $(VENV)
