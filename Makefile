# Everything a newcomer needs. Each target makes .venv first; nothing else is required
# but python3 (3.11 or newer) and make.
#
#   make demo    a small sweep on declared devices, no GPU needed
#   make test    all suites but the proofs  (ARGS='-k name' goes to pytest)
#   make proofs  what takes minutes: real frameworks, some 3 GB of them, and the training
#                examples preempted ten times each
#   make lint    ruff, mypy, import-linter
#   make bench   speed, beside its peers  (ARGS='--quick' goes to the benchmark)
#   make bench-planner  the planner's goals on recorded workloads; takes an hour
#                       (ARGS='--quick': some minutes)
#   make golden  replay recorded workloads: every decision as recorded  (ARGS='--only muri')
#   make clean   remove what the above made, except .venv and .venv-frameworks

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

# Two stamps: to run stoker, and to work on it. A changed file makes its stamp old.
.venv/.installed: pyproject.toml
	PYTHON="$(PYTHON)" .ci/venv -e .
	touch $@

.venv/.dev: .venv/.installed requirements-dev.txt
	PYTHON="$(PYTHON)" .ci/venv -r requirements-dev.txt -e .
	touch $@

# Real frameworks, for tests/frameworks alone. Where they cannot be had the script says so and
# leaves no stamp, and the tests go on without them.
.venv-frameworks/.installed: requirements-frameworks.txt .ci/frameworks
	@PYTHON="$(PYTHON)" .ci/frameworks
