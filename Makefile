# Two commands matter: `make demo` and `make test`. Both create .venv on first use; later runs start at once.

PYTHON ?= python3
VENV ?= .venv
# Any PyTorch of 2.11 to 2.14 works. It is installed first, so that nothing else chooses the build.
TORCH ?= 2.13.0
# Extra words for the installation of PyTorch, such as an index that carries the small CPU builds.
TORCH_ARGS ?=
# Extra words for pytest, such as `-k cache -x`.
ARGS ?=
# Processes that share the tests; 0 runs them in one, where a debugger can stop them.
JOBS ?= auto

PARALLEL := -n $(JOBS) --dist worksteal
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
# Installed again only when pyproject.toml, the wanted PyTorch or the place of the checkout changes.
KEY := $(shell { cat pyproject.toml; echo '$(TORCH) $(TORCH_ARGS) $(CURDIR)'; } | cksum | cut -d' ' -f1)
ENGINE := $(VENV)/.stepwell-engine-$(KEY)
DEV := $(VENV)/.stepwell-dev-$(KEY)

.PHONY: help demo replay-demo test test-long test-all lint format fast pure lines clean
.DEFAULT_GOAL := help

help: ## list these targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(ENGINE) ## serve a small hybrid model, push agent conversations through its cache, print one table
	@$(BIN)/python -m stepwell.demo

replay-demo: $(BIN)/python ## play made-up agent conversations on a virtual clock, write replay-demo.html (no PyTorch needed)
	@$(BIN)/python -c 'import stepwell.cli' 2>/dev/null || $(PIP) --editable .
	@$(BIN)/python -m stepwell replay synthetic --conversations 60 --lanes 12 --warmup 200 --duration 600 \
		--device-tokens 6e5 --host-tokens 3e6 --html replay-demo.html
	@echo 'The report with plots is in replay-demo.html'

test: $(DEV) ## run all tests but the long ones: seven minutes on two cores (ARGS="-k cache -x" goes to pytest)
	@$(BIN)/python -m pytest $(PARALLEL) $(ARGS)

test-long: $(DEV) ## run what `make test` leaves out: long tests, and more examples
	@$(BIN)/python -m pytest $(PARALLEL) --long -m "long or more" $(ARGS)

test-all: test test-long ## run all tests

lint: $(DEV) ## ruff, formatting, types, direction of imports
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports

format: $(DEV) ## rewrite the sources in the house format
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

fast: $(DEV) ## compile what decides, in place, and try it (minutes, needs a C compiler); after an edit there: again, or `make pure`
	@$(BIN)/python tools/fast.py

pure: $(BIN)/python ## remove what `make fast` has compiled
	@$(BIN)/python tools/fast.py --pure

lines: $(BIN)/python ## source lines by package, largest files and functions
	@$(BIN)/python tools/lines.py stepwell

clean: ## remove the environment, caches, what was compiled and the demo's files
	rm -f stepwell/*.so stepwell/*/*.so stepwell/*/*/*.so
	rm -rf $(VENV) .demo replay-demo.html build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Stepwell needs Python 3.11 or newer, this is %d.%d: set PYTHON=python3.11" % sys.version_info[:2])'
	$(PYTHON) -m venv $(VENV)

$(ENGINE): $(BIN)/python
	@echo "Installing Stepwell into $(VENV) (once; a minute or two)"
	@$(PIP) $(TORCH_ARGS) 'torch==$(TORCH)'
	@$(PIP) --editable '.[engine]'
	@rm -f $(VENV)/.stepwell-engine-*
	@touch $@

$(DEV): $(ENGINE)
	@$(PIP) --editable '.[engine,dev]'
	@rm -f $(VENV)/.stepwell-dev-*
	@touch $@
