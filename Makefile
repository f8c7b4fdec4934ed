# scanlake: `make help` lists what can be done. The first call of any target sets up .venv by itself.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed

.DEFAULT_GOAL := help
.PHONY: help demo test check lint types format lock soak bench bench-peers clean

help: ## list the targets
	@grep -hE '^[a-z][a-z-]*:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | sort | awk -F'\t' '{printf "  make %-12s %s\n", $$1, $$2}'

# Set up once, and again only when the lock or the project file changed.
$(STAMP): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "scanlake needs Python 3.11 or newer; name one: make PYTHON=python3.12 ..."; exit 1; }
	@echo "setting up $(VENV) (once) ..."
	@rm -rf $(VENV) && $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install -qq --disable-pip-version-check --require-hashes -r requirements.lock
	@$(BIN)/python -m pip install -qq --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

demo: $(STAMP) ## the main job on the embedded emulator: sync, change, sync again, query (under a minute)
	@$(BIN)/scanlake demo

test: $(STAMP) ## the whole test suite
	@$(BIN)/python -m pytest -q -n 3 --dist worksteal

check: lint types test ## lint, types and tests; edits nothing

lint: $(STAMP) ## ruff, rules and format
	@$(BIN)/ruff check . && $(BIN)/ruff format --check .

types: $(STAMP) ## mypy, strict
	@$(BIN)/mypy

format: $(STAMP) ## let ruff format the code
	@$(BIN)/ruff format . && $(BIN)/ruff check --fix-only .

soak: $(STAMP) ## the random machines for as long as you like: make soak SOAK_EXAMPLES=1000 SOAK_STEPS=40
	@SOAK_EXAMPLES=$${SOAK_EXAMPLES:-500} SOAK_STEPS=$${SOAK_STEPS:-30} HYPOTHESIS_PROFILE=soak \
		$(BIN)/python -m pytest -q --timeout 0 --hypothesis-show-statistics tests/machine tests/sync/test_kill_steps.py \
		tests/lake/test_oracle_machine.py tests/lake/test_crash.py tests/lake/test_readers.py tests/lake/test_power.py

bench: $(STAMP) ## speed and memory, as ratios against a bare fetch
	@$(BIN)/python -m tests.bench $(ARGS)

bench-peers: $(STAMP) ## a first sync beside dlt and PyAirbyte, each in an environment of its own
	@$(BIN)/python -m tests.bench.peers $(ARGS)

lock: ## pin every dependency anew (needs uv)
	uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
		--group dev pyproject.toml --output-file requirements.lock

clean: ## remove what the other targets made
	rm -rf $(VENV) .bench-peers build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis demo-lake
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
