# Two commands are all a newcomer needs: `make demo` and `make test`.
# Both first make .venv and install the package into it, again whenever pyproject.toml or constraints.txt changes.

PYTHON ?= python3
BIN := .venv/bin
INSTALLED := .venv/.installed

.PHONY: demo test test-gpu docs browser clean
.DELETE_ON_ERROR:

demo: $(INSTALLED)
	$(BIN)/depthwise demo

test: $(INSTALLED) browser
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/pytest -n logical --maxprocesses 4

# The documentation as a site, which fails on a broken link; open build/site/index.html.
docs: $(INSTALLED)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# The report page is tested in Chromium. Root, as in a container, gets it from Debian; where it cannot be had, those
# tests are skipped and say so.
browser:
	@command -v chromium > /dev/null || [ "$$(id -u)" != 0 ] || ! command -v apt-get > /dev/null || { \
		echo "installing chromium for the tests of the report page"; \
		timeout 300 sh -c 'apt-get -qq update && apt-get -qq install -y --no-install-recommends chromium' \
			> /dev/null 2>&1 || echo "chromium could not be installed"; }

# The tests that need a GPU, and those of the kernels on it instead of in Triton's interpreter.
test-gpu: $(INSTALLED)
	$(BIN)/pytest -n 8 tests/kernels
	$(BIN)/pytest -n 4 -m gpu --ignore tests/kernels tests

$(INSTALLED): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --constraint constraints.txt torch
	$(BIN)/python -m pip install --constraint constraints.txt --editable '.[dev,docs]'
	touch $@

clean:
	rm -rf .venv build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
