# Each target creates .venv first; only python3 (3.11 or newer) and make are required.
#
#   make demo    a small sweep on declared devices, no GPU needed
#   make test    all suites except the proofs  (ARGS='-k name' goes to pytest)
#   make proofs  suites that take minutes: real frameworks (about 3 GB), the training examples
#                preempted ten times each, a newer Slurm in a chroot (root; about 190 MB), and a
#                real Kubernetes (root; built once in 10 to 25 minutes, kept in .cache)
#   make lint    ruff, mypy, import-linter
#   make bench   speed, compared with other tools  (ARGS='--quick' goes to the benchmark)
#   make bench-planner  the planner's goals on recorded workloads; takes an hour
#                       (ARGS='--quick': a few minutes)
#   make golden  run fixed workloads: every decision as recorded  (ARGS='--only muri')
#   make ui      build the web page from ui/ (needs Node and npm; the result is committed)
#   make ui-types  types of the HTTP API for the web page, after a change of the API
#   make clean   remove what these targets created, except .venv, .venv-frameworks, .newer-slurm,
#                .kubernetes, .cache and ui/node_modules

PYTHON ?= python3
BIN := .venv/bin
ARGS ?=

.PHONY: demo test proofs lint ui ui-check ui-types bench bench-planner golden clean
.DELETE_ON_ERROR:

demo: .venv/.installed
	@PATH="$(CURDIR)/$(BIN):$$PATH" examples/demo/demo.sh

test: .venv/.dev ui/node_modules/.installed
	@.ci/packages test
	@.ci/test $(BIN)/python -m "not proof" $(ARGS)

proofs: .venv/.dev .venv-frameworks/.installed .newer-slurm/.installed .kubernetes/.installed
	@.ci/packages test
	@STOKER_PREEMPTIONS=10 .ci/test $(BIN)/python -m proof -n 2 tests/frameworks tests/containers tests/slurm tests/kubernetes $(ARGS)

lint: .venv/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	@$(MAKE) --no-print-directory ui-check

ui: ui-types
	cd ui && npm ci --ignore-scripts --no-audit --no-fund && node_modules/.bin/tsc && node build.mjs
	@touch ui/node_modules/.installed

ui-types: .venv/.installed
	$(BIN)/python ui/api_types.py

# Without Node: the built page belongs to its sources, and its types to the API.
ui-check: .venv/.installed
	$(BIN)/python ui/check.py
	$(BIN)/python ui/api_types.py --check

bench: .venv/.installed
	$(BIN)/python -m benchmarks $(ARGS)

bench-planner: .venv/.installed
	@$(BIN)/python -m benchmarks.planner $(ARGS)

golden: .venv/.installed
	@$(BIN)/python -m benchmarks.golden $(ARGS)

clean:
	rm -rf build dist .bench .pytest_cache .mypy_cache .ruff_cache .import_linter_cache
	rm -rf .hypothesis .schemathesis schemathesis-report ui/dist-dev ui/test-dist
	find src tests benchmarks examples -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true

# Two stamps: to run stoker, and to develop it. A change of its requirements outdates a stamp.
.venv/.installed: pyproject.toml
	PYTHON="$(PYTHON)" .ci/venv -e .
	touch $@

.venv/.dev: .venv/.installed requirements-dev.txt
	PYTHON="$(PYTHON)" .ci/venv -r requirements-dev.txt -e .
	touch $@

# Compiler and accessibility rules for tests/ui. Without Node the script prints which tests are
# skipped, and creates no stamp.
ui/node_modules/.installed: ui/package-lock.json .ci/node-modules
	@.ci/node-modules

# Real frameworks, for tests/frameworks only. If they cannot be installed the script prints why and
# creates no stamp, and the tests run without them.
.venv-frameworks/.installed: requirements-frameworks.txt .ci/frameworks
	@PYTHON="$(PYTHON)" .ci/frameworks

# Another Debian suite, for tests/slurm. Where it cannot be had, the script prints why.
.newer-slurm/.installed: .ci/newer-slurm
	@.ci/newer-slurm

# A real Kubernetes, for tests/kubernetes. Where it cannot be built, the script prints why.
.kubernetes/.installed: .ci/kubernetes
	@.ci/kubernetes
