# nri-warmup. `make` alone prints what there is.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PYTEST := $(BIN)/python -m pytest
STAMP := $(VENV)/.stamp

QUICK := tests/unit tests/property tests/golden
PORTABLE := $(QUICK) tests/component

.PHONY: help
help: ## this list
	@awk -F':.*## ' '/^[a-z][a-z0-9-]*:.*## /{printf "  %-20s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

$(STAMP): pyproject.toml tests/lab/venv.sh
	tests/lab/venv.sh "$(PYTHON)" "$(VENV)"
	@touch $@

.PHONY: venv
venv: $(STAMP) ## .venv with the package and its tools

.PHONY: demo
demo: $(STAMP) ## the main job: a model server's first request, cold and warmed, in pods of a real containerd
	tests/lab/setup.sh demo
	$(BIN)/nri-warmup demo $(DEMO_ARGS)

.PHONY: test
test: $(STAMP) ## everything that runs natively: unit, property, golden, component, kernel, e2e, runc and crun (root)
	tests/lab/setup.sh test
	tests/oci/setup.sh
	$(PYTEST) -q $(PORTABLE) tests/kernel tests/e2e tests/oci

.PHONY: test-quick
test-quick: $(STAMP) ## unit, property, golden, linters: seconds, no root, no runtime
	$(PYTEST) -q $(QUICK)

.PHONY: lint
lint: $(STAMP) ## ruff, mypy --strict, import-linter
	$(PYTEST) -q tests/unit/test_linters.py

.PHONY: test-python
test-python: $(STAMP) ## unit to component with another Python: make test-python PYTHON=python3.13 VENV=.venv-3.13
	tests/lab/setup.sh component
	$(PYTEST) -q $(PORTABLE)

.PHONY: proto
proto: $(STAMP) ## generate the _pb packages from proto/ anew
	$(BIN)/python proto/generate.py

include $(wildcard tests/go/targets.mk tests/lab/targets.mk tests/oci/targets.mk tests/lab/vm/targets.mk)

.PHONY: clean
clean: ## remove what was built in the tree (not the shared cache)
	rm -rf build dist .venv .venv-* .pytest_cache .mypy_cache .ruff_cache .hypothesis
