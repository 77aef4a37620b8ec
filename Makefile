# Two commands do everything on a fresh machine with Python >= 3.11: make demo, make test.
PYTHON ?= python3
BIN := .venv/bin
INSTALLED := .venv/.installed

.PHONY: demo test check fmt lock tables clean

demo: $(INSTALLED)            ## the whole story on embedded data: train, forget, retrain, compare
	$(BIN)/famr demo --output-dir build/demo --overwrite

test: check                   ## every check, then every test
	$(BIN)/python -m pytest

check: $(INSTALLED)           ## format, lint and types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

fmt: $(INSTALLED)             ## rewrite the code in the project's format
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

tables: $(INSTALLED)          ## rebuild every Markdown table and figure from the committed result files
	$(BIN)/python -m benchmarks.tables

lock: $(INSTALLED)            ## resolve the dependencies anew: pinned, hashed, without index addresses
	$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes \
	  --no-header --no-annotate --extra dev --upgrade pyproject.toml -o requirements.lock

clean:
	rm -rf .venv build .mypy_cache .ruff_cache .pytest_cache

$(INSTALLED): requirements.lock pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "famr needs Python 3.11 or newer")'
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check uv
	VIRTUAL_ENV=.venv $(BIN)/uv pip install --quiet --require-hashes -r requirements.lock
	VIRTUAL_ENV=.venv $(BIN)/uv pip install --quiet --no-deps -e .
	touch $@
