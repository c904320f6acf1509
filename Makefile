# Needs Python 3.11 to 3.13 and make, nothing else: environments are made here with venv and pip.
PYTHON ?= python3
VENV ?= .venv
VENV_TEST ?= .venv-test
VENV_INTEGRATIONS ?= .venv-integrations
TORCH ?= torch
JOBS ?= 2
# Of the tests, one more than cores: some of them wait for processes of their own.
WORKERS ?= 3
BENCH ?=
FUZZ_MODELS ?= 5000
FUZZ_SECONDS ?= 600
FUZZ_SEED ?= 0
FUZZ ?=
FOREIGN ?=
EXPORTS ?=
REACH ?=
SPEED ?=
VERSIONS ?=
# The build of ONNX Runtime, an extra of pyproject.toml: gpu, which is the CPU's where there is no other, cpu or cuda.
RUNTIME ?= gpu
RUNTIMES ?=
RELEASE ?=

# The time in archives is that of the commit: whoever builds it again gets the same bytes.
export SOURCE_DATE_EPOCH ?= $(or $(shell git log -1 --format=%ct 2>/dev/null),1580601600)

BIN = $(VENV)/bin
TEST = $(VENV_TEST)/bin
DEMO = bert_small__dyn20raw

.PHONY: help demo docs test test-versions test-integrations runtimes lint format bench bench-real abuse scale zoo zoo-baseline reach exports test-browser report-assets fuzz fuzz-groups fuzz-shapes fuzz-chains mutants code-mutants foreign faults fuzz-loader gpu bench-gpu manifest wheel release-check clean
.DEFAULT_GOAL := help

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

demo: $(VENV)/.installed ## install ortopt into .venv, optimize a real model of the zoo at -O3, show the report
	@mkdir -p demo
	$(BIN)/ortopt optimize zoo:$(DEMO) -O3 -o demo/$(DEMO).opt.onnx

test: $(VENV_TEST)/.installed ## set up .venv-test and run all tests
	PYTHONDONTWRITEBYTECODE= $(TEST)/python -m pytest -n $(WORKERS) --dist loadgroup # hundreds of tests start ortopt: compiled once, not each time

test-versions: $(VENV_TEST)/.installed ## the parts that use ONNX Runtime, on the oldest, the newest and others; VERSIONS="--smoke", "--releases 1.20,newest"
	$(TEST)/python -m tools.versions --jobs $(JOBS) $(VERSIONS)

runtimes: $(VENV_TEST)/.installed ## results on the releases that they are for; RUNTIMES="--smoke", "--zoo --seconds 2", "--runtime ~/openvino"
	$(TEST)/python -m fuzzing.releases $(RUNTIMES)

test-integrations: $(VENV_INTEGRATIONS)/.installed ## ortopt inside of Optimum, Olive and torch, installed into .venv-integrations; TORCH="torch==2.13.0+cpu" names another build
	$(VENV_INTEGRATIONS)/bin/python -c 'import olive, onnxscript, optimum.onnxruntime, torch' # without one of them its tests would be skipped
	$(VENV_INTEGRATIONS)/bin/python -m pytest tests/integrations

test-browser: $(VENV_TEST)/.installed ## the report's page in a Chromium: apt install chromium, or ORTOPT_CHROMIUM=PATH
	$(TEST)/python -m pytest tests/browser

docs: $(VENV_TEST)/.docs ## the documentation as a site, below site/: guides, a page for each pass, the Python interface
	$(TEST)/python -m tools.site

lint: $(VENV_TEST)/.installed ## ruff (rules and format) and mypy
	$(TEST)/ruff check .
	$(TEST)/ruff format --check .
	$(TEST)/mypy

format: $(VENV_TEST)/.installed ## let ruff format and repair the sources
	$(TEST)/ruff check --fix .
	$(TEST)/ruff format .

bench: $(VENV_TEST)/.bench ## all of docs/benchmarks.md, ortopt beside its peers; BENCH="--models A,B --parts files,speed" prints a part, "--keep" goes on
	$(TEST)/python -m benchmarks.page $(BENCH)

bench-real: $(VENV_TEST)/.bench ## ortopt beside its peers on your own networks: MODELS=FOLDER; SPEED="--seconds 600" narrows it
	$(TEST)/python -m benchmarks.speed --models $(or $(MODELS),$(error MODELS names a folder of .onnx files)) $(SPEED)

bench-kernels: $(VENV_TEST)/.installed ## what forms cost on this machine: a table of costs; BENCH="--threads 1,2 --seconds 600"
	$(TEST)/python -m benchmarks.kernels $(BENCH)

abuse: $(VENV_TEST)/.installed ## 64 threads calling one session with changing shapes for a minute
	ORTOPT_TEST_ABUSE_SECONDS=60 $(TEST)/python -m pytest tests/runtime/test_abuse.py

scale: $(VENV_TEST)/.installed ## cost against size up to 100,000 nodes, and two big models; needs 10 GB of disk
	$(TEST)/python -m benchmarks.scale $(BENCH)

zoo: $(VENV_TEST)/.installed ## the whole zoo under every level and grouped in every way, verified, and against its baseline
	$(TEST)/python -m benchmarks.sweep $(BENCH)
	$(TEST)/python -m benchmarks.groups
	$(TEST)/ortopt check models --jobs $(JOBS)
	$(TEST)/python -m benchmarks.regression --parts latency

zoo-baseline: $(VENV_TEST)/.installed ## accept what the zoo gives now: writes models/baseline.json
	$(TEST)/ortopt check models --jobs $(JOBS) --update --prune

reach: $(VENV_TEST)/.installed ## blocks left unfused, and why: of the zoo, or of EXPORTS=FOLDER; REACH="--models A,B" narrows it
	$(TEST)/python -m benchmarks.reach $(if $(EXPORTS),--exports $(EXPORTS)) $(REACH)

exports: $(VENV_TEST)/.exports ## random-weight exports of Hugging Face and diffusers models into EXPORTS=FOLDER; no download
	$(TEST)/python -m benchmarks.exports $(EXPORTS)

fuzz: $(VENV_TEST)/.installed ## random models at every level; FUZZ_MODELS, FUZZ_SECONDS and FUZZ_SEED bound it
	$(TEST)/python -m fuzzing --seed $(FUZZ_SEED) --count $(FUZZ_MODELS) --seconds $(FUZZ_SECONDS)

fuzz-groups: $(VENV_TEST)/.installed ## the same models with oddities, cut into groups in many ways
	$(TEST)/python -m fuzzing.groups --seed $(FUZZ_SEED) --count $(FUZZ_MODELS) --seconds $(FUZZ_SECONDS)

fuzz-shapes: $(VENV_TEST)/.installed ## shape rules and numpy kernels against ONNX Runtime, single calls at their boundaries
	$(TEST)/python -m fuzzing.shapes --seed $(FUZZ_SEED) --count $(FUZZ_MODELS) --seconds $(FUZZ_SECONDS)

fuzz-chains: $(VENV_TEST)/.installed ## rows of 26, 600 and 1,500 nodes of each op; FUZZ="--ops And,MatMul" narrows it
	$(TEST)/python -m fuzzing.chains $(FUZZ)

mutants: $(VENV_TEST)/.installed ## the examples of the passes' tests, changed, at -O1 and -O3, against the originals; FUZZ="--passes A,B" narrows it
	$(TEST)/python -m fuzzing.mutants --seed $(FUZZ_SEED) --count $(FUZZ_MODELS) --seconds $(FUZZ_SECONDS) $(FUZZ)

code-mutants: $(VENV_TEST)/.installed ## changes of ortopt's own code that tests killed: each still is, or its code is gone; needs Python 3.12
	$(TEST)/python -m pytest -q -n $(JOBS) -p fuzzing.code_mutants.reach
	$(TEST)/python -m fuzzing.code_mutants check --jobs $(JOBS) $(FUZZ)

foreign: $(VENV_TEST)/.installed ## models of others at every level, unverified; FOREIGN="FOLDER ARCHIVE" adds more
	$(TEST)/python -m fuzzing.foreign $(FOREIGN)

faults: $(VENV_TEST)/.installed ## kill -9, cancellation and passes that raise, at random instants
	$(TEST)/python -m fuzzing.faults $(FUZZ)

fuzz-loader: $(VENV_TEST)/.fuzz ## broken files, guided by coverage; FUZZ="--seconds 3600" for an hour
	$(TEST)/python -m fuzzing.loader $(FUZZ)

gpu: $(VENV_TEST)/.cuda ## the tests that need a CUDA device; without one they are skipped
	$(TEST)/python -m pytest -m gpu

bench-gpu: $(VENV_TEST)/.cuda ## small models on CUDA against plain ONNX Runtime; BENCH="--provider cpu" is a dry run
	$(TEST)/python -m benchmarks.cuda $(BENCH)

manifest: $(VENV_TEST)/.installed ## what passes declare, for runs that import them when they are needed: after a change of a pass
	$(TEST)/python -m tools.manifest

wheel: $(VENV_TEST)/.installed ## wheel and sdist of ortopt and ortopt-zoo into dist/, with the same bytes everywhere
	rm -rf dist
	$(TEST)/python -m build --no-isolation
	$(TEST)/python -m build --no-isolation --outdir dist models

release-check: $(VENV_TEST)/.release wheel ## what dist/ holds: built again, installed by pip and uv on the oldest and the newest Python; RELEASE="-k pip" narrows it
	ORTOPT_TEST_RELEASE=dist $(TEST)/python -m pytest tests/release $(RELEASE)

report-assets: ## build the script of the report's page from report/; needs npm
	cd report && npm ci --ignore-scripts && npm run build

clean: ## remove environments, caches and everything made here
	rm -rf .venv .venv-test .venv-ci .venv-ort-* build dist site demo bench-out fuzz-out report/node_modules .pytest_cache .mypy_cache .ruff_cache

# A stamp is written last: an installation that broke off is done again, one that succeeded is not.
$(VENV)/.installed: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[$(RUNTIME)]'
	@touch $@

$(VENV_TEST)/.installed: pyproject.toml
	$(PYTHON) -m venv $(VENV_TEST)
	$(TEST)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev,$(RUNTIME)]'
	@touch $@

$(VENV_TEST)/.bench: $(VENV_TEST)/.installed
	$(TEST)/python -m pip install --quiet --disable-pip-version-check --editable '.[bench]'
	@touch $@

$(VENV_TEST)/.exports: $(VENV_TEST)/.installed
	$(TEST)/python -m pip install --quiet --disable-pip-version-check --editable '.[exports]'
	@touch $@

$(VENV_INTEGRATIONS)/.installed: pyproject.toml
	$(PYTHON) -m venv $(VENV_INTEGRATIONS)
	$(VENV_INTEGRATIONS)/bin/python -m pip install --quiet --disable-pip-version-check --editable '.[dev,cpu,optimum,olive]' '$(TORCH)'
	@touch $@

$(VENV_TEST)/.docs: $(VENV_TEST)/.installed
	$(TEST)/python -m pip install --quiet --disable-pip-version-check --editable '.[docs]'
	@touch $@

$(VENV_TEST)/.release: $(VENV_TEST)/.installed
	$(TEST)/python -m pip install --quiet --disable-pip-version-check --editable '.[release]'
	@touch $@

$(VENV_TEST)/.cuda: $(VENV_TEST)/.installed
	$(TEST)/python -m pip install --quiet --disable-pip-version-check --editable '.[cuda]'
	@touch $@

$(VENV_TEST)/.fuzz: $(VENV_TEST)/.installed
	$(TEST)/python -m pip install --quiet --disable-pip-version-check --editable '.[fuzz]'
	@touch $@

