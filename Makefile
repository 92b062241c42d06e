# make demo · make test · make check: each installs what it needs into .venv, and nothing anywhere else.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
export OMP_NUM_THREADS ?= 1

.PHONY: demo test check bench-overhead install clean

$(VENV)/.installed: setup.cfg constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt torch
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[deepspeed,data,hf,test]'
	touch $@

install: $(VENV)/.installed

test: install
	$(BIN)/python -m pytest

check: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -q tests/test_layering.py tests/test_packaging.py

bench-overhead: install
	$(BIN)/python bench/overhead.py

clean:
	rm -rf $(VENV) build dist *.egg-info data runs
