# Each target creates .venv first; only python3 (3.11 or newer) and make are required.
#
#   make demo    a small sweep on declared devices, no GPU needed
#   make test    all suites except the proofs  (ARGS='-k name' goes to pytest)
#   make proofs  suites that take minutes: real frameworks (about 3 GB), and the training
#                examples preempted ten times each
#   make lint    ruff, mypy, import-linter
#   make bench   speed, compared with other tools  (ARGS='--quick' goes to the benchmark)
#   make bench-planner  the planner's goals on recorded workloads; takes an hour
#                       (ARGS='--quick': a few minutes)
#   make golden  run fixed workloads: every decision as recorded  (ARGS='--only muri')
#   make clean   remove what these targets created, except .venv and .venv-frameworks

PYTHON ?= python3
BIN := .venv/bin
ARGS ?=

.PHONY: demo test proofs lint bench bench-planner golden clean
.DELETE_ON_ERROR:

demo: .venv/.installed
	@PATH="$(CURDIR)/$(BIN):$$PATH" examples/demo/demo.sh

test: .venv/.dev
	@.ci/packages test
	@.ci/test $(BIN)/python -m "not proof" $(ARGS)

proofs: .venv/.dev .venv-frameworks/.installed
	@.ci/packages test
	@STOKER_PREEMPTIONS=10 .ci/test $(BIN)/python -m proof -n 2 tests/frameworks tests/containers $(ARGS)

lint: .venv/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: .venv/.installed
	$(BIN)/python -m benchmarks $(ARGS)

bench-planner: .venv/.installed
	@$(BIN)/python -m benchmarks.planner $(ARGS)

golden: .venv/.installed
	@$(BIN)/python -m benchmarks.golden $(ARGS)

clean:
	rm -rf build dist .bench .pytest_cache .mypy_cache .ruff_cache .import_linter_cache
	rm -rf .hypothesis .schemathesis schemathesis-report
	find src tests benchmarks examples -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true

# Two stamps: to run stoker, and to develop it. A change of its requirements outdates a stamp.
.venv/.installed: pyproject.toml
	PYTHON="$(PYTHON)" .ci/venv -e .
	touch $@

.venv/.dev: .venv/.installed requirements-dev.txt
	PYTHON="$(PYTHON)" .ci/venv -r requirements-dev.txt -e .
	touch $@

# Real frameworks, for tests/frameworks only. If they cannot be installed the script prints why and
# creates no stamp, and the tests run without them.
.venv-frameworks/.installed: requirements-frameworks.txt .ci/frameworks
	@PYTHON="$(PYTHON)" .ci/frameworks
