# scanlake: `make help` lists the targets. The first call of a target sets up .venv automatically.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed

# Tests start the command hundreds of times. Without bytecode files each start would compile all modules again.
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.PHONY: help demo test test-fast coverage check lint types format docs screenshots lock soak soak-publish mutants bench test-engines clean

help: ## list the targets
	@grep -hE '^[a-z][a-z-]*:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | sort | awk -F'\t' '{printf "  make %-12s %s\n", $$1, $$2}'

# Set up once, and again when the lock or the project file has changed.
$(STAMP): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "scanlake requires Python 3.11 or newer; use make PYTHON=python3.12 ..."; exit 1; }
	@echo "setting up $(VENV), once: the packages of requirements.lock, about a minute and 850 MB on disk ..."
	@rm -rf $(VENV) && $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install -qq --disable-pip-version-check --no-deps --require-hashes -r requirements.lock
	@$(BIN)/python -m pip install -qq --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

demo: $(STAMP) ## run the main workflow against the emulator: sync, change, sync, verify, report, query
	@$(BIN)/scanlake demo

test: $(STAMP) ## run the whole test suite
	@$(BIN)/python -m pytest -q -n 3 --dist worksteal

test-fast: $(STAMP) ## run the tests of the modules that are not in tests/slow_modules.txt
	@$(BIN)/python -m pytest -q -n 3 --dist worksteal -m "not slow"

mutants: $(STAMP) ## edit single lines of the product at random, and look whether the nearest tests notice: make mutants ARGS="--count 100 --seed 1"
	@$(BIN)/python -m tools.mutants $(ARGS)

coverage: $(STAMP) ## run the whole test suite with branch coverage; fails below the floor in pyproject.toml
	@$(BIN)/python -m pytest -q -n 3 --dist worksteal --cov --cov-report=term

check: lint types test docs ## run lint, types, tests and docs; changes no file

lint: $(STAMP) ## run ruff (rules and format), codespell, and the project's own rules of names and sizes
	@$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/codespell && $(BIN)/python -m tools.lint

types: $(STAMP) ## run mypy in strict mode
	@$(BIN)/mypy

format: $(STAMP) ## format the code with ruff and apply safe fixes
	@$(BIN)/ruff format . && $(BIN)/ruff check --fix-only .

docs: $(STAMP) ## generate the reference pages, and build the site into build/site (strict, offline)
	@$(BIN)/python -m tools.docs.generate
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

soak: $(STAMP) ## run every test, also those that take long, with more examples: make soak SOAK_EXAMPLES=1000 SOAK_STEPS=40 SOAK_SECONDS=3600
	@SOAK_EXAMPLES=$${SOAK_EXAMPLES:-500} SOAK_STEPS=$${SOAK_STEPS:-30} SOAK_SECONDS=$${SOAK_SECONDS:-600} HYPOTHESIS_PROFILE=soak \
		$(BIN)/python -m pytest -q --timeout 0 --hypothesis-show-statistics $(ARGS)

soak-publish: $(STAMP) ## publish to SeaweedFS, its REST catalog, Postgres and Glue (moto), for long: make soak-publish ARGS="--rows 1000000"
	@$(BIN)/python -m tools.soak_publish $(ARGS)

bench: $(STAMP) ## measure speed and memory as ratios to a minimal client
	@$(BIN)/python -m tools.bench $(ARGS)

test-engines: $(STAMP) ## ask other engines about Iceberg tables, and open a lake with DuckDB 1.4, each in its own environment (installs them)
	@$(BIN)/python -m tools.engines $(ARGS)

screenshots: $(STAMP) ## take the pictures of the pages in docs/images, with Chromium
	@$(BIN)/python -m tools.docs.screenshots

lock: ## update requirements.lock (requires uv)
	uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
		--group dev --group docs pyproject.toml --output-file requirements.lock

clean: ## remove all generated files
	rm -rf $(VENV) .test-engines build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis demo-lake
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
