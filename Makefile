# Two commands do everything on a fresh machine with Python >= 3.11: make demo, make test.
PYTHON ?= python3
BIN := .venv/bin
INSTALLED := .venv/.installed

.PHONY: demo test test-fast check fmt lock tables faults fuzz audit sbom clean

demo: $(INSTALLED)            ## the whole story on embedded data: train, forget, retrain, compare
	$(BIN)/famr demo --output-dir build/demo --overwrite

test: check                   ## every check, then every test
	$(BIN)/python -m pytest

test-fast: $(INSTALLED)       ## for daily work: format, lint, and the tests that take little time
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/python -m pytest -m "not long"

check: $(INSTALLED) audit     ## format, lint, types, and known vulnerabilities where these can be looked up
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

fmt: $(INSTALLED)             ## rewrite the code in the project's format
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

tables: $(INSTALLED)          ## rebuild every Markdown table and figure from the committed result files
	$(BIN)/python -m benchmarks.tables

faults: $(INSTALLED)          ## run the fault tests and write docs/faults.md from what they saw
	$(BIN)/python tests/fault_table.py

fuzz: $(INSTALLED)            ## each fuzzer for a minute, from its corpus; needs atheris (Linux): uv pip install atheris
	$(BIN)/python -m fuzz.run --seconds 60 --output benchmarks/results/fuzz-parsers.json

audit: $(INSTALLED)           ## known vulnerabilities in the locked packages; says so where it cannot run
	@if $(BIN)/uv tool run --quiet --from pip-audit==2.10.1 pip-audit --require-hashes --disable-pip \
	  -r requirements.lock > .venv/pip-audit.log 2>&1; then \
	  missed=$$(grep -c "could not be audited" .venv/pip-audit.log); \
	  if test $$missed -gt 0; then echo "pip-audit: could not run here: no answer for $$missed packages"; \
	  else head -1 .venv/pip-audit.log; fi; \
	elif grep -qE "Found [0-9]+ known vulnerabilit" .venv/pip-audit.log; then cat .venv/pip-audit.log; exit 1; \
	else echo "pip-audit: could not run here: $$(tail -1 .venv/pip-audit.log | cut -c 1-200)"; fi

sbom: $(INSTALLED)            ## build/sbom.json: every installed package in CycloneDX's format
	mkdir -p build
	$(BIN)/uv tool run --quiet --from cyclonedx-bom==7.5.0 cyclonedx-py environment --output-reproducible \
	  --pyproject pyproject.toml --output-file build/sbom.json $(BIN)/python

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
