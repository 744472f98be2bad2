# Every target sets up .venv by itself, from the versions in constraints.txt, and does nothing twice.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# No download at run time: models come from the package or from packages of the dev extra.
export HF_HUB_OFFLINE := 1
export TOKENIZERS_PARALLELISM := false
# Tests run in this many processes, each on one thread: the models in them are tiny.
WORKERS ?= 2

.DEFAULT_GOAL := help
.PHONY: help demo test fast test-versions lint format docs screenshots bench release-check newcomer clean

help: ## Show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

# torch goes first: its version decides whether pip brings gigabytes of CUDA packages along.
$(BIN)/python:
	@echo 'Setting up $(VENV): a few minutes the first time.'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt torch

$(VENV)/.run: pyproject.toml constraints.txt | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable .
	@touch $@

$(VENV)/.dev: pyproject.toml constraints.txt | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev,ray]'
	@touch $@ $(VENV)/.run

demo: $(VENV)/.run ## Explain one sentence on the model inside the package
	@$(BIN)/attnflow demo

test: lint ## Lint, type check, and all tests with coverage
	$(BIN)/python -m pytest --numprocesses $(WORKERS) --dist loadfile --cov --cov-report=term $(ARGS)

fast: $(VENV)/.dev ## The quick tests only
	$(BIN)/python -m pytest -m 'not slow' $(ARGS)

test-versions: $(BIN)/python ## The quick tests with other versions of transformers and torch, in .versions/
	$(BIN)/python tests/versions.py $(ARGS)

lint: $(VENV)/.dev ## ruff, mypy --strict and the import contracts
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(VENV)/.dev ## Let ruff set the layout
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

$(VENV)/.docs: pyproject.toml constraints.txt | $(VENV)/.run
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[docs]'
	@touch $@

docs: $(VENV)/.docs ## Build the site into site/, warnings as errors
	$(BIN)/mkdocs build --strict --quiet

screenshots: $(VENV)/.dev ## Take the pictures of the page anew, with Chromium
	$(BIN)/python docs/screenshots.py

$(VENV)/.bench: benchmarks/requirements.txt benchmarks/requirements-alone.txt constraints.txt | $(VENV)/.dev
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt -r benchmarks/requirements.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps -r benchmarks/requirements-alone.txt
	@touch $@

bench: $(VENV)/.bench ## Run every benchmark at its smallest size, which records nothing; by itself each records its page
	@for b in $$(grep -l __main__ benchmarks/*.py); do echo "== $$b"; $(BIN)/python $$b --quick || exit 1; done

release-check: $(VENV)/.dev ## Build sdist and wheel, check them, install into a clean environment and try it there
	@PYTHON=$(CURDIR)/$(BIN)/python sh benchmarks/release_check.sh

newcomer: $(VENV)/.dev ## Do all that the README says, from nothing, and stop at the first line that does not do as told
	@PYTHON=$(CURDIR)/$(BIN)/python sh benchmarks/newcomer.sh

clean: ## Remove what was built
	rm -rf $(VENV) .versions build dist site .mypy_cache .ruff_cache .import_linter_cache .pytest_cache htmlcov .coverage
