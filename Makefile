# The two commands of the README are `make demo` and `make test`; both set up what they need.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt
TORCH := $(shell sed -n 's/^\(torch==.*\)/\1/p' constraints.txt)
TE := $(shell sed -n 's/^\(transformer-engine==.*\)/\1/p' constraints.txt)

.PHONY: demo test test-all lint bench clean help

help:
	@echo "make demo      set up, and run the main job on a small built-in model"
	@echo "make test      set up, lint, and pass the tests (minutes)"
	@echo "make test-all  the long tests too"
	@echo "make lint      ruff and mypy alone"
	@echo "make bench     every benchmark beside its peer"

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

# torch by its exact version first: a range would take the registry's newest, CUDA build and all.
$(VENV)/.run: $(BIN)/python pyproject.toml constraints.txt
	$(PIP) "$(TORCH)"
	$(PIP) --editable ".[torch]"
	@touch $@

# TransformerEngine's wheel is pure Python, and has a folder of its own: in site-packages, without its compiled
# extension, it would break Megatron-core and PEFT, which take it for a working one.
$(VENV)/.test: $(VENV)/.run
	$(PIP) --editable ".[test]"
	$(PIP) --no-deps --only-binary=:all: --upgrade --target $(VENV)/transformer_engine "$(TE)"
	@touch $@

demo: $(VENV)/.run
	$(BIN)/intarsia demo

lint: $(VENV)/.test
	$(BIN)/ruff check src tests benchmarks attacks examples
	$(BIN)/ruff format --check src tests benchmarks attacks examples
	$(BIN)/mypy

test: lint
	$(BIN)/python -m pytest -m "not slow" -n 2 --dist worksteal --durations=10 -rs --hypothesis-profile=same

test-all: lint
	$(BIN)/python -m pytest --durations=20 -rs --hypothesis-profile=new

$(VENV)/.bench: $(VENV)/.test
	$(PIP) --editable ".[bench]"
	@touch $@

bench: $(VENV)/.bench
	@for name in read_amplification plan_scale convert megatron optimizer digest load background; do \
		echo "== $$name"; $(BIN)/python benchmarks/$$name.py || exit 1; done

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis tests/fixtures/unpacked
