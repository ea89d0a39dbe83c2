# Two commands are all a newcomer needs: `make demo` and `make test`.
# Both first make .venv and install the package into it, again whenever pyproject.toml or constraints.txt changes.

PYTHON ?= python3
BIN := .venv/bin
INSTALLED := .venv/.installed

.PHONY: demo test test-gpu clean
.DELETE_ON_ERROR:

demo: $(INSTALLED)
	$(BIN)/depthwise demo

test: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/pytest -n logical --maxprocesses 4

# The tests that need a GPU, and those of the kernels on it instead of in Triton's interpreter.
test-gpu: $(INSTALLED)
	$(BIN)/pytest -n 8 tests/kernels
	$(BIN)/pytest -n 4 -m gpu --ignore tests/kernels tests

$(INSTALLED): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --constraint constraints.txt torch
	$(BIN)/python -m pip install --constraint constraints.txt --editable '.[dev]'
	touch $@

clean:
	rm -rf .venv build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
