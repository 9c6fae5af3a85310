# Everything runs in .venv, which is made once; remove it with `make clean`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
LIMIT := --quiet --disable-pip-version-check --constraint constraints.txt
.DEFAULT_GOAL := help
.PHONY: help demo test test-fast test-all test-processors lint bench docs format clean

help:  ## Show this help
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-16s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(VENV)/.demo  ## Install, train a federation on digits, then compare three methods over three seeds and write a report
	$(BIN)/fedstrata run configs/digits.toml rounds=30 seed=0
	$(BIN)/fedstrata compare configs/digits.toml rounds=30 test=both validation=0.1 heldout=0.2 \
	  --methods fedavg scaffold fedper --seeds 0 1 2

PYTEST := $(BIN)/python -m pytest --numprocesses 2 --dist worksteal
SHORT := -m "not full and not slow"
FAST := tests/laws tests/golden tests/core tests/client tests/common tests/config tests/wire tests/analysis tests/test_readme.py

test: $(VENV)/.dev  ## Install, then test: every method under every law, each case once; minutes
	$(PYTEST) $(SHORT) tests

test-fast: $(VENV)/.dev  ## Test the core, the wire and the laws of a few methods; within a minute
	$(PYTEST) $(SHORT) -k "not test_laws.py or fedavg or scaffold or fedper" $(FAST)

test-all: $(VENV)/.dev  ## Run all tests: every example, pair and toy, and what takes minutes each
	$(PYTEST) tests

test-processors: $(VENV)/.dev  ## Test laws, golden runs and executors under each instruction set that this processor has
	$(BIN)/python tests/processors.py

lint: $(VENV)/.dev  ## Check style, format and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(VENV)/.dev  ## Mend style and format
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(VENV)/.demo  ## Time the executors against a bare PyTorch loop
	$(BIN)/fedstrata bench

docs: $(VENV)/.docs  ## Build the documentation site into site/, strictly
	$(BIN)/python -m mkdocs build --quiet
	@echo "site/index.html"

clean:  ## Remove .venv and what tools leave behind
	rm -rf $(VENV) site build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis src/*.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(VENV)/.demo: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; v = sys.version_info[:2]; sys.exit(None if v >= (3, 11) else f"fedstrata needs Python 3.11 or newer; {sys.executable} is {v[0]}.{v[1]}. Say: make PYTHON=python3.11 demo")'
	@echo "installing into $(VENV) (once; PyTorch is large) ..."
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/pip install $(LIMIT) torch
	@$(BIN)/pip install $(LIMIT) --editable .
	@touch $@

$(VENV)/.dev: $(VENV)/.demo
	@$(BIN)/pip install $(LIMIT) --editable '.[dev]'
	@touch $@

$(VENV)/.docs: $(VENV)/.demo
	@$(BIN)/pip install $(LIMIT) --editable '.[docs]'
	@touch $@
