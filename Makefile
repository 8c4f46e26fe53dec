# Everything here works on a fresh machine with Python >= 3.10, make, and a package index that pip can reach.
# The first command makes .venv; it is made again when pyproject.toml changes.

PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
ARGS   ?=
TORCH  ?=
REST   ?=

# Used above Python 3.10 only, behind a look at sys.version_info.
GUARDED := tomllib annotationlib annotationlib.Format annotationlib.Format.FORWARDREF \
           'inspect.signature(annotation_format)'

# Strict: a broken link, a missing reference or a page outside the navigation fails. The theme would
# otherwise announce its successor at each build.
MKDOCS := NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

export PIP_DISABLE_PIP_VERSION_CHECK := 1

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo engines engines-stop test test-gpu check docs bench bench-peers clean

help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
	@echo "  ARGS=…           is passed on: make test ARGS='-k digits', make bench ARGS='--only chain'"
	@echo "  REST=1           make test leaves out the tests that passed the last time"

demo: $(VENV)/.demo ## run a real pipeline on real data, and show what happened
	$(BIN)/upshift run examples/digits/pipeline.py
	$(BIN)/upshift show latest

test: $(VENV)/.dev $(VENV)-metaflow/.made ## run the tests; TORCH=torch==2.13.0 first installs that, Accelerate and others for the tests with it
	$(if $(TORCH),$(BIN)/python -m pip install --quiet $(TORCH) --group training)
	$(BIN)/python $(if $(ARGS),-m pytest $(ARGS),tests/side_by_side.py $(if $(REST),--rest))

test-gpu: $(VENV)/.dev ## run the tests that need an NVIDIA GPU; TORCH=torch installs that first
	$(if $(TORCH),$(BIN)/python -m pip install --quiet $(TORCH) --group training)
	$(BIN)/python -m pytest tests/gpu $(ARGS)

engines: ## install and start what some tests drive and pip does not have: a browser, Docker, Podman, a registry, Slurm, PostgreSQL, Ray, SkyPilot, Kubeflow's SDK, Azurite
	tests/browser/install
	tests/engines/install
	tests/engines/azurite
	tests/engines/start
	tests/engines/slurm start
	tests/engines/postgres start
	tests/engines/ray start
	tests/engines/skypilot
	tests/engines/kubeflow

engines-stop: ## stop what make engines started
	tests/engines/ray stop
	tests/engines/postgres stop
	tests/engines/slurm stop
	tests/engines/stop

check: $(VENV)/.dev ## formatting, lint, types, layers, nothing above Python 3.10, and the documentation builds
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache
	$(BIN)/vermin --quiet --no-tips -t=3.10- --eval-annotations $(GUARDED:%=--exclude %) src examples
	$(MKDOCS) --site-dir build/site  # with --quiet warnings would not count

docs: $(VENV)/.dev ## build the documentation into site/, for a browser: site/index.html
	$(MKDOCS)

bench: $(VENV)/.dev ## measure, and write docs/benchmarks.md
	$(BIN)/python -m benchmarks $(ARGS)

bench-peers: $(VENV)/.dev ## install other tools into .venv-peers, measure Upshift beside them, about 25 minutes
	$(BIN)/python -m benchmarks.peers $(ARGS)

clean: ## remove .venv and what the tools leave behind
	rm -rf $(VENV) $(VENV)-metaflow .venv-peers build dist site .pytest_cache .mypy_cache .ruff_cache .import_linter_cache
	find src tests examples benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +

# Its flows are run beside Upshift's; benchmarks/peers has the same version.
$(VENV)-metaflow/.made: | $(VENV)/bin/python
	$(PYTHON) -m venv $(VENV)-metaflow
	$(VENV)-metaflow/bin/python -m pip install --quiet metaflow==2.19.39
	@touch $@

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
	  { echo "Upshift needs Python 3.10 or newer; $(PYTHON) is $$($(PYTHON) --version 2>&1). Try: make PYTHON=python3.11"; exit 1; }
	$(PYTHON) -m venv $(VENV)

# Dependency groups need pip 25.1.
$(VENV)/.pip: | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --upgrade 'pip>=25.1'
	@touch $@

$(VENV)/.demo: pyproject.toml $(VENV)/.pip
	$(BIN)/python -m pip install --quiet --editable . --group demo
	@touch $@

$(VENV)/.dev: pyproject.toml $(VENV)/.pip
	$(BIN)/python -m pip install --quiet --editable . --group dev
	@touch $@ $(VENV)/.demo
