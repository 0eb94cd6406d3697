# Everything from nothing: `make demo` and `make test` need python3.11, make and a package registry.
PYTHON ?= python3.11
VENV ?= .venv
WORKERS ?= 2
# Names whose pins `make lock` gives up, so that they move to their newest allowed version.
UPGRADE ?=

STAMP := $(VENV)/.installed
# One thread a test process, as several run side by side; and no hub is ever asked for a file.
TEST_SETTINGS := OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 HF_HUB_OFFLINE=1

.DELETE_ON_ERROR:
.PHONY: help install demo test check format lock clean

help:  ## show this list
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## (.*)/  make \1\t\2/' | expand -t 18

install: $(STAMP)  ## make .venv from requirements.lock and install the project in it

demo: install  ## run the quickstart suite: data, training, leaderboard, bundle
	$(VENV)/bin/trimtab bench suite=quickstart

check: install  ## lint and type check
	$(VENV)/bin/ruff check .
	$(VENV)/bin/mypy

test: check  ## lint, type check and run the test suite
	$(TEST_SETTINGS) $(VENV)/bin/pytest -n $(WORKERS) --dist loadfile

format: install  ## put the code into the project's format
	$(VENV)/bin/ruff format .
	$(VENV)/bin/ruff check --fix .

lock:  ## write requirements.lock anew, in a fresh environment (UPGRADE="ruff mypy" moves those two)
	$(PYTHON) scripts/lock.py $(addprefix --upgrade ,$(UPGRADE))

clean:  ## remove caches and build outputs; environments and runs stay
	rm -rf build dist src/*.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -not -path '*/.venv*/*' -prune -exec rm -rf {} +

$(VENV)/bin/python:
	@command -v $(PYTHON) >/dev/null || { \
		echo "$(PYTHON) was not found: install Python 3.11, or name another with make PYTHON=..." >&2; exit 2; }
	$(PYTHON) -m venv $(VENV)

# The lock holds setuptools too, so building the project fetches nothing more.
$(STAMP): requirements.lock pyproject.toml | $(VENV)/bin/python
	$(VENV)/bin/python -m pip install -r requirements.lock
	$(VENV)/bin/python -m pip install --no-deps --no-build-isolation -e .
	$(VENV)/bin/python -m pip check
	@touch $@
