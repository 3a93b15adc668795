# Headrace's commands. `make help` lists them; `make demo` and `make test` need nothing installed by hand.
SHELL := /usr/bin/env bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.setup-stamp
DOCS_STAMP := $(VENV)/.docs-stamp
EXTRAS := services,worker,torch,report,examples,dev
# The first interpreter that is new enough; `make PYTHON=… setup` names another.
PYTHON ?= $(shell for python in python3 python3.11 python3.12 python3.13 python3.14; do \
	"$$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo "$$python" && break; done)
ARGS ?=
# The tier of the tests that run: first or full.
TIER ?= full
# The Python that the kit for GPUs is for.
KIT_PYTHON ?= $(BIN)/python
# Programs that run in parallel with the tests only get the processor time that the tests leave.
BESIDE ?=
STUDY ?= examples/digits/study.yaml
# Tools run with the virtual environment first on the path, so that scripts find it too.
export PATH := $(CURDIR)/$(BIN):$(PATH)
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# Tests start a thousand interpreters. Without cached bytecode, each would compile everything that it imports.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: gpu gpu-kit test-compose help setup demo up test test-all costs faults lint types verify pytest proto proto-baseline constraints hashes images diagram docs bubbles bubbles-demo policies yardstick guard fuzz long hdet-trials hdet-jobs wheel bench chaos gangs test-clients test-console test-metrics test-ray test-slurm test-trackers node-modules restores clean

help: ## List the commands
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-15s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(STAMP) ## Create the virtual environment (.venv) with exact versions; skipped if nothing changed

$(STAMP): pyproject.toml .ci/constraints.txt
	@test -n "$(PYTHON)" || { echo "Headrace needs Python 3.11 or newer, and found none on the path." >&2; exit 1; }
	@test -x $(BIN)/python || { echo "setup: making $(VENV) with $(PYTHON)"; "$(PYTHON)" -m venv $(VENV); }
	@echo "setup: installing the build tools"
	@$(BIN)/python -m pip install --quiet -c .ci/constraints.txt hatchling editables setuptools
	@echo "setup: installing headrace[$(EXTRAS)]; the first time takes a minute or two"
	@$(BIN)/python -m pip install -c .ci/constraints.txt --no-build-isolation --no-compile --progress-bar off \
		-e '.[$(EXTRAS)]' | sed -u -n 's/^Collecting \([^ ]*\).*/  \1/p; /^Installing/p' | cut -c1-100
	@# mup installs torchvision but never imports it. Built for another torch, it breaks the frameworks that find it.
	@$(BIN)/python -m pip uninstall --quiet --yes torchvision 2>/dev/null || true
	@# On all cores: pip would compile on one core, including modules that are hardly ever imported.
	@$(BIN)/python -m compileall -qq -j 0 -x '/tests/|/transformers/models/' $(VENV)/lib clients services worker || true
	@touch $@
	@echo "setup: ready"

demo: setup ## Tune a small network on handwritten digits, from nothing to report.html, in a few minutes
	@headrace run --local --slots 2 --report report.html $(STUDY)

up: setup ## Start Postgres, a scheduler and a worker here, until Ctrl-C (ARGS="--slots 2")
	@headrace up $(ARGS)

test: lint ## What CI runs: lint, types, verify, the first tier of the tests (ARGS=--changed: the tests of any tier that a change touches)
	@$(MAKE) -j 3 BESIDE='nice -n 19' TIER=$(if $(findstring --changed,$(ARGS)),full,first) types verify pytest

test-all: lint ## Before an issue is closed: lint, types, verify, all tests (up to an hour)
	@$(MAKE) -j 3 BESIDE='nice -n 19' types verify pytest

pytest: setup
	@echo "pytest"
	@# Many tests wait, so three processes are needed to fill two cores.
	@.ci/pytest.sh -n 3 --dist worksteal --tier $(TIER) $(ARGS)

test-console: setup ## The web console's tests, with those in Chromium (/usr/bin/chromium and playwright; skipped without)
	@pytest -n 2 tests/console $(ARGS)

costs: setup ## Print the processor time of the tests, by file, test and fixture (TIER=first)
	@.ci/pytest.sh -q -n 3 --dist worksteal --tier $(TIER) --costs $(ARGS)

faults: setup ## Put forty faults into a copy, one at a time, and say which the first tier finds (an hour)
	@python tests/faults/find_faults.py $(ARGS)

lint: setup ## Style, and common mistakes (ruff)
	@echo "lint"
	@ruff check .
	@ruff format --check .

types: setup ## Types, strictly (mypy)
	@echo "types"
	@$(BESIDE) mypy
	@$(BESIDE) mypy .ci/*.py

verify: setup ## Stubs, contract, import layers and documents agree with their sources
	@$(BESIDE) .ci/verify.sh

proto: setup ## Generate the tracked stubs from protos/: Python's, and Go's after clients/go/toolchain.sh
	@.ci/proto.sh clients/python
	@echo "proto: clients/python/headrace/v1"
	@clients/go/proto.sh clients/go && echo "proto: clients/go/headrace/v1" || test $$? = 3

node-modules: clients/typescript/node_modules/.package-lock.json ## Install what the TypeScript client is built with

clients/typescript/node_modules/.package-lock.json: clients/typescript/package-lock.json
	@command -v npm >/dev/null || { echo "The TypeScript client needs Node 20 or newer with npm, and there is none on the path." >&2; exit 1; }
	@echo "node: installing the TypeScript client's packages"
	@cd clients/typescript && npm ci --no-audit --no-fund --loglevel=error
	@touch $@

proto-baseline: setup ## At a release: make today's protos the contract that later ones must not break
	@buf build protos --exclude-source-info -o protos/headrace.binpb
	@echo "proto-baseline: protos/headrace.binpb"

constraints: ## Resolve all dependencies again and pin them in .ci/constraints.txt, and in .ci/hashes for the images
	@.ci/constraints.sh "$(PYTHON)" "$(EXTRAS),docs"

hashes: ## Write what the images install, with its hashes, for the versions in .ci/constraints.txt
	@.ci/hashes.sh "$(PYTHON)"

images: ## Pin the images of others by the digests that their tags have today (Docker; ARGS=--check only compares)
	@.ci/images.sh $(ARGS)

diagram: setup ## Regenerate the generated parts of the documents
	@python .ci/documents.py --write

docs: $(DOCS_STAMP) ## Build the documentation as a site in build/docs, which needs no network; warnings fail
	@NO_MKDOCS_2_WARNING=1 mkdocs build --quiet --strict --clean --config-file .ci/mkdocs.yml
	@echo "docs: build/docs/index.html; search needs a server: python -m http.server -d build/docs"

$(DOCS_STAMP): $(STAMP)
	@echo "docs: installing what builds the site"
	@$(BIN)/python -m pip install --quiet -c .ci/constraints.txt --no-build-isolation -e '.[docs]'
	@touch $@

chaos: setup ## Kill, freeze, cut off and fill up everything, over and over (ARGS="kill-scheduler --times 20"); tens of minutes
	@python tests/chaos/long.py $(ARGS)

gangs: setup ## Pause, move and kill gangs of 4 ranks, FSDP2 and ZeRO-2, and compare every bit (half an hour)
	@HEADRACE_GANGS=1 pytest -n 0 tests/gang/test_gang_documents.py
	@python tests/chaos/long.py gang-fsdp gang-zero $(ARGS)

policies: setup ## Play 10,000 random histories of every policy against its oracle (a quarter of an hour; KIND=asha for one)
	@HEADRACE_HISTORIES=10000 pytest -n 2 --dist worksteal -o timeout=3600 -o faulthandler_timeout=0 tests/policies/test_policy_contract.py -k "(histories or mirror)$(if $(KIND), and $(KIND))" --durations=30 $(ARGS)

yardstick: setup ## Draw 2,000 random modules and 2,000 programs that remember from each of four seeds, and compare groups of them with torch.optim (half an hour of one quiet core)
	@ulimit -v 12000000; for seed in 1 2 3 4; do HEADRACE_MODULES=2000 HEADRACE_MODULES_SEED=$$seed OMP_NUM_THREADS=1 \
		pytest -q -s -n 0 -o timeout=3600 -o faulthandler_timeout=0 tests/hydro/test_fuse_random_modules.py tests/hydro/test_fuse_random_memory.py -k equals_torch_optim --durations=2; done

guard: setup ## Compare 300 event logs of simulated studies with the stored ones (ARGS=--write stores today's)
	@python tests/simulator/logged_studies.py $(ARGS)

fuzz: setup ## Send 20,000 calls drawn from the contract at real servers, four seeds (an hour)
	@HEADRACE_FUZZ_CALLS=5000 pytest -s -o faulthandler_timeout=0 tests/fuzz

long: setup ## Train HDET's recovery with 20 seeds, and let 500 random histories of the scheduler's step keep its promises; plans on 200,000 trials (half an hour)
	@HEADRACE_SEEDS=20 HEADRACE_STEP_HISTORIES=500 pytest -n 2 -o timeout=3600 -o faulthandler_timeout=0 tests/hdet/test_hdet_recovery.py tests/scheduler/test_step_machine.py tests/scheduler/test_ask_tell_machine.py --durations=0
	@HEADRACE_PLANNED_TRIALS=200000 pytest -n 1 -o faulthandler_timeout=0 tests/scheduler/test_plans.py

restores: setup ## Load a dump of a live cluster's database behind its workers, three times (a minute); 200 random histories of the janitor (ten minutes)
	@HEADRACE_RESTORES=3 pytest -q -s -n 0 tests/chaos/test_restored_cluster.py
	@HEADRACE_JANITOR_HISTORIES=200 pytest -q -n 0 -o timeout=3600 tests/scheduler/test_janitor_machine.py

bubbles: setup ## Run a study in bubbles; kill and stop what runs beside a pipeline, 20 times, and print the primary's step and the time until the gate is closed (ten minutes)
	@HEADRACE_BUBBLE_STUDY=1 pytest -q -n 0 tests/bubbles/test_bubble_study.py
	@python tests/bubbles/kills.py --times 20 $(ARGS)

bubbles-demo: setup ## Train a small GPT as a pipeline and tune digits while its stages wait (a minute of two cores)
	@python examples/bubbles/run.py $(ARGS)

hdet-trials: setup ## Pause and kill gangs that train with HDET, and compare every step with an undisturbed run (ten minutes)
	@python tests/hdet/killed_ranks.py $(ARGS)

hdet-jobs: setup ## Healthy HDET jobs on a machine that is too busy: none may freeze or raise an alarm (half an hour)
	@python tests/hdet/healthy_jobs.py $(ARGS)

wheel: setup ## Install the wheels of Headrace and of examples/own_policy in a new environment; run the contract suite, a simulation and a study there
	@.ci/wheel.sh "$(PYTHON)"

gpu: setup ## On a machine with a GPU: the tests marked gpu, the benchmarks, and a record of the card (ARGS="--minutes 8")
	@python benchmarks/gpu/kit_run.py $(ARGS)

gpu-kit: setup ## Build build/gpu-kit, which does the same on a machine without a network (KIT_PYTHON=python3.12: for its Python)
	@python .ci/gpu_kit.py "$(KIT_PYTHON)"

test-compose: setup ## Run docker-compose.yml with a real engine: a study over TLS, kills of each container, open ports (root, Docker; ten minutes for the images)
	@python tests/compose/engine.py

test-clients: setup ## Build every client (Python, and clients/*/conformance.sh), run all scenarios with each, and their own tests; prints the table (ARGS="--clients go")
	@python tests/conformance/report.py $(ARGS)
	@shopt -s nullglob; for script in clients/*/conformance.sh; do echo "test-clients: $$script test"; "$$script" test; done

test-metrics: setup ## Check metrics, dashboard and alert rules, with Prometheus' promtool (HEADRACE_PROMTOOL, or on the path)
	@command -v "$${HEADRACE_PROMTOOL:-promtool}" >/dev/null || { echo "There is no promtool on the path (Debian: apt-get install prometheus)." >&2; exit 1; }
	@pytest -q -n 0 tests/monitoring $(ARGS)

test-slurm: setup ## Run headrace launch slurm with a real Slurm: two nodes on this machine (root, slurmctld, slurmd, munge; ten minutes)
	@why=$$(python -c "import sys; sys.path.insert(0, 'tests/slurm'); import cluster; print(cluster.lacking())"); \
	  if [ -n "$$why" ]; then echo "test-slurm: skipped: $$why"; else pytest -q -n 0 tests/slurm $(ARGS); fi

test-ray: build/ray/.stamp ## Run a study on a Ray cluster of two nodes on this machine (installs Ray, 300 MB, in build/ray)
	@build/ray/bin/python -m pytest -q -n 0 -p no:cacheprovider tests/launch/test_ray_cluster.py $(ARGS)

build/ray/.stamp: $(STAMP) .ci/ray.txt .ci/ray.sh
	@.ci/ray.sh build/ray
	@touch $@

test-trackers: build/trackers/.stamp ## Run headrace track with the real MLflow (and its server), W&B and TensorBoard; kill it 20 times (ten minutes)
	@build/trackers/bin/python -m pytest -q -s -n 0 -p no:cacheprovider tests/trackers $(ARGS)

build/trackers/.stamp: $(STAMP) .ci/trackers.txt .ci/trackers.sh
	@.ci/trackers.sh build/trackers
	@touch $@

bench: setup ## Run the benchmarks (benchmarks/**/bench_*.py)
	@shopt -s nullglob; for script in benchmarks/bench_*.py benchmarks/*/bench_*.py; do echo "bench: $$script"; python "$$script"; done

clean: ## Remove the virtual environment, caches and outputs
	@rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache dist build report.html
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
