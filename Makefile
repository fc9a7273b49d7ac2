# Two commands set everything up on a machine with Python (3.11 or newer) and, for speed, a C++ compiler:
#   make demo     train, compare and explain binary networks on data that ships with scikit-learn
#   make test     everything that CI checks
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/pip --disable-pip-version-check -q
# Tests run in parallel, one thread each, so two cores take half the time.
JOBS ?= 2
# Python keeps compiled modules even where the environment forbids it: tests start hundreds of processes.
export PYTHONDONTWRITEBYTECODE :=
SOURCES := pyproject.toml CMakeLists.txt constraints.txt $(shell find csrc -type f)

.PHONY: help demo test check test-slow coverage docs gallery wheel package format web wasm bench bench-inference \
        bench-browser evidence sanitize fuzz storm clean
.DEFAULT_GOAL := help

help:
	@sed -n '2,3s/^# *//p' Makefile
	@echo "  make bench    compare training with Adam, and inference with torch and onnxruntime; time the loader"
	@echo "  make evidence compute the paper's tables and figures (hours; STATUS=1 reports progress)"
	@echo "  make storm    kill, interrupt, starve and damage everything in large numbers (half an hour, low priority)"
	@echo "  make coverage show which lines and branches the tests reach"
	@echo "  make docs     build the documentation into site/"
	@echo "  make gallery  train and write the pages of docs/gallery/"
	@echo "  make wheel    build the sdist and a wheel from it into dist/; make package also installs and tries both"
	@echo "  make web      build the runtime for browsers and Node: make wasm compiles csrc/, then web/src/ is bundled"
	@echo "  make format   let ruff fix and format the code"

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

# constraints.txt pins every version: an unpinned torch downloads gigabytes of CUDA libraries.
$(VENV)/.train: $(BIN)/python $(SOURCES)
	$(PIP) install -c constraints.txt -e '.[train]'
	@touch $@

# Holds everything that .train does; one installation compiles the kernels once.
$(VENV)/.test: $(BIN)/python $(SOURCES)
	$(PIP) install -c constraints.txt -e '.[test]'
	@touch $(VENV)/.train $@

demo: $(VENV)/.train
	$(BIN)/bayesbinn demo

test: $(VENV)/.test
	$(MAKE) check

check:
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m 'not slow' -rs -n $(JOBS) --dist worksteal

test-slow: $(VENV)/.test
	$(BIN)/python -m pytest -m slow

# Which lines and branches of src/ the fast tests reach; TESTS=tests/packing runs only those tests.
coverage: $(VENV)/.test
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m 'not slow' -q -n $(JOBS) --dist worksteal $(TESTS) --cov

# Warnings, such as a dead link, are errors (with -q they would be ignored). Nothing is downloaded.
docs: $(VENV)/.test
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict
	@echo "site/index.html"

# Trains the ten digit networks unless they are in GALLERY (half an hour on two cores), and writes docs/gallery/.
gallery: $(VENV)/.test
	$(BIN)/python docs/gallery/build.py $(if $(GALLERY),--runs $(GALLERY))

# The wheel is built from the sdist, which shows that the sdist is complete.
wheel: $(BIN)/python
	$(PIP) install -c constraints.txt build
	rm -rf dist
	$(BIN)/python -m build -q --outdir dist
	@ls -l dist

# Installs both into empty environments; takes minutes, mostly for PyTorch.
package: $(VENV)/.test
	$(BIN)/python -m pytest -m 'slow or not slow' tests/test_installation.py

# The two files of src/bayesbinn/web. The same sources give the same bytes, so both are committed; tests compare them.
wasm: $(VENV)/.test
	PYTHON=$(abspath $(BIN)/python) csrc/wasm/build.sh src/bayesbinn/web/bayesbinn.wasm
	csrc/wasm/build.sh --sources > src/bayesbinn/web/bayesbinn.wasm.sources

web: wasm
	npm install --prefix web --silent
	npm run --prefix web --silent check
	npm run --prefix web --silent build

bench: $(VENV)/.test
	$(BIN)/python benchmarks/training.py --out results/benchmarks
	$(BIN)/python benchmarks/shortcuts.py --out results/benchmarks
	$(BIN)/python benchmarks/profile_step.py --out results/benchmarks
	$(BIN)/python benchmarks/loader.py --out results/benchmarks
	$(BIN)/python benchmarks/scaling.py --out results/benchmarks
	$(BIN)/python benchmarks/exports.py --out results/benchmarks
	-$(BIN)/python benchmarks/tables_command.py --set data.encode=false --out results/benchmarks
	$(MAKE) bench-inference

bench-inference: $(VENV)/.test
	$(BIN)/python benchmarks/inference.py --out results/benchmarks --runs 5

# Node, one thread: our WebAssembly beside onnxruntime-web.
bench-browser: $(VENV)/.test
	npm install --prefix benchmarks/browser --silent
	$(BIN)/python benchmarks/browser.py --out results/benchmarks

# Computes the paper's results that the repository shows; takes hours. STATUS=1 reports progress.
evidence: $(VENV)/.train
	$(BIN)/python benchmarks/evidence.py $(if $(STATUS),--status)

sanitize:
	csrc/tests/sanitize.sh

# 20,000 damaged and forged model files, under AddressSanitizer.
fuzz: $(VENV)/.test
	$(PIP) install -c constraints.txt nanobind
	PYTHON=$(BIN)/python csrc/tests/fuzz.sh --count 20000 --seed 0

# Kills, signals, full disks, locks, damaged files, random networks: the long form of tests/storms (half an hour).
# Writes a line per storm, results/storm.md, and failures to build/storm.log. STORM='--only locks --seed 1' selects.
storm: $(VENV)/.test
	nice -n 19 $(BIN)/python tests/storms/run.py $(STORM)

format: $(VENV)/.test
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf build dist $(VENV) .pytest_cache .mypy_cache .ruff_cache
