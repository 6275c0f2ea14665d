# `make demo` runs the library on real data; `make test` checks it. Each target sets up what it needs in this folder and
# changes nothing outside it (where CI is set, the tests also install a browser).
#
# On Linux, PyPI's torch includes CUDA. For the smaller CPU build, set PIP_EXTRA_INDEX_URL to the CPU index that
# PyTorch's "Start locally" page names.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV   ?= .venv
BIN    := $(VENV)/bin
FLOORS ?= .venv-floors
ENGINES ?= .venv-engines
# Three workers on two cores: many tests wait for servers and other processes. One thread each: the data are small.
# Python compiles modules when they are first imported, which is quicker than to compile all of them now.
PIP    := python -m pip install --quiet --disable-pip-version-check --no-compile
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 3 --dist loadfile
# These need tools of make test.
WITHOUT_ENGINES := web/test_app.py web/test_page.py
FAST   := -n 2 --dist loadfile -m "not slow and not long and not postgres and not browser and not engines"

.PHONY: demo site evidence test test-all test-engines test-fast test-pythons test-floors coverage torture lint dist clean
.PHONY: bench bench-digits bench-speed bench-scaling bench-many bench-scoring bench-index bench-rivals bench-fit-times bench-paper bench-multilabel
.PHONY: bench-literal bench-real bench-ablation bench-rates bench-load bench-reload bench-drift bench-busy bench-gpu bench-scale
.DELETE_ON_ERROR:

$(VENV)/.base: pyproject.toml constraints.txt  ## the library alone: all that the demo needs
	$(PYTHON) -m venv $(VENV)
	$(BIN)/$(PIP) -c constraints.txt -e .
	touch $@

$(VENV)/.ready: $(VENV)/.base                  ## with the extras, the tests' tools and the linters
	$(BIN)/$(PIP) -c constraints.txt -e '.[dev]'
	touch $@

$(FLOORS)/.ready: pyproject.toml constraints.txt .ci/floors.py
	$(PYTHON) -m venv $(FLOORS)
	$(PYTHON) .ci/floors.py > $(FLOORS)/constraints.txt
	$(FLOORS)/bin/$(PIP) -c $(FLOORS)/constraints.txt -e '.[dev]'
	touch $@

$(ENGINES)/.ready: pyproject.toml constraints.txt  ## Ray, LanceDB, Spark, Dask, Milvus, …: 3 GB
	$(PYTHON) -m venv $(ENGINES)
	$(ENGINES)/bin/$(PIP) -c constraints.txt -e '.[engines]'
	touch $@

demo: $(VENV)/.base             ## train on real digits, print the table, write the page
	$(BIN)/dish demo --output demo

bench-digits: $(VENV)/.base     ## the README's table of digits
	$(BIN)/dish demo --output demo && cp demo/digits.json benchmarks/results/digits.json

test: lint                      ## lint, types, and all tests but the longest
	$(if $(CI),sh tests/web/install_chromium.sh)
	$(PYTEST) -m "not long and not engines"

test-engines: $(ENGINES)/.ready ## tests with engines that are too large for make test, in an environment of their own
	$(ENGINES)/bin/python -m pytest -m engines $(addprefix --ignore=tests/,$(WITHOUT_ENGINES))

test-all: lint                  ## lint, types, and all tests
	$(if $(CI),sh tests/web/install_chromium.sh)
	$(PYTEST) -m "not engines"

test-fast: $(VENV)/.ready       ## tests without a server, a browser, or anything slow
	$(BIN)/python -m pytest $(FAST)

coverage: $(VENV)/.ready        ## line coverage of the tests in `make test`, by module
	$(PYTEST) -m "not long and not engines" --cov=dish --cov-report=term:skip-covered

test-pythons:                   ## the fast tests with every supported Python on this machine
	@for version in 3.11 3.12 3.13; do \
	  if command -v python$$version > /dev/null; then $(MAKE) test-fast PYTHON=python$$version VENV=.venv-$$version || exit 1; \
	  else echo "python$$version is not on this machine: skipped"; fi; done

test-floors: $(FLOORS)/.ready   ## the fast tests with the lowest versions that pyproject.toml allows
	$(FLOORS)/bin/python -m pytest $(FAST)

dist: $(VENV)/.ready            ## wheel and sdist, checked in fresh environments without the repository
	$(BIN)/python .ci/check_dist.py --python $(PYTHON)

site: $(VENV)/.ready            ## the documentation as pages in site/; runs the examples; any warning or broken link is an error
	rm -rf site docs/generated docs/examples
	OMP_NUM_THREADS=1 $(BIN)/python -m sphinx -W --keep-going --quiet -b html -d site/.trees docs site
	rm -rf site/.trees
	$(BIN)/python .ci/check_site.py site

torture: $(VENV)/.ready         ## fuzzed files, index changes, replay, replaced files, worst requests: 15 minutes at most
	$(BIN)/python tests/torture/run.py --minutes 15 --output benchmarks/results/torture.json

evidence: $(VENV)/.ready        ## every figure of the README and docs: its results file, commit and age; fails if one is stale
	$(BIN)/python benchmarks/evidence.py --all

lint: $(VENV)/.ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: bench-digits bench-speed bench-scaling bench-scoring

bench-speed: $(VENV)/.ready     ## fit time relative to its matrix products, by stage
	$(BIN)/python benchmarks/speed.py

bench-scaling: $(VENV)/.ready   ## time and memory for n = 25k … 400k
	$(BIN)/python benchmarks/scaling.py

bench-many: $(VENV)/.ready      ## 20,000 classes, 100,000 synthetic rows: time, memory and MAP of DISH and DISH-K
	$(BIN)/python benchmarks/many_classes.py

bench-scoring: $(VENV)/.ready   ## scoring a million codes, compared with NumPy
	$(BIN)/python benchmarks/scoring.py

bench-index: $(VENV)/.ready     ## the index compared with faiss: a million learned and a million random codes
	$(BIN)/python benchmarks/index.py

bench-rivals: $(VENV)/.ready    ## fit times of DISH and its nearest rivals, measured in turn
	$(BIN)/python benchmarks/rivals.py

bench-fit-times: $(VENV)/.ready ## fit times on synthetic rows, the README's ten lines, encoding on one core
	$(BIN)/python benchmarks/fit_times.py

bench-paper: $(VENV)/.ready     ## the paper's tables and figures; runs what is missing
	$(BIN)/dish reproduce all --output report

bench-literal: $(VENV)/.base    ## DISH-K as the paper prints it, compared with the defaults: CIFAR-10 GIST, five trials
	$(BIN)/python benchmarks/literal.py

bench-multilabel: $(VENV)/.ready ## real multi-label features: make bench-multilabel FEATURES="a.npz b.npz"
	$(BIN)/python benchmarks/multilabel.py $(FEATURES)

bench-drift: $(VENV)/.ready      ## drift: withheld classes, false alarms, recentring: make bench-drift FEATURES="a.npz b.npz"
	$(BIN)/python benchmarks/drift.py $(FEATURES)

bench-real: $(VENV)/.ready       ## all methods on real features, then docs/real.md: make bench-real FEATURES="a.npz b.npz"
	$(BIN)/python benchmarks/real.py $(FEATURES)
	$(BIN)/python benchmarks/real_tables.py

bench-ablation: $(VENV)/.ready   ## what each part of DISH contributes, then docs/real.md: make bench-ablation FEATURES="a.npz b.npz"
	$(BIN)/python benchmarks/ablation.py $(FEATURES)
	$(BIN)/python benchmarks/real_tables.py

bench-rates: $(VENV)/.ready      ## on a machine with a GPU: the learning rates of the deep rivals, on held-out training images
	$(BIN)/python benchmarks/deep_rates.py

bench-load: $(VENV)/.ready       ## three minutes of requests at saturation against real servers: make bench-load AGAINST="--against ../old/src"
	$(BIN)/python benchmarks/load.py $(AGAINST)

bench-reload: $(VENV)/.ready     ## three minutes: a saturated server switches collections; no request may fail
	$(BIN)/python benchmarks/reload.py

bench-busy: $(VENV)/.ready      ## fits next to busy processes, first use, imports: ratios within one run
	$(BIN)/python benchmarks/busy.py

bench-gpu: $(VENV)/.ready       ## on a machine with a GPU: a million rows of two shapes, few rows, multi-label rows
	$(BIN)/python benchmarks/gpu.py

bench-scale: $(VENV)/.ready     ## up to 1.28 M rows from a file of 21 GB, two processes, kills, the plot
	$(BIN)/python benchmarks/scale.py cpu
	$(BIN)/python benchmarks/scale.py ranks
	$(BIN)/python benchmarks/scale.py kills
	$(BIN)/python benchmarks/scale.py plot

clean:
	rm -rf $(VENV) $(FLOORS) $(ENGINES) .venv-3.* demo site docs/generated docs/examples build dist src/*.egg-info .pytest_cache .mypy_cache .ruff_cache
