# Two commands are enough: `make demo` and `make test`. Both make the environment first.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed

.PHONY: demo test test-thorough lint bench format clean

demo: $(STAMP)
	$(BIN)/lockstep run -n 2 examples/digits.py --weights $(VENV)/digits.safetensors
	$(BIN)/lockstep verify examples/digits.py --ranks 1,2,4 --steps 20

test: lint
	$(BIN)/python -m pytest -n 2 --dist worksteal -m "not thorough"

test-thorough: lint
	$(BIN)/python -m pytest -n 2 --dist worksteal

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(STAMP)
	$(BIN)/python -m benchmarks

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .hypothesis lockstep-runs

# torch goes first and by its exact version, so that pip takes the tested build and not the newest one.
$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "lockstep needs Python 3.11 or newer; say which with: make PYTHON=python3.11"; exit 2; }
	@$(PYTHON) -m venv $(VENV) || { echo "Python's venv module is missing: apt-get install python3-venv"; exit 2; }
	$(BIN)/python -m pip install --quiet --disable-pip-version-check "$$(grep '^torch==' constraints.txt)" -c constraints.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[test]"
	@touch $@
