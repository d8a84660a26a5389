# Everything a fresh clone needs: `make test` builds .venv and checks the whole tree, `make demo` shows it at work.

VENV := .venv
PY := $(VENV)/bin/python
EXTRAS ?= dev
# What runs the product alone, and what the tests and checks need besides.
RUNTIME := $(VENV)/.installed
STAMP := $(VENV)/.installed-$(EXTRAS)
TOOLS := $(VENV)/.tools
COMPILED := $(VENV)/.compiled
READY := $(STAMP) $(COMPILED)
INSTALL := $(PY) -m pip install --quiet --disable-pip-version-check
# Three for two cores: tests with whole DROs wait for half of their time; with four they disturb each other.
JOBS ?= $(shell expr 3 \* $$(getconf _NPROCESSORS_ONLN) / 2)
SECONDS ?= 0
COUNT ?= 200
MINUTES ?= 5
SEED ?= 1
BASE ?= main
PYTEST_OPTIONS := -q -rs -n $(JOBS) --dist=loadfile --no-loadscope-reorder --durations=20
PYTEST := $(PY) -m pytest $(PYTEST_OPTIONS)
PYTHON ?= $(shell for p in python3.11 python3.12 python3.13 python3.14 python3; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)

# Without cached bytecode each of the hundreds of processes of the tests compiles what it imports.
unexport PYTHONDONTWRITEBYTECODE
# Modules that are compiled: those with a .pxd.
STEPS := $(shell find dro portals router -name '*.pxd') $(patsubst %.pxd,%.py,$(shell find dro portals router -name '*.pxd'))

.PHONY: help venv demo demo-direct demo-cloud demo-monitor demo-history test test-fast test-loopback test-processes test-delivery long changed reached coverage lint style types dead-code bytecode needs bench mutants fuzz completion man dashboards site dist deb image-check \
	clean distclean
.DEFAULT_GOAL := help

help:
	@echo "make test              lint, type checks and the tests of all lanes, the delivery when it is reached (JOBS=$(JOBS) processes)"
	@echo "make test-fast         the tests that open no socket and start no process"
	@echo "make test-loopback     the tests with sockets on loopback that start no process"
	@echo "make test-processes    the tests that start processes, make network namespaces or use programs"
	@echo "make test-delivery     the tests of packages, charts, units, Spark and documents; make test has them when they differ from main"
	@echo "make long              what takes more than a merge should: DRO_LONG=1"
	@echo "make changed           the tests that run what differs from BASE=$(BASE), and some for all changes"
	@echo "make reached           records which tests run what, for make changed; three quarters of an hour"
	@echo "make coverage          all tests, and which lines and branches of the product they run: build/coverage"
	@echo "make lint              ruff, mypy, spelling and dead code alone"
	@echo "make demo              three DROs, a source and receivers on this machine, live; SECONDS=10 ends it by itself"
	@echo "make demo-direct       the same with one DRO"
	@echo "make demo-cloud        two DROs and TRDs without multicast, as in a public cloud: one by lbmrd, one by SRS"
	@echo "make demo-monitor      make demo with Prometheus beside it, if it is installed; prints where to look"
	@echo "make demo-history      make demo for a minute, then its history by Spark: a page of answers in build"
	@echo "make bench             all benchmarks, half an hour; BENCH=throughput ARGS='--sizes 64' runs one with arguments"
	@echo "make mutants           wrong programs by chance: which do the tests notice? COUNT=200 SEED=1"
	@echo "make fuzz              mutated inputs for all decoders and cores, on all cores; MINUTES=$(MINUTES) SEED=n, findings in build/fuzz"
	@echo "make completion        the shell completion in deploy/completion, from the argument parsers"
	@echo "make dashboards        the Grafana dashboards in deploy/grafana/dashboards, from its tables of panels"
	@echo "make man               the manual pages in deploy/man, from the argument parsers"
	@echo "make dist              source distribution and wheel, with completion and manual pages, in dist"
	@echo "make deb               Debian packages with all that they need, for Debian 12, in dist"
	@echo "make image-check       builds the container image and runs a DRO from it; ENGINE=podman or docker"
	@echo "make site              the documents as a web site, in build/site"
	@echo "make clean             caches and build products; make distclean: .venv too"

venv: $(READY)

# The tools come first, as packages built without isolation share them, and each of them once.
$(TOOLS): pyproject.toml
	@test -n "$(PYTHON)" || { echo "Python 3.11 or newer is needed; name it with PYTHON=..." >&2; exit 1; }
	@echo "$(VENV) is made and filled from the package index: half a minute for the router, two for tests too"
	@$(PYTHON) -m venv $(VENV)
	@$(PY) -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["build-system"]["requires"], sep="\n")' >$@.txt
	@$(INSTALL) --requirement $@.txt
	@touch $@

$(STAMP): $(TOOLS)
	@echo "installing packages: $(EXTRAS)"
	@DRO_STEPS=none $(INSTALL) --no-build-isolation --editable '.[$(EXTRAS)]'
	@touch $(RUNTIME) $@

$(RUNTIME): $(TOOLS)
	@echo "installing packages"
	@DRO_STEPS=none $(INSTALL) --no-build-isolation --editable .
	@touch $@

$(COMPILED): setup.py $(STEPS) | $(TOOLS)
	@echo "the data path is compiled, on all processors: one to three minutes with two of them"
	@$(PY) setup.py --quiet build_ext --inplace
	@! $(PY) -c 'import sys, pathlib, dro.compiled_steps as c; sys.exit(not c.is_current(pathlib.Path()))' || touch $@

# Shows something at once: in plain Python until the data path is compiled, which goes on in the background meanwhile.
define DEMO
@if $(MAKE) --no-print-directory --question $(COMPILED) 2>/dev/null; then exec $(PY) -m supervisor.tools.demo.main $(1); fi; \
echo "the DROs run in plain Python, which is slower; the next start finds them compiled, if there is a C compiler"; \
mkdir -p build; setsid nice -n 19 $(MAKE) --no-print-directory $(COMPILED) >build/compiled.log 2>&1 & pid=$$!; \
trap : INT TERM HUP; $(PY) -m supervisor.tools.demo.main $(1); status=$$?; \
kill -- -$$pid 2>/dev/null; grep -E '^(not )?compiled' build/compiled.log | tail -n 1; exit $$status
endef

demo: $(RUNTIME)
	$(call DEMO,--seconds $(SECONDS))

demo-direct: $(RUNTIME)
	$(call DEMO,--direct --seconds $(SECONDS))

demo-cloud: $(RUNTIME)
	$(call DEMO,--cloud --seconds $(SECONDS))

demo-monitor: $(RUNTIME)
	$(call DEMO,--monitor --seconds $(SECONDS))

demo-history:
	@$(MAKE) --no-print-directory EXTRAS=history,analytics $(VENV)/.installed-history,analytics
	$(call DEMO,--seconds $(if $(filter-out 0,$(SECONDS)),$(SECONDS),60) \
		--history $(if $(HISTORY),$(HISTORY),build/demo-history-$(shell date +%Y%m%d-%H%M%S)))

lint: style types

style: $(STAMP)
	$(VENV)/bin/ruff check
	$(VENV)/bin/ruff format --check
	$(VENV)/bin/codespell
	@$(MAKE) --no-print-directory dead-code

types: $(STAMP)
	$(VENV)/bin/mypy

# Fields of records are not looked at: most are written out as a whole. [tool.vulture] names what is kept.
dead-code: $(STAMP)
	@! $(VENV)/bin/vulture | grep -E "unused (function|method|class|property|import)|100% confidence"

# The assertions of the tests are rewritten once, and not by every worker at the same time; beside mypy, which takes as
# long as this and all other checks.
bytecode: $(READY)
	@$(PY) -m pytest -qq --collect-only >/dev/null || true

needs:
	@.ci/needs || true

test: $(READY) needs
	@$(MAKE) --no-print-directory --jobs=2 types style bytecode
	$(PYTEST)

# It computes all the time, so a process for each core; each property is tried on fewer examples than by `make test`.
test-fast: $(READY)
	DRO_EXAMPLES=10 DRO_CASES=2 $(PYTEST) --lane fast -n $$(getconf _NPROCESSORS_ONLN)

test-loopback: $(READY)
	$(PYTEST) --lane loopback

test-processes: $(READY) needs
	$(PYTEST) --lane processes

test-delivery: $(READY) needs
	$(PYTEST) --lane delivery

# The modules in which a long run tries more.
long: $(READY) needs
	DRO_LONG=1 DRO_CUTS=1000 DRO_FUZZ_STREAMS=1000000 $(PYTEST) --timeout 0 \
		$(shell grep -rlE 'IS_LONG|mark\.long|DRO_(CUTS|FUZZ_STREAMS)' --include='test_*.py' tests)

changed: $(READY)
	@mkdir -p build
	@$(PY) -m tests.changed $(BASE) > build/changed
	@! grep -q . build/changed || DRO_EXAMPLES=10 DRO_CASES=2 $(PYTEST) --tests=build/changed

reached: $(READY) needs
	$(PY) -m tests.reached $(PYTEST_OPTIONS)

coverage: $(READY) needs
	rm -rf build/coverage && mkdir -p build/coverage
	-DRO_PURE=1 $(VENV)/bin/coverage run -m pytest $(PYTEST_OPTIONS)
	-$(VENV)/bin/coverage combine -q
	$(VENV)/bin/coverage html -q
	$(VENV)/bin/coverage report --skip-covered --sort=cover

bench: $(READY) needs
	$(PY) -m tests.bench $(BENCH) $(ARGS)

mutants: $(STAMP)
	DRO_PURE=1 $(PY) -m tests.mutation --count $(COUNT) --seed $(SEED)

fuzz: $(READY)
	$(PY) -m tests.fuzz --minutes $(MINUTES) $(if $(filter-out file,$(origin SEED)),--seed $(SEED)) $(ARGS)

completion: $(STAMP)
	$(PY) -m deploy.completion.generate

dashboards: $(STAMP)
	$(PY) -m deploy.grafana.generate

man: $(STAMP)
	$(PY) -m deploy.man.generate

dist: completion man
	$(PY) -m build --outdir dist

deb: completion man
	$(PY) -m deploy.debian.build

image-check:
	deploy/container/check.sh

site: $(STAMP)
	NO_MKDOCS_2_WARNING=1 $(VENV)/bin/mkdocs build --strict

clean:
	rm -rf build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -path ./$(VENV) -prune -o -name __pycache__ -type d -print0 | xargs -0 rm -rf

distclean: clean
	rm -rf $(VENV)
