# Everything runs from .venv, which `make install` builds from python3 >= 3.11 and constraints.txt.
PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip --quiet --disable-pip-version-check

.DEFAULT_GOAL := help
.PHONY: help install quickstart test pytest verify coverage lint types imports audit dist docs site example docs-check bench bench-quick intervals bench-large sanitize fuzz chaos torture soak scale vllm gateways clean

help:              ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## +/\t/' | expand -t 14

install: .venv/installed   ## build .venv

.venv/installed: pyproject.toml constraints.txt hatch_build.py $(wildcard src/tailgauge/transport/core/*.[ch])
	@command -v $(PYTHON) >/dev/null || { echo 'make: $(PYTHON) not found; set another one: make PYTHON=python3.12 install' >&2; exit 1; }
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(0 if v >= (3, 11) else \
	  "make: Tailgauge needs Python 3.11 or newer, $(PYTHON) is %d.%d; set another one: make PYTHON=python3.12 install" % v[:2])'
	$(PYTHON) -m venv .venv
	$(PIP) install --upgrade -c constraints.txt pip
	$(PIP) install -c constraints.txt --build-constraint constraints.txt --group dev -e '.[engine]'
	@touch $@

quickstart: install        ## run 30 s of traffic against the simulated endpoint and report it
	$(BIN)/tailgauge run scenarios/quickstart.toml --workers 2

test: install lint types imports docs-check pytest   ## run every check and the quick tests (5 minutes): what .ci/run runs

# Most tests share the cores. Those that measure no time run where the others, and then the patient ones, leave a core
# idle, and their output follows. The tests that compare times come last, one at a time. All start hundreds of processes:
# what is compiled is kept, also where the environment says otherwise.
SHARING = -m pytest --dist loadfile --no-loadscope-reorder
TOGETHER = $(SHARING) -n 3 -m "not alone"
TIMED = $(SHARING) -n 4 -m "not alone and not untimed"
UNTIMED = $(SHARING) -n 2 -m untimed -o faulthandler_timeout=1500
PATIENT = -m pytest -m patient
LAST = -m pytest -m "alone and not patient"
ALONE = -m pytest -m alone
export PYTHONDONTWRITEBYTECODE =

pytest: install            ## run the quick tests only
	@status=0; log=$$(mktemp); timed=$$(mktemp); trap 'rm -f "$$log" "$$timed"' EXIT; \
	  TAILGAUGE_TIMED_TESTS_RUN=$$timed $(BIN)/python $(UNTIMED) >"$$log" 2>&1 & untimed=$$!; \
	  $(BIN)/python $(TIMED) || status=1; \
	  $(BIN)/python $(PATIENT) || status=1; \
	  rm -f "$$timed"; wait $$untimed || status=1; cat "$$log"; \
	  $(BIN)/python $(LAST) || status=1; exit $$status

# Measuring slows every process, so a test may miss its time here: only the floor in pyproject.toml decides. What is left
# out runs nothing of the product, or a copy of it. The table and the pages of all files are in build/coverage.
COVERAGE = rm -rf build/coverage; mkdir -p build/coverage; \
  TAILGAUGE_EVERY=1 $(BIN)/coverage run $(TOGETHER) -q $(addprefix --ignore=tests/,project extension bench sanitizers) || true; \
  $(BIN)/coverage combine -q && $(BIN)/coverage html -q; \
  $(BIN)/coverage report >build/coverage/report.txt || status=1; tail -n 2 build/coverage/report.txt

coverage: install          ## measure the share of lines that the tests run
	@status=0; $(COVERAGE); exit $$status

# Four parts hold a quarter of the test files each; then come the site with what runs alone, and the coverage.
SHARDS = 1/6 2/6 3/6 4/6 5/6 6/6
verify: SHARD ?= $(SHARDS)
verify: install            ## run every test at full size, the site, then coverage (SHARD=1/6, ... 6/6: a part)
	$(if $(filter-out $(SHARDS),$(SHARD)),$(error SHARD is one of $(SHARDS)))
	@export PYTEST_ADDOPTS="-o faulthandler_timeout=1500"; status=0; \
	  for shard in $(SHARD); do case $$shard in \
	    5/6) $(BIN)/mkdocs build --strict --quiet || status=1; TAILGAUGE_FULL=1 $(BIN)/python $(ALONE) || status=1;; \
	    6/6) $(COVERAGE);; \
	    *) TAILGAUGE_FULL=1 TAILGAUGE_PART=$${shard%/6}/4 $(BIN)/python $(TOGETHER) || status=1;; \
	  esac; done; exit $$status

lint: install              ## run ruff: format and rules
	$(BIN)/ruff format --check
	$(BIN)/ruff check

types: install             ## run mypy --strict
	$(BIN)/mypy --num-workers auto
	$(BIN)/mypy docs/generate.py docs/example.py docs/website.py docs/notebook.py
	$(BIN)/mypy locustfiles
	$(BIN)/mypy bench
	$(BIN)/mypy supply_chain.py

imports: install           ## run import-linter: which folder may import which
	$(BIN)/lint-imports --no-logo

audit: install             ## look the pinned versions up in a list of vulnerabilities (1: found, 69: not reachable)
	$(BIN)/python supply_chain.py audit

dist: install              ## build sdist, wheel and bill of materials (CycloneDX) into dist/, install and use the wheel
	$(BIN)/python -m build --no-isolation --outdir dist
	$(BIN)/python supply_chain.py sbom dist
	$(BIN)/python supply_chain.py check dist

docs: install              ## write the generated parts of the docs
	$(BIN)/python docs/generate.py

site: install              ## build the website of the docs in build/site (1 minute); a broken link is an error
	$(BIN)/mkdocs build --strict --quiet

example: install           ## remake the report in reports/example
	$(BIN)/python docs/example.py

docs-check: install
	$(BIN)/python docs/generate.py --check

bench: install             ## measure the client beside others, update docs/explanation/benchmarks.md (50 minutes)
	$(BIN)/python bench/client.py --write
	$(BIN)/python bench/sending.py --write
	$(BIN)/python bench/slow_streams.py --write
	$(BIN)/python bench/analysis.py --rows 10M

bench-quick: install       ## measure the client beside others (4 minutes)
	$(BIN)/python bench/client.py --quick
	$(BIN)/python bench/sending.py --quick

intervals: install         ## measure how often intervals hold and outcomes are right, update docs/explanation/benchmarks.md (10 minutes)
	$(BIN)/python bench/intervals.py --write

bench-large: install       ## report 10 and 100 million chunk rows, within the targets
	$(BIN)/python bench/analysis.py --rows 10M 100M --check

sanitize: SEED ?= $(shell date +%s)
sanitize: install          ## test the C core with ASan, UBSan and TSan, and a million random calls (10 minutes)
	$(BIN)/python tests/sanitizers/run.py --seed $(SEED)

fuzz: SEED ?= $(shell date +%s)
fuzz: MINUTES ?= 10
fuzz: install              ## feed mutated bytes to all that reads what others write, for MINUTES (10); SEED repeats
	$(BIN)/python tests/fuzz/run.py --minutes $(MINUTES) --seed $(SEED)

chaos: TAILGAUGE_SEED ?= $(shell date +%s)
chaos: install             ## test failures of runs over many machines, planned and random (30 minutes, root)
	@echo "random kills: repeat them with TAILGAUGE_SEED=$(TAILGAUGE_SEED)"
	TAILGAUGE_FULL=1 TAILGAUGE_CHAOS=1 TAILGAUGE_SEED=$(TAILGAUGE_SEED) $(BIN)/python -m pytest tests/many_machines

torture: install           ## let each call site of a run fail once, and check what becomes of the run (40 minutes)
	$(BIN)/python tests/torture/torture.py

soak: MINUTES ?= 30
soak: install              ## run 2,000 chunks/s for MINUTES (30) and check for growth; KILL_EVERY=10 kills workers
	$(BIN)/python $(if $(KILL_EVERY),bench/soak_with_kills.py --every $(KILL_EVERY),bench/soak.py) --minutes $(MINUTES)

scale: install             ## measure the cost of 2 to 64 workers for the master (15 minutes)
	$(BIN)/python bench/scale.py --write

vllm: install              ## test against a vLLM, whose Python TAILGAUGE_VLLM names (4 minutes)
	$(if $(TAILGAUGE_VLLM),,$(error TAILGAUGE_VLLM is not set: the Python of an environment that has vLLM))
	$(BIN)/python -m pytest tests/real_engine/test_vllm.py

gateways: install build/gateways/.installed   ## test through LiteLLM's proxy, in an environment of its own (5 minutes)
	TAILGAUGE_LITELLM=$(CURDIR)/build/gateways/bin/litellm $(BIN)/python -m pytest tests/gateways

build/gateways/.installed: tests/gateways/litellm.txt
	rm -rf build/gateways
	$(PYTHON) -m venv build/gateways
	build/gateways/bin/python -m pip --quiet --disable-pip-version-check install --require-hashes --no-deps -r tests/gateways/litellm.txt
	@touch $@

clean:             ## remove .venv, caches and build outputs
	rm -rf .venv build dist .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
