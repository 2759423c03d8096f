# The project's commands; `make help` lists them. ENGINE=gpu installs the CUDA build of vLLM instead of the CPU one.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

PYTHON ?= $(shell command -v python3.11 || command -v python3)
ENGINE ?= cpu
# The partition date; when it is not given, the day of the catalog's latest change.
DATE ?=
LISTINGS ?= include/samples/listings.csv
TORCH_INDEX ?= https://download.pytorch.org/whl/cpu
PYTEST_ARGS ?=
PORT ?= 8080

VENV := $(if $(filter gpu,$(ENGINE)),.venv-gpu,.venv)
BIN := $(VENV)/bin
LOCK := $(if $(filter gpu,$(ENGINE)),requirements.txt,requirements-cpu.txt)
INSTALL := $(BIN)/python -m pip install --disable-pip-version-check --no-deps --progress-bar off
# pip's hundreds of lines as a few; read line by line, since mawk reads a pipe in blocks.
COUNT := { n=0; while read -r word _; do case "$$word" in \
  Collecting) n=$$((n + 1)); if ((n % 40 == 0)); then echo "    $$n packages found"; fi ;; \
  Installing) echo "    installing $$n packages" ;; esac; done; }
RUNTIME := $(VENV)/.runtime
DEV := $(VENV)/.dev
MIGRATED := .airflow/.migrated
STEP := @printf '\n\033[1m==> %s\033[0m\n'
# Sets the stages' database URLs from airflow_settings.yaml or AIRFLOW_CONN_*; a variable set already wins.
URLS := eval "$$($(BIN)/python -m include.connections)"

export PYTHONPATH := $(CURDIR):$(CURDIR)/plugins
export PATH := $(CURDIR)/$(BIN):$(PATH)
export PYTHONUNBUFFERED := 1
export AIRFLOW_HOME := $(CURDIR)/.airflow
export AIRFLOW__CORE__DAGS_FOLDER := $(CURDIR)/dags
export AIRFLOW__CORE__PLUGINS_FOLDER := $(CURDIR)/plugins
export AIRFLOW__CORE__LOAD_EXAMPLES := False
export AIRFLOW__CORE__PARALLELISM := 4
export AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS := True
export AIRFLOW__API__HOST := 127.0.0.1
export AIRFLOW__API__PORT := $(PORT)
export AIRFLOW__API__BASE_URL := http://localhost:$(PORT)
export AIRFLOW__USAGE_DATA_COLLECTION__ENABLED := False
export GX_ANALYTICS_ENABLED := false
export VLLM_NO_USAGE_STATS := 1

.PHONY: help install train-env quantize-env run up preview prepare test test-long check doctor lock clean distclean

help:  ## this list
	@grep -hE '^[a-z%-]+:.*  ## ' $(MAKEFILE_LIST) | awk -F ':.*  ## ' '{printf "  make %-12s %s\n", $$1, $$2}'

$(BIN)/python:
	$(STEP) "virtual environment with $(PYTHON)"
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11) and "needs Python 3.11: make PYTHON=/path/to/python3.11")'
	@"$(PYTHON)" -m venv $(VENV)

# The CPU build of torch stands in pip's own index on some hosts; elsewhere it comes from PyTorch's.
$(RUNTIME): $(LOCK) | $(BIN)/python
	$(STEP) "installing $(LOCK) (several minutes the first time)"
	@pin="$$(grep -oE '^torch==[^ ]+' $(LOCK))"; \
	$(INSTALL) --quiet "$$pin" 2>/dev/null || $(INSTALL) --quiet --extra-index-url $(TORCH_INDEX) "$$pin"
	@$(INSTALL) -r $(LOCK) | $(COUNT)
	@touch $@

$(DEV): requirements-dev.txt $(RUNTIME)
	$(STEP) "installing requirements-dev.txt"
	@$(INSTALL) -r requirements-dev.txt | $(COUNT)
	@touch $@

install: $(RUNTIME)  ## make .venv and install the pinned packages

# torch and, on GPU hosts, its CUDA packages come from the runtime's lock: one build for training, quantizing and serving.
.venv-train/.done .venv-quantize/.done: .venv-%/.done: requirements-%.txt $(LOCK) | $(BIN)/python
	$(STEP) "environment of requirements-$*.txt (.venv-$*)"
	@"$(PYTHON)" -m venv .venv-$*
	@grep -E '^(torch|triton|nvidia-|cuda-)[a-z0-9-]*==' $(LOCK) > .venv-$*/torch.txt
	@install=".venv-$*/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --progress-bar off"; \
	$$install -r .venv-$*/torch.txt 2>/dev/null || $$install --extra-index-url $(TORCH_INDEX) -r .venv-$*/torch.txt; \
	$$install -r requirements-$*.txt
	@touch $@

train-env: .venv-train/.done  ## make .venv-train, where task models are trained

quantize-env: .venv-quantize/.done  ## make .venv-quantize, where quantized checkpoints are made

$(MIGRATED): $(LOCK) | $(RUNTIME)
	$(STEP) "Airflow's own database (SQLite under .airflow)"
	@AIRFLOW__LOGGING__LOGGING_LEVEL=WARNING airflow db migrate >/dev/null
	@touch $@

.airflow/.settings: airflow_settings.yaml $(MIGRATED)
	@python -m listing_operators.settings_loader
	@touch $@

prepare: $(RUNTIME) .airflow/.settings
	$(STEP) "model"
	@$(if $(filter gpu,$(ENGINE)),echo "the profiles of your configuration name it",python -m include.generation prepare-model)
	$(STEP) "warehouse tables"
	@$(URLS); python -m include.warehouse migrate
	$(STEP) "merchant catalog"
	@$(URLS); case "$$MERCHANT_CATALOG_URL" in \
	  sqlite:*) day="$(DATE)"; day="$${day:-$$(date -u -r "$(LISTINGS)" +%F 2>/dev/null || date -u +%F)}"; \
	    python -m include.extraction seed-catalog --csv "$(LISTINGS)" --date "$$day" ;; \
	  *) echo "connection merchant_catalog is a catalog of your own: it is read and never filled" ;; esac

# A run that was cut off leaves its mark, and the next one gives its leases back. The lock keeps two runs apart.
# Airflow takes a signal for the failure of one task and goes on, so the trap ends it; finished rows are kept.
run: prepare  ## the nightly run of one date, end to end (DATE=2026-01-14, LISTINGS=my.csv, ENGINE=gpu)
	@$(URLS); day="$(DATE)"; day="$${day:-$$(python -m include.extraction newest-day)}"; \
	printf '\n\033[1m==> %s\033[0m\n' "enhance_listings for $$day (the whole log: build/run/airflow.log)"; \
	mkdir -p build/run; exec 9>build/run/lock; flock -n 9 || { echo "another make run is at work here"; exit 1; }; \
	if [ -e build/run/unfinished ]; then python -m include.warehouse release --date "$$(cat build/run/unfinished)"; fi; \
	echo "$$day" > build/run/unfinished; status=0; \
	airflow dags test enhance_listings --conf "{\"partition_date\": \"$$day\"}" 9>&- > >(python -m listing_operators.console build/run/airflow.log) 2>&1 & pid=$$!; \
	trap "kill $$pid; sleep 5; kill -KILL $$pid; exit 130" INT TERM; wait $$pid || status=$$?; \
	rm -f build/run/unfinished; \
	printf '\n\033[1m==> summary\033[0m\n'; \
	python -m include.reporting show --date "$$day" --out build/run/summary.json || status=1; \
	exit $$status

preview: $(RUNTIME)  ## five rows of the warehouse, before and after
	@$(URLS); python -m include.reporting preview

up: prepare  ## Airflow with its web page on http://localhost:8080, this machine only, no login (PORT=8080)
	$(STEP) "Airflow on http://localhost:$(PORT); Ctrl-C ends it"
	@airflow standalone

doctor: $(RUNTIME)  ## what is missing on this machine, and how to mend it
	@$(URLS); python -m include.doctor

test: $(DEV)  ## unit, DAG and integration tests (PYTEST_ARGS="-k warehouse")
	@python -m include.generation prepare-model
	@python -m pytest $(PYTEST_ARGS)

test-long: $(DEV) train-env quantize-env  ## the tests that need minutes of a real engine or scheduler
	@python -m include.generation prepare-model
	@python -m pytest -m "long and not gpu" $(PYTEST_ARGS)

check: $(DEV)  ## lint, format, types, layers
	$(STEP) "ruff"
	@ruff check .
	@ruff format --check .
	$(STEP) "mypy"
	@mypy
	$(STEP) "import-linter"
	@lint-imports

bench-%: $(DEV)  ## a benchmark of benchmarks/, such as bench-generation; results under build/bench
	@test -f "benchmarks/$(subst -,_,$*).py" || { ls benchmarks/*.py; echo "no benchmarks/$(subst -,_,$*).py"; exit 2; }
	@python -m "benchmarks.$(subst -,_,$*)"

# uv only resolves; pip installs. The CPU build of torch is looked for in $$UV_FIND_LINKS if set, else in PyTorch's index.
COMPILE = uv pip compile --quiet --python-version 3.11 --python-platform x86_64-manylinux_2_28 \
  --annotation-style line --custom-compile-command 'make lock' $(if $(UPGRADE),--upgrade)
TORCH_CPU = $(if $(UV_FIND_LINKS),,--extra-index-url $(TORCH_INDEX) --index-strategy unsafe-best-match)
lock: $(DEV)  ## resolve requirements*.in to requirements*.txt, keeping pins that still fit (UPGRADE=1: newest)
	@$(COMPILE) requirements.in -o requirements.txt >/dev/null
	@$(COMPILE) requirements-cpu.in --override requirements-cpu-overrides.txt -o requirements-cpu.txt \
	  $(TORCH_CPU) >/dev/null
	@$(COMPILE) requirements-dev.in --constraint requirements-cpu.txt -o requirements-dev.txt >/dev/null
	@$(COMPILE) requirements-workers.in --constraint requirements.txt --constraint requirements-cpu.txt \
	  -o requirements-workers.txt >/dev/null
	@$(COMPILE) requirements-train.in --constraint requirements-cpu.txt --no-emit-package torch -o requirements-train.txt \
	  $(TORCH_CPU) >/dev/null
	@$(COMPILE) requirements-quantize.in --override requirements-cpu-overrides.txt --no-emit-package torch \
	  -o requirements-quantize.txt $(TORCH_CPU) >/dev/null
	@git --no-pager diff --stat -- 'requirements*.txt'

clean:  ## remove results and caches; the environment and the model stay
	rm -rf build .airflow .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -not -path './.venv*' -prune -exec rm -rf {} +

distclean: clean  ## remove the environment and the model, too
	rm -rf .venv .venv-gpu .venv-train .venv-quantize .models
