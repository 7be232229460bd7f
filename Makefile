# Every target works on a clean clone with Python 3.11 or later, pip and make: it makes .venv
# and installs into it what it needs, from pyproject.toml and constraints/ci.txt.

PYTHON ?= python3
VENV := .venv
RUN := $(VENV)/bin/python -m
COMPILED := $(wildcard src/fastloader/*/*.[ch] src/fastloader/*/*/*.[ch])
REQUIREMENTS := pyproject.toml setup.py constraints/ci.txt $(COMPILED)

# Tests and benchmarks start hundreds of interpreters, which need not all compile the package anew.
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := check
.PHONY: demo test check lint format layers types spelling docs examples bench-smoke kernels wheel launches in-pairs environment clean

## What a user runs

demo: $(VENV)/demo.stamp  ## Train on real images through FastLoader and through DataLoader
	@$(VENV)/bin/python examples/demo.py $(DEMO_OPTIONS)

test: $(VENV)/test.stamp  ## All tests, and the examples of the documentation, by two processes
	@$(RUN) tests.halves

## What a developer runs before a commit

check: lint layers types spelling examples  ## Everything quick

lint: $(VENV)/dev.stamp
	@$(RUN) ruff format --check .
	@$(RUN) ruff check .

format: $(VENV)/dev.stamp
	@$(RUN) ruff format .
	@$(RUN) ruff check --fix .

layers: $(VENV)/dev.stamp
	@$(VENV)/bin/lint-imports

types: $(VENV)/dev.stamp
	@$(RUN) mypy

spelling: $(VENV)/dev.stamp
	@$(VENV)/bin/codespell

examples: $(VENV)/dev.stamp  ## The code in README.md, docs and docstrings
	@$(RUN) pytest --quiet --durations=0 src docs README.md tests/architecture

docs: $(VENV)/dev.stamp  ## docs/_build/html
	@$(RUN) sphinx --fail-on-warning --nitpicky --quiet -b html docs docs/_build/html

bench-smoke: $(VENV)/dev.stamp  ## Every benchmark once, small, so that it does not rot
	@$(VENV)/bin/python benchmarks/smoke.py

kernels:  ## The compiled part in place, without installing; a failure is shown and left
	@$(VENV)/bin/python setup.py --quiet build_ext --inplace --force

# With what dev holds: that pyproject.toml names all that a build needs was seen when this was installed.
wheel: $(VENV)/dev.stamp  ## Build the wheel and use it without the sources
	@rm -rf build dist $(VENV)/wheel && $(RUN) build --quiet --wheel --no-isolation
	@$(RUN) pip install --quiet --no-deps --target $(VENV)/wheel dist/*.whl
	@cd $(VENV)/wheel && PYTHONPATH=. ../bin/python -c "import fastloader; \
	  assert '/wheel/' in fastloader.__file__, fastloader.__file__"
	@! echo '#include <Python.h>' | $(CC) -E -I$$($(VENV)/bin/python -c \
	  "import sysconfig; print(sysconfig.get_path('include'))") - >/dev/null 2>&1 || test $$(find $(VENV)/wheel/fastloader -name '*.so' | wc -l) = $$(grep -c 'Extension(' setup.py) || \
	  { echo "There is a compiler, $(CC), but the wheel lacks what it should have compiled." && false; }

launches: $(VENV)/dev.stamp  ## Ranks started by torchrun (2, 3, and two nodes of two) and by Ray
	@$(RUN) pytest --quiet -m "slow and not gpu" tests/distributed tests/integrations

in-pairs: $(VENV)/dev.stamp  ## What reads the sources, two at a time
	@$(MAKE) --no-print-directory -j2 --output-sync=target docs lint layers types spelling wheel

clean:
	find src -name '*.so' -delete
	rm -rf build $(VENV) dist docs/_build demo-output .pytest_cache .mypy_cache .ruff_cache .hypothesis

## The environment

environment: $(VENV)/dev.stamp

$(VENV)/pip.stamp:
	@$(PYTHON) -c "import sys; sys.version_info >= (3, 11) or \
	  sys.exit('FastLoader needs Python 3.11 or later; choose one with: make PYTHON=python3.12')"
	@$(PYTHON) -m venv $(VENV)
	@$(RUN) pip install --quiet --disable-pip-version-check "pip>=25.1"  # --group
	@touch $@

# Of group dev, the others are parts. What is never imported need not be compiled.
$(VENV)/%.stamp: $(REQUIREMENTS) | $(VENV)/pip.stamp
	@echo "Installing into $(VENV) (group $*; the first time takes some minutes)"
	@$(RUN) pip install --quiet --disable-pip-version-check --no-compile \
	  --constraint constraints/ci.txt --editable . --group $*
	@touch $@ $(if $(filter dev,$*),$(VENV)/test.stamp $(VENV)/demo.stamp)
