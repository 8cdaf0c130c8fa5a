# The whole project from a fresh clone, with nothing but make and Python 3.11 or newer:
#
#   make demo    set up, then run the demo (under a minute)
#   make test    set up, then run the whole test suite
#   make quick   the unit tests that import a package: ROOM=components, or ROOM=beat.crontab
#   make check   lint, types, unit and architecture tests: the quick proof of a change
#   make docs    build the documentation into docs/_build and run its code blocks
#   make simulate  look for faults in simulated fleets: MINUTES=30, SEED=… for the same cases again, REAL=all on real servers
#   make bench   qworker's own figures (see benchmarks/README.md)
#   make clean   remove everything these commands made
#
# PYTHON=/path/to/python chooses the interpreter, VENV=dir the virtual environment, ARGS="-x -k word" adds to pytest's arguments.

VENV ?= .venv
BIN := $(VENV)/bin
# Many tests wait, for servers, leases and deadlines, so more run at a time than there are cores.
CORES := $(shell getconf _NPROCESSORS_ONLN 2>/dev/null || echo 2)
JOBS ?= $(shell expr $(CORES) + 4)
ARGS ?=
MINUTES ?= 1
SEED ?=
FIND_PYTHON := .ci/find-python

.PHONY: demo test quick test-brokers test-cases simulate check docs bench clean
.DEFAULT_GOAL := help

.PHONY: help
help:
	@sed -n '2,/^$$/s/^# \{0,1\}//p' Makefile

$(BIN)/python:
	@python=$$(PYTHON="$(PYTHON)" sh $(FIND_PYTHON)) || exit 1; \
	echo "Creating $(VENV) with $$python"; \
	"$$python" -m venv $(VENV)

# One stamp for each set of dependencies: installing happens once, and again when pyproject.toml changes.
$(VENV)/.ready-%: pyproject.toml | $(BIN)/python
	@echo "Installing qworker$(if $(filter-out run,$*),[$*]) into $(VENV)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.$(if $(filter-out run,$*),[$*])'
	@touch $@

# The MongoDB that tests talk to, which needs a Python 3.13. Without one, and without TEST_QWORKER_MONGODB_URL, they are skipped.
$(VENV)/.ready-test: | .venv-mongoeco/.ready
.venv-mongoeco/.ready:
	@if python=$$(sh $(FIND_PYTHON) 3.13); then \
		echo "Installing mongoeco into .venv-mongoeco" && "$$python" -m venv .venv-mongoeco && \
		.venv-mongoeco/bin/python -m pip install --quiet --disable-pip-version-check 'mongoeco>=4.11,<5' 'pymongo>=4.9,<5' && touch $@; \
	else echo "No Python 3.13 here: tests of MongoDB need TEST_QWORKER_MONGODB_URL"; fi

demo: $(VENV)/.ready-run
	@$(BIN)/python -m qworker start --demo

test: $(VENV)/.ready-test
	$(BIN)/python -m pytest -q -n $(JOBS) --dist worksteal $(ARGS)

test-brokers: $(VENV)/.ready-test
	$(BIN)/python -m pytest -q -n $(JOBS) -m more_brokers tests/acceptance tests/compat tests/contract $(ARGS)

test-cases: $(VENV)/.ready-test
	$(BIN)/python -m pytest -q -n $(JOBS) -m more_cases $(ARGS)

quick: $(VENV)/.ready-test
	@test -n "$(ROOM)" || { echo "Say which package: make quick ROOM=components"; exit 2; }
	@files=$$(grep -rlE --include='*.py' "(from|import) qworker\.$(subst .,\.,$(ROOM))([ .]|$$)" tests/unit) || { echo "No unit test imports qworker.$(ROOM)"; exit 2; }; \
	$(BIN)/python -m pytest -q -n $(JOBS) --dist worksteal $$files $(ARGS)

simulate: $(VENV)/.ready-test
	$(BIN)/python -m tests.simulation --minutes $(MINUTES) --jobs $(CORES) $(if $(SEED),--seed $(SEED)) $(if $(REAL),--real $(REAL)) $(ARGS)

check: $(VENV)/.ready-test $(VENV)/.ready-lint
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -q -n $(JOBS) tests/unit tests/architecture $(ARGS)

docs: $(VENV)/.ready-test $(VENV)/.ready-docs
	$(BIN)/python -m pytest -q tests/docs $(ARGS)
	$(BIN)/python -m sphinx -W --keep-going -q -b html docs docs/_build/html
	@echo "docs/_build/html/index.html"

bench: $(VENV)/.ready-bench
	$(BIN)/python -m benchmarks

clean:
	rm -rf $(VENV) .venv-mongoeco .tox .qworker .pytest_cache .mypy_cache .ruff_cache .hypothesis docs/_build dist build
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
