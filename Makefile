# nri-warmup. `make` alone prints what there is.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PYTEST := $(BIN)/python -m pytest
STAMP := $(VENV)/.stamp

.PHONY: help
help: ## this list
	@awk -F':.*## ' '/^[a-z][a-z0-9-]*:.*## /{printf "  %-20s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

$(STAMP): pyproject.toml tests/lab/venv.sh
	tests/lab/venv.sh "$(PYTHON)" "$(VENV)"
	@touch $@

.PHONY: venv
venv: $(STAMP) ## .venv with the package and its tools

.PHONY: demo
demo: $(STAMP) ## the main job: a model server's first request, cold and warmed, on the best runtime there is
	tests/lab/setup.sh demo
	$(BIN)/nri-warmup demo

.PHONY: lint
lint: $(STAMP) ## ruff, mypy --strict, import-linter
	$(PYTEST) -q tests/unit/test_linters.py

.PHONY: test
test: $(STAMP) ## everything that runs natively: unit, property, golden, component, kernel, e2e
	tests/lab/setup.sh test
	$(PYTEST) -q tests/unit tests/property tests/golden tests/component tests/kernel tests/e2e

.PHONY: test-quick
test-quick: $(STAMP) ## unit, property and golden: seconds, no root, no runtime
	$(PYTEST) -q tests/unit tests/property tests/golden

.PHONY: test-python
test-python: $(STAMP) ## unit to component with another interpreter: make test-python PYTHON=python3.13 VENV=.venv-3.13
	tests/lab/setup.sh component
	$(PYTEST) -q tests/unit tests/property tests/golden tests/component

.PHONY: proto
proto: $(STAMP) ## regenerate the _pb packages from proto/
	$(BIN)/python proto/generate.py

.PHONY: clean
clean: ## remove what was built here (not the shared cache)
	rm -rf build dist .venv .venv-* .pytest_cache .mypy_cache .ruff_cache .hypothesis
