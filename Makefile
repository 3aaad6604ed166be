# The two commands of the README are `make demo` and `make test`; both set up what they need.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
CONSTRAINTS := constraints.txt
USERS_HAVE := isal|numpy|rich|typer|torch|transformers|accelerate|peft|megatron-core
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint $(CONSTRAINTS)
TORCH := $(or $(shell sed -n 's/^\(torch==.*\)/\1/p' $(CONSTRAINTS)),torch)
NEWER_MEGATRON := megatron-core==0.19.2
TE := $(or $(shell sed -n 's/^\(transformer-engine==.*\)/\1/p' $(CONSTRAINTS)),transformer-engine)

# Tests start hundreds of processes: what is compiled is kept, whatever the environment says.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: demo test test-all test-megatron test-least test-newest quick lint bench bench-device docs dist clean help

help:
	@echo "make demo      set up, and run the main job on a small built-in model"
	@echo "make test      set up, lint, and pass the tests (minutes)"
	@echo "make test-all  the long tests too, and those of Megatron on a newer version"
	@echo "make test-megatron  the tests of Megatron alone, on $(NEWER_MEGATRON)"
	@echo "make test-least, make test-newest  the quick tests on the least versions that pyproject.toml declares,"
	@echo "               and on the newest that there are (which brings the GPU build of torch)"
	@echo "make lint      ruff and mypy alone"
	@echo "make bench     every benchmark beside its peers and its limit (minutes), and the page of the figures"
	@echo "make bench-device  the same on a machine with many cores and a GPU; installs nothing"
	@echo "make docs      the documentation as a site, in build/site"
	@echo "make dist      sdist and wheel in build/dist, checked, and the demo from the wheel"

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

# torch by its exact version first: a range would take the registry's newest, CUDA build and all.
$(VENV)/.run: $(BIN)/python pyproject.toml $(CONSTRAINTS)
	$(PIP) "$(TORCH)"
	$(PIP) --editable ".[torch]"
	@touch $@

# TransformerEngine's wheel is pure Python, and has a folder of its own: in site-packages, without its compiled
# extension, it would break Megatron-core and PEFT, which take it for a working one.
$(VENV)/.test: $(VENV)/.run
	$(PIP) --editable ".[test]"
	$(PIP) --no-deps --only-binary=:all: --upgrade --target $(VENV)/transformer_engine "$(TE)"
	@touch $@

# A library of other sources is not called: it is built again when they change.
$(VENV)/.kernel: $(VENV)/.run hatch_build.py $(wildcard src/intarsia/kernel/*.[ch])
	-$(BIN)/python hatch_build.py
	@touch $@

demo: $(VENV)/.kernel
	$(BIN)/intarsia demo

lint: $(VENV)/.test $(VENV)/.kernel
	$(BIN)/ruff check src tests benchmarks attacks examples docs
	$(BIN)/ruff format --check src tests benchmarks attacks examples docs
	$(BIN)/mypy

test: lint quick

quick: $(VENV)/.test $(VENV)/.kernel
	$(BIN)/python -m pytest -m "not slow" -n 2 --dist worksteal --durations=10 -rfEs --disable-warnings --hypothesis-profile=same

test-all: lint test-megatron
	$(BIN)/python -m pytest --durations=20 -rfEs --disable-warnings --hypothesis-profile=new
	INTARSIA_KERNEL=off $(BIN)/python -m pytest -m "not slow" -n 2 --dist worksteal -rfEs --disable-warnings --hypothesis-profile=same

# What users have: each in an environment of its own. mypy, ruff and Megatron-core's tests stay with the pinned versions.
test-least: $(VENV)/least.txt
	$(MAKE) VENV=$(VENV)/least CONSTRAINTS=$< quick

test-newest: $(VENV)/newest.txt
	$(MAKE) VENV=$(VENV)/newest CONSTRAINTS=$< quick

$(VENV)/newest.txt: $(BIN)/python
	@touch $@

$(VENV)/least.txt: $(BIN)/python pyproject.toml
	sed -nE 's/^ *"($(USERS_HAVE))>=([0-9.]+).*/\1==\2/p' pyproject.toml > $@

# A second Megatron-core in a folder of its own, without what it depends on: the venv has that for the first one.
# It asks for Python 3.12; its core runs on 3.11.
$(VENV)/.megatron_core_0_19: $(VENV)/.test Makefile
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --only-binary=:all: \
		--ignore-requires-python --upgrade --target $(VENV)/megatron_core_0_19 "$(NEWER_MEGATRON)"
	@touch $@

test-megatron: $(VENV)/.megatron_core_0_19
	PYTHONPATH=$(CURDIR)/$(VENV)/megatron_core_0_19 MEGATRON_CORE=$(NEWER_MEGATRON) \
		$(BIN)/python -m pytest -m megatron --durations=10 -rfEs --disable-warnings --hypothesis-profile=same

# The peers' wheels lie in a folder of their own, without what they depend on: they ask for torch in versions of theirs.
$(VENV)/.bench: $(VENV)/.test
	$(PIP) --no-deps --only-binary=:all: --upgrade --target $(VENV)/peers xxhash humanize
	-$(PIP) --no-deps --only-binary=:all: --upgrade --target $(VENV)/peers fastsafetensors
	-$(PIP) --no-deps --only-binary=:all: --upgrade --target $(VENV)/peers runai-model-streamer
	@touch $@

bench: $(VENV)/.bench $(VENV)/.kernel
	PYTHONPATH=$(CURDIR)/$(VENV)/peers $(BIN)/python -m benchmarks.suite $(BENCH)

bench-device:
	-$(PYTHON) hatch_build.py
	PYTHONPATH=$(CURDIR)/src:$$PYTHONPATH $(PYTHON) -m benchmarks.suite --device $(BENCH)

$(VENV)/.docs: $(BIN)/python pyproject.toml $(CONSTRAINTS)
	$(PIP) --editable ".[docs]"
	@touch $@

docs: $(VENV)/.docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet --site-dir build/site

$(VENV)/.dist: $(BIN)/python pyproject.toml $(CONSTRAINTS)
	$(PIP) build twine
	@touch $@

# Twice: without torch, as `pip install intarsia` gives it, and with the torch that the tests use.
dist: $(VENV)/.dist
	rm -rf build/dist build/clean
	$(BIN)/python -m build --outdir build/dist
	$(BIN)/twine check --strict build/dist/*
	$(PYTHON) -m venv build/clean
	build/clean/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt build/dist/*.whl
	cd build/clean && bin/intarsia demo
	build/clean/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt "$(TORCH)"
	cd build/clean && bin/intarsia demo && bin/python -c "import intarsia.live.load"

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis tests/fixtures/unpacked
