# Everything from nothing: `make demo` and `make test` need Python, make, git and a package registry.
PYTHONS := python3.11 python3.12 python3.13
# The first of these that runs; PYTHON=... names another.
ifndef PYTHON
PYTHON := $(firstword \
	$(foreach one,$(PYTHONS),$(shell $(one) -c "print('$(one)')" 2>/dev/null)) python3.11)
endif
VENV ?= .venv
# Each Python has a lock. An environment that is there keeps its own Python.
VERSION := $(shell $(firstword $(wildcard $(VENV)/bin/python) $(PYTHON)) -c \
	"import sys; print('%d.%d' % sys.version_info[:2])" 2>/dev/null)
LOCK := $(if $(filter-out 3.11,$(VERSION)),requirements-$(VERSION).lock,requirements.lock)
# What packages ask for, nothing here imports, and not every lock has (scripts/lock.py).
UNUSED := defusedxml|evdev|importlib-metadata|importlib-resources|labmaze|loguru|mink|netifaces
UNUSED := $(UNUSED)|pin|pynput|sshkeyboard|tyro|zmq
# Test processes side by side.
WORKERS ?= 2
# Names whose pins `make lock` gives up, so that they move to their newest allowed version.
UPGRADE ?=

STAMP := $(VENV)/.installed
# One thread a test process, as several run side by side; and no hub is ever asked for a file. The
# hundreds of processes that tests start read what Python has compiled, and do not compile it again.
TEST_SETTINGS := OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 HF_HUB_OFFLINE=1 PYTHONDONTWRITEBYTECODE=
# More words for pytest: PYTEST_WORDS="-m bits".
PYTEST_WORDS ?=
# A folder of tests, or a file of them, for `make quick`: ROOM=datasets, ROOM=benchmarks/cli.
ROOM ?=
# Another kind of processor to compute as: EMULATE=avx2 (most laptops) or EMULATE=nehalem (2008).
EMULATE ?=

# Each library is told by a variable of its own, read when it is imported. Features that a processor
# lacks anyway are passed over by numpy, so these hold on every x86-64.
AVX512 := AVX512F AVX512CD AVX512_KNL AVX512_KNM AVX512_SKX AVX512_CLX AVX512_CNL AVX512_ICL AVX512_SPR
EMULATE_avx2 := OPENBLAS_CORETYPE=Haswell NUMBA_CPU_NAME=haswell NUMBA_CPU_FEATURES= \
	ATEN_CPU_CAPABILITY=avx2 MKL_ENABLE_INSTRUCTIONS=AVX2 MKL_CBWR=AVX2 ONEDNN_MAX_CPU_ISA=AVX2 \
	XLA_FLAGS="$${XLA_FLAGS:-} --xla_cpu_max_isa=AVX2" NPY_DISABLE_CPU_FEATURES="$(AVX512)"
EMULATE_nehalem := OPENBLAS_CORETYPE=Nehalem NUMBA_CPU_NAME=nehalem NUMBA_CPU_FEATURES= \
	ATEN_CPU_CAPABILITY=default MKL_ENABLE_INSTRUCTIONS=SSE4_2 MKL_CBWR=COMPATIBLE \
	ONEDNN_MAX_CPU_ISA=SSE41 XLA_FLAGS="$${XLA_FLAGS:-} --xla_cpu_max_isa=SSE4_2" \
	NPY_DISABLE_CPU_FEATURES="$(AVX512) AVX2 FMA3 F16C AVX" \
	GLIBC_TUNABLES=glibc.cpu.hwcaps=-AVX512F,-AVX512VL,-AVX2,-FMA,-FMA4
ifneq ($(filter-out avx2 nehalem,$(EMULATE)),)
$(error EMULATE=$(EMULATE): it is avx2, nehalem or nothing)
endif

.DELETE_ON_ERROR:
.PHONY: help install demo test test-avx2 test-nehalem run-tests quick check docs format lock clean

help:  ## show this list
	@grep -E '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z0-9-]+):.*## (.*)/  make \1\t\2/' | expand -t 22

install: $(STAMP)  ## make .venv from the lock of its Python and install the project in it

demo: install  ## run the quickstart suite: data, training, leaderboard, bundle
	$(VENV)/bin/trimtab bench suite=quickstart

check: install  ## lint and type check
	$(VENV)/bin/ruff check .
	$(VENV)/bin/mypy

# The checks take one core for a minute, so they run beside the first tests.
test: install  ## lint, type check and run the test suite
	$(MAKE) -j 2 check run-tests

test-avx2:  ## run the test suite as on a processor without AVX-512
	$(MAKE) run-tests EMULATE=avx2

test-nehalem:  ## run the test suite as on a processor without AVX
	$(MAKE) run-tests EMULATE=nehalem

PYTEST = $(TEST_SETTINGS) $(VENV)/bin/pytest -n $(WORKERS) --dist worksteal --timeout=900

run-tests: install
	$(EMULATE_$(EMULATE)) $(PYTEST) --durations=50 --durations-min=1 $(PYTEST_WORDS)

quick: install  ## run the tests of one folder but for the slow ones: make quick ROOM=datasets
	$(PYTEST) -m "not slow" tests/$(ROOM) $(PYTEST_WORDS)

docs: install  ## build the documentation site into site/; a broken link ends it
	NO_MKDOCS_2_WARNING=1 $(VENV)/bin/mkdocs build

format: install  ## put the code into the project's format
	$(VENV)/bin/ruff format .
	$(VENV)/bin/ruff check --fix .

lock:  ## write the lock of PYTHON anew, in a fresh environment (UPGRADE="ruff mypy" moves those two)
	$(PYTHON) scripts/lock.py $(addprefix --upgrade ,$(UPGRADE))

clean:  ## remove caches and build outputs; environments and runs stay
	rm -rf build dist site src/*.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -not -path '*/.venv*/*' -prune -exec rm -rf {} +

$(VENV)/bin/python:
	@test -n "$(VERSION)" || { echo "$(PYTHON) was not found:" \
		"install one of $(PYTHONS), or name it with make PYTHON=..." >&2; exit 2; }
	$(PYTHON) -m venv $(VENV)

requirements-%.lock:
	@echo "there is no lock for Python $*: install one of $(PYTHONS), or name it with make PYTHON=..." >&2
	@exit 2

# A lock is whole, so nothing is resolved but what the build of torch at hand brings: with CUDA, the
# packages that it pins itself. The lock holds setuptools too, so building the project fetches nothing.
$(STAMP): $(LOCK) pyproject.toml | $(VENV)/bin/python
	$(VENV)/bin/python -m pip install --no-deps -r $(LOCK)
	$(VENV)/bin/python -m pip install -c $(LOCK) torch
	$(VENV)/bin/python -m pip install --no-deps --no-build-isolation -e .
	@! $(VENV)/bin/python -m pip check | grep -vE "^No broken|requires ($(UNUSED)),"
	@touch $@
