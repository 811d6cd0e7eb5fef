# Everything runs in virtual environments of this folder; nothing is installed elsewhere.
#   make demo      train the example on 2 ranks
#   make test      all tests
#   make check     format, lint, types, layers, unit tests (a few minutes)
#   make format    let ruff format and fix
#   make sanitize  the tests of the C++ core under ASan + UBSan and under TSan
#   make kernels   compile the CUDA kernel for every element type and every kind of device, by NVRTC
#   make bench     the tables and pictures of docs/benchmarks (BENCH_QUICK=1: a short try in build/;
#                  BENCH_FLAGS="--launches 1 --only training": a part; several hosts need root)
#   make gpu-check is the CUDA executor right and fast on this machine's GPU? Under four minutes, no network;
#                  in the environment of GPU_PYTHON, which has blinkrun[cuda13] (or cuda12), torch if it is
#                  to train; GPU_FLAGS="--parts loopback-2,times-2": a part
#   make plans     the tables and the picture of docs/planning.md (about ten minutes)
#   make paper     docs/paper.md: the Blink paper's evaluation on the simulator (PAPER_FLAGS=--emulate:
#                  and on emulated machines, a quarter of an hour)
#   make clean     remove what the others made
# PYTHON names the interpreter, PIP_FLAGS goes to every pip install.

PYTHON ?= python3
PIP_FLAGS ?=
BENCH_QUICK ?=
BENCH_FLAGS ?=
PAPER_FLAGS ?=
GPU_FLAGS ?=
PYTEST_FLAGS ?=

TEST := .venv-test
DEMO := .venv-demo
MPICH := .venv-mpich
TREE := $(TEST)/tree
GPU_PYTHON ?= $(if $(wildcard $(TEST)/.blinkrun),$(TEST)/bin/python,$(PYTHON))
CORE := setup.py pyproject.toml blinkrun/version.py $(wildcard blinkrun/csrc/*)

.PHONY: demo test check lint format sanitize kernels bench gpu-check plans paper dist clean python
.DELETE_ON_ERROR:
.NOTPARALLEL:  # a recipe has all cores, and environments share what is compiled

# The core is compiled once for all environments, and for the wheel that the tests build.
export BLINKRUN_OBJECTS := $(CURDIR)/build/objects

demo: $(DEMO)/.blinkrun
	$(DEMO)/bin/blinkrun -np 2 examples/torch_digits.py

test: $(TEST)/.blinkrun
	$(TEST)/bin/python -m pytest -n 2 --dist loadscope --run-slow \
	  --require=mpi,torch,tensorflow,keras,tf_keras $(PYTEST_FLAGS)

check: lint
	$(TEST)/bin/python -m pytest -q -n 2 tests/unit $(PYTEST_FLAGS)

# launcher/ is installed as blinkrun.launcher: types and layers are checked on a tree of links that
# looks as the installed package does.
lint: $(TEST)/.blinkrun
	$(TEST)/bin/ruff format --check .
	$(TEST)/bin/ruff check .
	rm -rf $(TREE) && mkdir -p $(TREE)/blinkrun
	ln -s $(CURDIR)/blinkrun/* $(CURDIR)/launcher $(TREE)/blinkrun/
	cd $(TREE) && ../bin/mypy --config-file $(CURDIR)/pyproject.toml \
	  --cache-dir $(CURDIR)/.mypy_cache/tree -p blinkrun
	cd $(TREE) && ../bin/lint-imports $(CURDIR)/pyproject.toml \
	  --cache-dir $(CURDIR)/.import_linter_cache

format: $(TEST)/.packages
	$(TEST)/bin/ruff format .
	$(TEST)/bin/ruff check --fix .

sanitize: $(TEST)/.blinkrun
	$(MAKE) -C tests/native address thread PYTHON=$(CURDIR)/$(TEST)/bin/python

kernels: $(TEST)/.blinkrun
	$(TEST)/bin/python -m pytest -q -n 2 --run-slow --every-kernel tests/unit/cuda $(PYTEST_FLAGS)

bench: $(TEST)/.blinkrun $(MPICH)/.blinkrun
	$(TEST)/bin/python -m blinkrun.bench.report --mpich $(MPICH)/bin $(BENCH_FLAGS) \
	  $(if $(BENCH_QUICK),--quick build/benchmarks,docs/benchmarks)

gpu-check:
	$(GPU_PYTHON) -m blinkrun.bench.gpu_check $(GPU_FLAGS)

plans: $(TEST)/.blinkrun
	$(TEST)/bin/python -m blinkrun.bench.plans docs/planning.md

paper: $(TEST)/.blinkrun
	$(TEST)/bin/blinkrun simulate --paper all --out docs/paper --page docs/paper.md $(PAPER_FLAGS)

dist: $(TEST)/.packages
	rm -rf build/lib* dist
	$(TEST)/bin/python setup.py -q sdist
	$(TEST)/bin/pip wheel -q --no-build-isolation --no-deps --wheel-dir dist .

clean:
	rm -rf $(TEST) $(DEMO) $(MPICH) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache \
	  .hypothesis .import_linter_cache blinkrun/_core*.so

python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	  echo "make: $(PYTHON) is not Python 3.11 or newer;" \
	    "name one that is: make PYTHON=python3.12" >&2; exit 2; }

# The test environment is an editable install, so that a changed file needs no new one.
$(TEST)/.packages: requirements/test.txt requirements/build.txt requirements/runtime.txt \
    requirements/dev.txt requirements/tensorflow.txt requirements/tensorflow-peers.txt \
    requirements/cuda.txt | python
	test -x $(TEST)/bin/python || $(PYTHON) -m venv $(TEST)
	$(TEST)/bin/pip install -q $(PIP_FLAGS) -r requirements/test.txt
	$(TEST)/bin/pip install -q $(PIP_FLAGS) --no-deps -r requirements/tensorflow-peers.txt
	touch $@

$(TEST)/.blinkrun: $(TEST)/.packages $(CORE)
	$(TEST)/bin/pip install -q --no-build-isolation --no-deps -e .
	touch $@

# The benchmark's peer MPICH, with blinkrun over it.
$(MPICH)/.blinkrun: requirements/mpich.txt requirements/build.txt $(TEST)/.blinkrun | python
	test -x $(MPICH)/bin/python || $(PYTHON) -m venv $(MPICH)
	$(MPICH)/bin/pip install -q $(PIP_FLAGS) -r requirements/mpich.txt
	$(MPICH)/bin/pip install -q --no-build-isolation --no-deps -e .
	touch $@

# The demo environment holds what a user gets: an installed wheel.
$(DEMO)/.packages: requirements/demo.txt requirements/build.txt requirements/runtime.txt | python
	test -x $(DEMO)/bin/python || $(PYTHON) -m venv $(DEMO)
	$(DEMO)/bin/pip install -q $(PIP_FLAGS) -r requirements/demo.txt
	touch $@

$(DEMO)/.blinkrun: $(DEMO)/.packages $(CORE) $(shell find blinkrun launcher -name '*.py')
	rm -rf build/lib*
	$(DEMO)/bin/pip install -q --no-build-isolation --no-deps --force-reinstall .
	touch $@
