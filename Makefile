# The package is installed, editable, into .venv; one build tree, build/dev, serves it and the C++ tests.
VENV := .venv
PYTHON := $(VENV)/bin/python
JOBS := $(shell nproc)
export CMAKE_BUILD_PARALLEL_LEVEL ?= $(JOBS)
export CTEST_PARALLEL_LEVEL ?= $(JOBS)

SOURCES = git ls-files --cached --others --exclude-standard --deduplicate --
CPP = $(SOURCES) '*.h' '*.cpp' '*.cu' '*.cuh'

.PHONY: help build demo test judge matrix gpu arm sse bench fuzz crash distros lint lint-format lint-tidy lint-python format \
  docs wheel reproduce clean
.DEFAULT_GOAL := help

help:
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "make %-9s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: build $(VENV)/.view ## a simulated arm, aligned, and its table, voxelized: tables, figures, a report and a view; it first builds, for minutes
	@$(VENV)/bin/robocache demo --output build

build: build/dev/.installed ## the package, editable in .venv, and the C++ tests, in build/dev
	@cmake --build build/dev

test: $(VENV)/.ready build ## every C++ and Python test that this machine can run
	@rm -f build/dev/ctest.xml build/dev/pytest.xml; failed=0; \
	ctest --preset dev --progress || failed=1; \
	OMP_WAIT_POLICY=PASSIVE $(PYTHON) -m pytest -n $(JOBS) --maxprocesses 8 --dist worksteal --durations 20 \
	  --junitxml=build/dev/pytest.xml || failed=1; \
	$(PYTHON) tools/summary.py build/dev/ctest.xml build/dev/pytest.xml || failed=1; \
	exit $$failed

judge: $(VENV)/.ready build .judge/.ready ## LeRobot's own library opens what we export, and its policies train on rc.Loader; needs a Python 3.12
	@$(PYTHON) tests/judge/make.py build/judge && .judge/bin/python tests/judge/judge.py build/judge && \
	  .judge/bin/python tests/judge/policies.py build/judge

matrix: build ## the torch tests on each torch, Python and NumPy that is served, for hours; writes docs/versions.md
	@tools/matrix

gpu: ## on a machine with a GPU: tests, compute-sanitizer, profile, benchmark (tools/gpu STEP... for some of them)
	@tools/gpu

arm: $(VENV)/.demo ## for 64-bit ARM: the library, the C++ tests and the golden tests of Python, run by qemu; as root it installs both
	@tools/arm

sse: $(VENV)/.ready build ## the same tests on an x86 CPU without AVX2, which qemu emulates
	@tools/sse

bench: $(VENV)/.ready build ## ours beside torch, as tables
	@$(PYTHON) -m bench.run

fuzz: $(VENV)/.ready ## every fuzz target for 5 minutes
	@cmake --preset asan -DROBOCACHE_FUZZ_SECONDS=300 -DROBOCACHE_FUZZ_SEED=0 >/dev/null && \
	cmake --build --preset fuzz && ctest --preset fuzz; failed=$$?; \
	cmake --preset asan -DROBOCACHE_FUZZ_SECONDS=30 -DROBOCACHE_FUZZ_SEED=1 >/dev/null; exit $$failed

crash: $(VENV)/.ready build ## power failures at every call of every write, and every call failing, for about an hour
	@ROBOCACHE_CRASH=1 $(PYTHON) -m pytest tests/python/test_crash.py tests/python/test_cache_faults.py tests/python/test_shared.py

distros: ## the README's install, demo, tests and every compiler in chroots of Debian 12, 13 and sid, for hours; needs root; writes docs/versions.md
	@tools/distros

lint: $(VENV)/.ready build lint-format lint-tidy lint-python ## clang-format, clang-tidy, ruff, mypy

lint-format:
	@$(CPP) | xargs -r clang-format --dry-run -Werror

lint-tidy:
	@$(SOURCES) 'src/*.cpp' | xargs -r -n 1 -P $(JOBS) clang-tidy -p build/dev --quiet

lint-python:
	@$(VENV)/bin/ruff check --quiet .
	@$(VENV)/bin/ruff format --check --quiet .
	@$(VENV)/bin/mypy
	@$(VENV)/bin/python -m bench.table --check

format: $(VENV)/.ready ## fixes what clang-format and ruff can fix
	@$(CPP) | xargs -r clang-format -i
	@$(VENV)/bin/ruff check --quiet --fix . ; $(VENV)/bin/ruff format --quiet .

docs: $(VENV)/.ready build ## the documentation site, in build/site; a warning or a link that leads nowhere is an error
	@NO_MKDOCS_2_WARNING=1 $(PYTHON) -m mkdocs build --strict --quiet && echo "The site is in build/site."

wheel: $(VENV)/.ready ## for every GPU, into dist/: a wheel for Python 3.12 and later and one for 3.11, checked in each Python from 3.11 to 3.14 that is here
	@rm -rf dist; for version in 3.12 3.11; do if python=$$(tools/find-python $$version); then \
	  tools/build-wheel dist $$python --config-settings=cmake.define.ROBOCACHE_ALL_ARCHITECTURES=ON || exit 1; fi; done
	@tools/check-wheel dist/*.whl

reproduce: $(VENV)/.ready ## builds the wheel twice at different paths, with kernels for one GPU, and compares the bytes
	@tools/check-reproducible --config-settings=cmake.define.CMAKE_CUDA_ARCHITECTURES=90-real

clean: ## everything that was built; keeps .venv
	@rm -rf build dist python/robocache/_core.* .pytest_cache .hypothesis .mypy_cache .ruff_cache

build/dev/.installed: pyproject.toml $(VENV)/.demo
	@mkdir -p build && echo "Building; this takes minutes the first time. The log is build/install.log."
	@$(PYTHON) -m pip install -v --no-deps --no-build-isolation -e . >build/install.log 2>&1 || \
	  { cat build/install.log; exit 1; }
	@touch $@

.judge/.ready: tools/judge
	@tools/judge .judge && touch $@

# What a build and the demo need; and with torch, JAX and the tools everything.
$(VENV)/.demo: pyproject.toml tools/setup
	@tools/setup $(VENV) demo && touch $@

$(VENV)/.ready: $(VENV)/.demo
	@tools/setup $(VENV) && touch $@

# Rerun. Where pip has none for this machine, the demo says that there is no view.
$(VENV)/.view: $(VENV)/.demo
	@if tools/setup $(VENV) view; then touch $@; fi
