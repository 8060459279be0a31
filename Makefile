# The commands people use. Each sets up what it needs; a second call does not reinstall.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
export JAX_COMPILATION_CACHE_DIR ?= $(CURDIR)/.cache/jax
export JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS ?= 0.2

.PHONY: demo test test-slow lint format bench clean

demo: $(VENV)/.installed
	$(BIN)/sojourn demo

test: $(VENV)/.installed-test
	$(BIN)/python -m pytest -n 2 --dist worksteal --ignore=tests/slow

test-slow: $(VENV)/.installed-test
	$(BIN)/python -m pytest -n 2 tests/slow

lint: $(VENV)/.installed-lint
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright

format: $(VENV)/.installed-lint
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(VENV)/.installed-bench
	$(BIN)/python benchmarks/run.py
	$(BIN)/python benchmarks/streaming.py --rows 1e9
	$(BIN)/python benchmarks/draws.py

clean:
	rm -rf $(VENV) .cache results

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip

$(VENV)/.installed: pyproject.toml | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet -e .
	touch $@

# The extras of pyproject.toml, each installed when it is first needed.
$(VENV)/.installed-%: pyproject.toml $(VENV)/.installed
	$(BIN)/python -m pip install --quiet -e ".[$*]"
	touch $@
