# Each target sets up .venv if it must, and reuses it otherwise. Needed beforehand: Python 3.10 or newer, git, make.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready-for-kvsan
# For these commands only, a release that runs on a CPU; the package itself pins nothing.
TORCH := torch==2.13.0
INSTALLED := build/installed
TEST_SECONDS := 1200
SGLANG := .venv-sglang
ENGINE_PYTHON ?= python3.11
ENGINE_SECONDS := 2100
# After these no server that may be left out is started any more, and what was left out is said.
SPARE_SECONDS := 1440
LATE_SECONDS := 3600

.PHONY: help setup demo demo-sglang test test-engines test-engines-late test-engines-old side-by-side soak bench check format clean

help:
	@echo "make demo          the main job: kvsan run finds a race in a server, then the same server without the bug"
	@echo "make demo-sglang   a real SGLang server on this CPU with a fault in it, and what kvsan says of it"
	@echo "make test          the tests"
	@echo "make test-engines  the tests with real engines"
	@echo "make test-engines-late  those with slot ids that come late, none left out"
	@echo "make test-engines-old  the tests with old releases, or: make test-engines-old-0.5.4"
	@echo "make side-by-side  kvsan beside SGLang's own checks; its last result is docs/side-by-side.md"
	@echo "make soak          the full counts of tests; its last result is docs/soak.md"
	@echo "make bench         what an event costs, and a scheduler's step"
	@echo "make check         format, lint, and types of the installed package"
	@echo "make format        writes the format that check wants"
	@echo "make clean         removes what the others made"

setup: $(READY)

$(READY): pyproject.toml setup.py Makefile
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
		{ echo "make: $(PYTHON) is older than Python 3.10; say make PYTHON=..." >&2; exit 1; }
	@echo "== set-up: $(VENV) with $(TORCH), the package (editable), and what tests and checks need"
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check "$(TORCH)" --editable ".[engine,test,spy,check]"
	@touch $@

# The other bugs: make demo BUG=NAME.
demo: $(READY)
	@echo "== demo: examples/demo.py$(if $(BUG), with the bug $(BUG))"
	$(BIN)/python examples/demo.py $(if $(BUG),--bug $(BUG))

test: $(READY)
	@echo "== test: pytest, two processes, $(TEST_SECONDS) seconds at most"
	timeout $(TEST_SECONDS) $(BIN)/python -m pytest -n 2 -o faulthandler_timeout=300

# Real SGLang on a CPU, in an environment of its own: a few minutes and three gigabytes to make, twenty to thirty to run.
test-engines:
	@echo "== test-engines: SGLang 0.5.23 in $(SGLANG)"
	$(ENGINE_PYTHON) tests/engines/install_sglang.py $(SGLANG)
	KVSAN_TEST_SPARE_SECONDS=$(SPARE_SECONDS) timeout $(ENGINE_SECONDS) $(SGLANG)/bin/python -m pytest -n 2 \
		tests/engines -o faulthandler_timeout=600 $(ENGINE_TESTS)

# What kvsan says of one fault; all of them: make demo-sglang FAULT=help.
demo-sglang:
	@echo "== demo-sglang: SGLang 0.5.23 in $(SGLANG)$(if $(FAULT), with the fault $(FAULT))"
	$(ENGINE_PYTHON) tests/engines/install_sglang.py $(SGLANG)
	$(SGLANG)/bin/python -m tests.engines.sglang $(patsubst help,--help,$(FAULT))

# What comes late, as from a device, and nothing left out.
test-engines-late:
	@echo "== test-engines-late: SGLang 0.5.23 in $(SGLANG)"
	$(ENGINE_PYTHON) tests/engines/install_sglang.py $(SGLANG)
	timeout $(LATE_SECONDS) $(SGLANG)/bin/python -m pytest -n 2 tests/engines/sglang -o faulthandler_timeout=600 \
		-k "late and not once"

# Unmodified releases: two that have the bugs kvsan was founded on, then those without. An environment for each. Those from
# 0.5.16 on are tested by what of the present release's tests fits them; 0.5.17 was compared by source.
OLD_SGLANG ?= 0.5.4 0.5.8.post1 0.5.9 0.5.10.post1 0.5.11 0.5.12.post1 0.5.13 0.5.15.post1 $(filter-out 0.5.17,$(LATER_SGLANG))
LATER_SGLANG := 0.5.16 0.5.17 0.5.18 0.5.19 0.5.20 0.5.21 0.5.22

test-engines-old: $(OLD_SGLANG:%=test-engines-old-%)

test-engines-old-%:
	@echo "== test-engines-old: SGLang $* in $(SGLANG)-$*"
	$(ENGINE_PYTHON) tests/engines/install_sglang.py $(SGLANG)-$* $*
	timeout $(ENGINE_SECONDS) $(SGLANG)-$*/bin/python -m pytest -n 2 -o faulthandler_timeout=600 \
		tests/engines/sglang$(if $(filter $*,$(LATER_SGLANG)),,_old) $(ENGINE_TESTS)

side-by-side:
	@echo "== side-by-side: a quarter of an hour, twice that on a slow machine; the result goes into docs/side-by-side.md"
	$(ENGINE_PYTHON) tests/engines/install_sglang.py $(SGLANG)
	$(SGLANG)/bin/python -m tests.engines.side_by_side --write docs/side-by-side.md

soak: $(READY)
	@echo "== soak: the full counts, about half an hour; the result goes into docs/soak.md"
	$(BIN)/python tests/soak.py --write docs/soak.md

bench: $(READY)
	@echo "== bench: what an event costs"
	$(BIN)/python -m kvsan.bench
	@echo "== bench: what a step of a scheduler costs"
	$(BIN)/python -m kvsan.bench_steps

# The wheel is unpacked beside the sources and checked there: the four code folders become one package only when installed.
check: $(READY)
	@echo "== check: format and lint"
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	@echo "== check: types of the installed package (a wheel in $(INSTALLED))"
	rm -rf build/lib build/bdist.* $(INSTALLED)
	$(BIN)/python -m pip wheel --quiet --disable-pip-version-check --no-deps --no-build-isolation \
		--wheel-dir build/wheel .
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --upgrade --target $(INSTALLED) \
		build/wheel/kvsan-*.whl
	cd $(INSTALLED) && ../../$(BIN)/python -m mypy --config-file ../../pyproject.toml --strict -p kvsan

format: $(READY)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf $(VENV) build *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
