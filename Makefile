# make demo · make test · make test-fast · make check · make conformance · make behaviour · make torture · make torture-checkpoint · make bench-startup: each installs
# what it needs into .venv, .nox and .releases, and nothing anywhere else.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
export OMP_NUM_THREADS ?= 1
# Folder in which the tests download and build the emulated NPU.
export ASCEND_ADAPT_CACHE ?= $(CURDIR)/$(VENV)/cache

# pip does not compile what it installs, because most of it is never imported. Imported modules are compiled once; without
# bytecode, which some images forbid by this variable, `import torch` takes 3.5 s instead of 1.5 s in every process.
export PIP_COMPILE := 0
export PYTHONDONTWRITEBYTECODE :=

.PHONY: demo test test-fast vendor-tests check style types conformance record-upstreams behaviour own-tests bench-overhead bench-data bench-convert convert-matrix torture torture-checkpoint hosts bench-startup npu-operators native-matrix native-equal numerics docs docs-serve docs-support docs-run screenshots examples dist pythons upstream-runs upstream-removals install clean signals bench-gpu bench-gpus stress

# Lines of pip's output that show progress: what is downloaded, and its size.
SHELL := /bin/bash
.SHELLFLAGS := -o pipefail -ec
INSTALL := $(BIN)/python -m pip install --progress-bar off --constraint constraints.txt
# An earlier `pip install .` leaves bytecode that pytest compiled, which would hide the packages of this folder.
FORGET := rm -rf $(VENV)/lib/python*/site-packages/ascend_adapt{,_plugins}
SHOWN := | sed -u -n -E 's/^ *(Downloading|Using cached|Installing collected packages)(: | )(.{0,100}).*/  \1 \3/p'

$(VENV)/pyvenv.cfg:
	$(PYTHON) -m venv $(VENV)

# What the demonstration needs; the tests need more.
$(VENV)/.demo: setup.cfg constraints.txt | $(VENV)/pyvenv.cfg
	@echo "Installing torch and DeepSpeed into $(VENV): about 0.3 GB to download with a CPU build of torch (nearly 3 GB with PyPI's CUDA build), 1.2 GB on disk."
	@$(FORGET)
	$(INSTALL) torch --editable '.[deepspeed,data]' $(SHOWN)
	touch $@

# One call of pip instead of two, because each call resolves again.
$(VENV)/.installed: setup.cfg constraints.txt | $(VENV)/pyvenv.cfg
	@echo "Installing what the tests, the demonstration and the documentation need into $(VENV): about 0.4 GB to download with a CPU build of torch."
	@$(FORGET)
	$(INSTALL) torch --editable '.[deepspeed,data,data-fast,data-parquet,data-all,hf,test,docs]' $(SHOWN)
	touch $(VENV)/.demo $@

# Tests of older DeepSpeed releases run in their own environments, which nox creates.
.nox/deepspeed-%.installed: noxfile.py constraints-deepspeed.txt setup.cfg | $(VENV)/.installed
	$(BIN)/nox --install-only --session "deepspeed($*)"
	touch $@

# Triton is tested in its interpreter, outside .venv: its presence changes the behaviour of other packages.
.triton/.installed: constraints-triton.txt $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --no-deps --upgrade --target $(@D) --requirement constraints-triton.txt
	touch $@

install: $(VENV)/.installed

demo: $(VENV)/.demo
	@echo "The first run also downloads torch_npu (45 MB) for the emulated NPU."
	$(BIN)/python examples/demo.py

# Test files are distributed over this number of processes, in the order of tests/conftest.py; WORKERS=0 runs all in one.
WORKERS ?= 2
IN_PARALLEL := --numprocesses $(WORKERS) --dist loadfile --no-loadscope-reorder

SUITE := --pyargs ascend_adapt.testing

test:
	@echo "make test: installs, then style, types, the site, every test in $(WORKERS) processes, and the conformance suite; about 15 minutes on two quiet cores"
	$(MAKE) install
	$(MAKE) --jobs 2 types .nox/deepspeed-0.9.2.installed docs style .triton/.installed
	$(BIN)/python -m pytest $(IN_PARALLEL)
	$(BIN)/python -m pytest $(SUITE) --evidence runs/evidence.json

# For the loop while coding: tests that start few processes and need only .venv. FAST=tests/plugins runs others.
FAST ?= $(wildcard tests/test_*.py) tests/patches tests/runtime tests/recipes tests/launch/placement \
    tests/launch/test_request.py tests/config tests/native/model tests/native/samples tests/native/metrics \
    tests/kernels --ignore tests/kernels/test_triton.py
test-fast: install
	$(BIN)/python -m pytest -q $(IN_PARALLEL) $(FAST)

check: style types docs
	$(BIN)/python -m pytest -q tests/test_layering.py tests/test_packaging.py

style: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: install
	$(BIN)/mypy

# The site, in build/site; a broken link or anchor is an error. `make docs-serve` shows it while you write.
docs: install
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

docs-serve: install
	$(BIN)/mkdocs serve

# The support matrix of both READMEs and docs/evidence.md, from documentation/runs.yaml and the records.
docs-support: install
	$(BIN)/python documentation/support.py

PLAYWRIGHT ?= 1.65.2
# Pictures of reports and of the terminal, in build/screenshots; needs Debian's chromium.
screenshots: install
	$(BIN)/python -m pip install --quiet --upgrade --target build/playwright playwright==$(PLAYWRIGHT)
	PYTHONPATH=build/playwright $(BIN)/python documentation/screenshots.py

# Every command of the READMEs and the quick starts, and every example; `make test` runs the cheap ones.
docs-run examples: install
	$(BIN)/python -m pytest -q tests/documentation/every_block.py tests/examples/every_example.py

# The wheel and the source archive of a release, with the links of its long description made absolute.
dist: install
	@test -n "$(PROJECT_URL)" || { echo "make dist: PROJECT_URL is not set, expected the address of the repository - make dist PROJECT_URL=https://..." >&2; exit 2; }
	rm -rf dist && PROJECT_URL=$(PROJECT_URL) $(BIN)/python -m build --no-isolation
	$(BIN)/twine check --strict dist/*

# Every release, every alteration, every patch, every order: nothing is read from a record. `--evidence` renews the shipped records.
# The tests marked `every_case` are the matrix cells that `make test` does not run.
conformance: install .nox/deepspeed-0.9.2.installed .triton/.installed
	$(BIN)/python -m pytest tests/upstream/every_release.py tests/upstream/mutations.py tests/upstream/test_record.py
	ASCEND_ADAPT_EVERY_CASE=1 $(BIN)/python -m pytest tests/launch/jobs/test_dry_run.py
	ASCEND_ADAPT_EVERY_CASE=1 $(BIN)/python -m pytest -m every_case
	$(BIN)/python -m pytest $(SUITE) --all-orders --evidence ascend_adapt/diagnosis/evidence_records.json

record-upstreams: install
	PYTHONPATH=tests/upstream_runs $(BIN)/python tests/upstream/record.py

behaviour: install
	DEEPSPEED_RELEASE=newest $(BIN)/python -m pytest tests/plugins/test_deepspeed_behaviour.py
	$(BIN)/nox

# The tests that need no torch, on each Python; a missing interpreter is reported.
pythons: install
	$(BIN)/nox --error-on-missing-interpreters --session python types

# LIBRARY=deepspeed, accelerate, transformers or peft; CHECKOUT is its repository.
DEVICE ?= cpu
own-tests: install
	$(BIN)/python tests/upstream/own_tests.py $(LIBRARY) $(CHECKOUT) --device $(DEVICE)

bench-overhead: install
	$(BIN)/python bench/overhead.py

bench-data: install
	$(BIN)/python bench/data.py $(BENCH_DATA)

RUNS ?= 200
SEED ?= 1
torture: install
	$(BIN)/python bench/torture.py --runs $(RUNS) --seed $(SEED) --write docs/reliability.md

torture-checkpoint: RUNS = 100
torture-checkpoint: install
	$(BIN)/python bench/torture_checkpoint.py --runs $(RUNS) --seed $(SEED) --write docs/reliability.md

# Four hosts in namespaces of this host; needs root, and Debian's iproute2, openssh-server and pdsh. GPT-NeoX on two
# of them is from ASCEND_ADAPT_UPSTREAMS.
hosts: install
	ASCEND_ADAPT_HOSTS=all $(BIN)/python -m pytest tests/launch/hosts
	test -e data/stdlib_text_document.bin || $(MAKE) demo
	$(BIN)/python tests/launch/hosts/demo.py data/stdlib_text_document
	$(BIN)/python tests/launch/hosts/torture.py --runs 50 --cuts 10 --seed $(SEED)

# Every signal to every receiver of a job; the rows on two hosts need root, as `make hosts`.
signals: install
	$(BIN)/python tests/launch/signal_table.py --write docs/reliability.md

# The native trainer and its peers on every GPU of this machine: ROWS='345M-16 20B' runs some rows. CHART_INTO has the results.
ROWS ?=
CHART_INTO ?= runs/bench-gpu
bench-gpu: install
	$(BIN)/python -m bench.gpu --into $(CHART_INTO) $(if $(ROWS),--rows $(ROWS))

bench-gpus: install
	$(BIN)/python -m bench.gpus $(if $(ROWS),--rows $(ROWS))

bench-startup: install
	$(BIN)/python bench/startup.py

# The tests of torch_npu and op-plugin at a stated tag, on the emulated NPU; CHECKOUTS is a folder outside this one, which
# gets their repositories and the results. VENDOR_TESTS='--files 100' runs a sample, '--only PATTERN' some files.
CHECKOUTS ?= $(HOME)/.cache/ascend_adapt/vendor-tests
VENDOR_TESTS ?=
vendor-tests: install
	$(BIN)/python -m pip install --quiet --no-deps --upgrade --target .vendor-tests expecttest parameterized scipy ml-dtypes beartype
	$(BIN)/python tests/emulation/vendor/run.py $(CHECKOUTS) $(VENDOR_TESTS)
	$(BIN)/python tests/emulation/vendor/training_operators.py $(CHECKOUTS)

# torch_npu's schemas, read again from the wheels of four releases (about 140 MB).
npu-operators: install
	$(BIN)/python tests/upstream/torch_npu_schemas.py

# Every kind of parallelism of the native trainer and their combinations, on 2, 4 and 8 ranks, compared with one
# process; and its model compared with those of Megatron-core and, from ASCEND_ADAPT_UPSTREAMS, GPT-NeoX.
MEGATRON_CORE ?= 0.12.1
native-matrix: install
	$(BIN)/python -m pip install --quiet --no-deps --upgrade --target .megatron-core megatron-core==$(MEGATRON_CORE)
	$(BIN)/python -m pytest --timeout 1200 tests/native/every_mesh.py tests/native/convergence.py tests/native/glm_learns_copa.py \
	    tests/native/equal_to_upstream.py

# The numerical suites under every kind of arithmetic that torch, MKL, oneDNN and OpenBLAS can be restricted to:
# NUMERICS='avx2 compatible' runs some of them.
NUMERICS ?=
numerics: install .triton/.installed
	$(BIN)/python tests/numerics.py $(NUMERICS)

# Tests that depend on time, while four processes are busy: STRESS='launch native' runs those in two folders of tests/.
STRESS ?=
stress: install
	$(BIN)/python tests/stress.py $(STRESS)

# Checkpoints between every pair of dialects and parallel sizes; 50 conversions killed at random moments; memory and
# speed of converting GPT-NeoX-20B's shapes: CONVERTED='--to megatron --layers 12' for other targets.
CONVERTED ?= --to hf --emptied
convert-matrix: install
	$(BIN)/python -m pytest -q --numprocesses $(WORKERS) tests/checkpoint/every_pair.py
	ASCEND_ADAPT_KILLS=50 $(BIN)/python -m pytest -q -s tests/convert/test_convert.py -k killed

bench-convert: install
	$(BIN)/python bench/convert.py runs/bench-convert $(CONVERTED)

# Whole runs of unmodified code bases, from ASCEND_ADAPT_UPSTREAMS, compared with the native trainer on the same arguments.
native-equal: install
	$(BIN)/python -m pytest --timeout 1200 tests/native/whole_runs_beside_upstream.py

# Jobs of unmodified code bases on the CPU and an emulated NPU: UPSTREAM_JOBS=hugging_face:gpt2-zero2 runs one. What is
# not in ASCEND_ADAPT_UPSTREAMS is reported as not checked, with the command that fetches it.
UPSTREAM_JOBS ?= hugging_face megatron_core megatron_lm megatron_deepspeed gpt_neox glm
upstream-runs: install
	$(BIN)/python tests/upstream_runs/run.py $(UPSTREAM_JOBS) --device cpu --device npu-emulated

# The same jobs again without each patch, to show what the patch is for. Takes hours; results are kept, and a stopped run
# resumes. Patches of DeepSpeed and of Hugging Face are on one page, for all code bases.
OF_CODE_BASES := --plugin old_dependencies
REMOVALS := $(BIN)/python tests/upstream_runs/removal.py --device cpu --device npu-emulated --keep runs/removals
upstream-removals: install
	mkdir -p runs
	$(REMOVALS) hugging_face --seen runs/removals.jsonl --write docs/upstreams/hugging-face.md
	$(REMOVALS) megatron_core megatron_lm --seen runs/removals.jsonl --write docs/upstreams/megatron-lm.md
	$(REMOVALS) 'megatron_deepspeed:deepspeedai-*' --seen runs/removals.jsonl --write docs/upstreams/megatron-deepspeed.md
	$(REMOVALS) 'megatron_deepspeed:bigscience-*' $(OF_CODE_BASES) --plugin megatron_deepspeed --seen runs/removals.jsonl \
	    --write docs/upstreams/megatron-deepspeed.md --table bigscience
	$(REMOVALS) gpt_neox $(OF_CODE_BASES) --plugin gpt_neox --seen runs/removals.jsonl --write docs/upstreams/gpt-neox.md
	$(REMOVALS) glm $(OF_CODE_BASES) --plugin glm --seen runs/removals.jsonl --write docs/upstreams/glm.md

clean:
	rm -rf $(VENV) .nox .triton .megatron-core .vendor-tests build dist *.egg-info data runs
