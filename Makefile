# Everything runs from .venv, which `make install` builds from python3 >= 3.11 and constraints.txt.
PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip --quiet --disable-pip-version-check

.DEFAULT_GOAL := help
.PHONY: help install quickstart test pytest verify coverage lint types imports docs example docs-check bench bench-quick bench-large chaos soak scale clean

help:              ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## +/\t/' | expand -t 14

install: .venv/installed   ## build .venv with .venv/bin/tailgauge in it

.venv/installed: pyproject.toml constraints.txt
	@command -v $(PYTHON) >/dev/null || { echo 'make: $(PYTHON) not found; set another one: make PYTHON=python3.12 install' >&2; exit 1; }
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(0 if v >= (3, 11) else \
	  "make: Tailgauge needs Python 3.11 or newer, $(PYTHON) is %d.%d; set another one: make PYTHON=python3.12 install" % v[:2])'
	$(PYTHON) -m venv .venv
	$(PIP) install --upgrade -c constraints.txt pip
	$(PIP) install -c constraints.txt --build-constraint constraints.txt --group dev -e '.[engine]'
	@touch $@

quickstart: install        ## 30 s of traffic against the simulated endpoint, and its report
	$(BIN)/tailgauge run scenarios/quickstart.toml --workers 2

test: install lint types imports docs-check pytest   ## every check and test, as .ci/run does

# Most tests share the cores; those that compare times come after them, one at a time. They start hundreds of processes:
# what is compiled is kept, also where the environment says otherwise.
TOGETHER = -m pytest -n 3 --dist loadfile --no-loadscope-reorder -m "not alone"
ALONE = -m pytest -m alone
export PYTHONDONTWRITEBYTECODE =

pytest: install            ## the tests alone
	@status=0; $(BIN)/python $(TOGETHER) || status=1; $(BIN)/python $(ALONE) || status=1; exit $$status

# Measuring slows every process, so a test may miss its time here: only the floor in pyproject.toml decides. What is left
# out runs nothing of the product, or a copy of it. The table and the pages of all files are in build/coverage.
COVERAGE = rm -rf build/coverage; mkdir -p build/coverage; \
  $(BIN)/coverage run $(TOGETHER) -q $(addprefix --ignore=tests/,project extension bench) || true; \
  $(BIN)/coverage combine -q && $(BIN)/coverage html -q; \
  $(BIN)/coverage report >build/coverage/report.txt || status=1; tail -n 2 build/coverage/report.txt; exit $$status

coverage: install          ## the share of lines that the tests run, in all their processes
	@status=0; $(COVERAGE)

verify: SHARD ?= 1/1
verify: install            ## the tests at full size, then coverage; SHARD=1/2 and SHARD=2/2 run half of it each
	$(if $(filter 1/1 1/2 2/2,$(SHARD)),,$(error SHARD is 1/2 or 2/2))
	@export PYTEST_ADDOPTS="-o faulthandler_timeout=1500"; status=0; \
	  [ $(SHARD) = 2/2 ] || TAILGAUGE_FULL=1 $(BIN)/python $(TOGETHER) || status=1; \
	  [ $(SHARD) != 1/2 ] || exit $$status; \
	  TAILGAUGE_FULL=1 $(BIN)/python $(ALONE) || status=1; \
	  $(COVERAGE)

lint: install              ## ruff: format and rules
	$(BIN)/ruff format --check
	$(BIN)/ruff check

types: install             ## mypy --strict
	$(BIN)/mypy --num-workers auto
	$(BIN)/mypy docs/generate.py docs/example.py
	$(BIN)/mypy locustfiles
	$(BIN)/mypy bench

imports: install           ## import-linter: which room may import which
	$(BIN)/lint-imports --no-logo

docs: install              ## write the generated pages anew
	$(BIN)/python docs/generate.py

example: install           ## make the report in reports/example anew
	$(BIN)/python docs/example.py

docs-check: install
	$(BIN)/python docs/generate.py --check

bench: install             ## our client beside a native one (20 minutes), into docs/benchmarks.md; then the report of 10 million chunk rows
	$(BIN)/python bench/client.py --write
	$(BIN)/python bench/analysis.py --rows 10M

bench-quick: install       ## our client beside a native one, within 3 minutes
	$(BIN)/python bench/client.py --quick

bench-large: install       ## the report of 10 and of 100 million chunk rows, held to its bars
	$(BIN)/python bench/analysis.py --rows 10M 100M --check

chaos: install             ## what may happen to a run over many machines, each in a run of its own, on hosts made for it (10 minutes)
	TAILGAUGE_FULL=1 TAILGAUGE_CHAOS=1 $(BIN)/python -m pytest tests/many_machines

soak: MINUTES ?= 30
soak: install              ## 2,000 chunks/s on 2 workers for MINUTES (30): nothing may grow
	$(BIN)/python bench/soak.py --minutes $(MINUTES)

scale: install             ## what 2 to 64 workers cost the master (15 minutes), into docs/decisions
	$(BIN)/python bench/scale.py --write

clean:             ## remove .venv, caches and build outputs; runs/ and reports/ stay
	rm -rf .venv build dist .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
