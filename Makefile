# Each target sets up what it needs: a fresh machine needs Python 3.11 or newer and make.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
# What is installed beside the newest Triton: kernels have to compile with either.
OLDEST_TRITON := 3.6.0

.PHONY: demo test prove test-gpu check format bench clean

demo: $(READY)  ## answer prompts on this machine, plain and speculating, and compare
	$(BIN)/alula demo

test: $(READY)  ## the fast suite, on all cores
	$(BIN)/pytest -n auto --dist loadscope

prove: $(READY)  ## the long proofs: full counts of what `make test` samples
	$(BIN)/pytest -m "slow and not gpu"

test-gpu: $(READY)  ## needs an NVIDIA GPU
	$(BIN)/pytest -m gpu

check: $(READY)  ## style, types, floors
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(READY)
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

bench: $(READY)  ## alula against transformers on this machine
	$(BIN)/python benchmarks/cpu_decode.py

clean:
	rm -rf $(VENV)

$(READY): pyproject.toml constraints.txt Makefile
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[dev]'
ifeq ($(shell uname -s),Linux)
	$(BIN)/pip install --quiet --no-deps --target $(VENV)/oldest-triton triton==$(OLDEST_TRITON)
endif
	touch $@
