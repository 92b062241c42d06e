# make demo · make test · make check · make torture · make bench-startup: each installs what it needs into .venv, and nothing anywhere else.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
export OMP_NUM_THREADS ?= 1
# Where the emulated NPU of the tests is downloaded to and built.
export ASCEND_ADAPT_CACHE ?= $(CURDIR)/$(VENV)/cache

EXAMPLE := examples/megatron_deepspeed_gpt2

.PHONY: demo test check bench-overhead bench-data torture bench-startup npu-operators install clean

$(VENV)/.installed: setup.cfg constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt torch
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[deepspeed,data,data-fast,data-all,hf,test]'
	touch $@

# The tests that need an older DeepSpeed run it in an environment of its own.
.venv-deepspeed-0.9.2/.installed: setup.cfg constraints-deepspeed-0.9.2.txt
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/python -m pip install --quiet --constraint constraints-deepspeed-0.9.2.txt torch setuptools
	$(@D)/bin/python -m pip install --quiet --constraint constraints-deepspeed-0.9.2.txt --editable '.[deepspeed]'
	touch $@

# Triton is tried in its interpreter, apart from .venv: where it is installed, other packages behave otherwise.
.triton/.installed: constraints-triton.txt $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --no-deps --upgrade --target $(@D) --requirement constraints-triton.txt
	touch $@

install: $(VENV)/.installed

demo: install
	$(BIN)/python $(EXAMPLE)/prepare_data.py --output-prefix data/stdlib
	$(BIN)/ascend-adapt preprocess --input data/stdlib.jsonl --output-prefix data/stdlib \
	    --vocab data/stdlib-vocab.json --merge-file data/stdlib-merges.txt --dataset-impl mmap \
	    --tokenizer-type GPT2BPETokenizer --append-eod --workers 2
	rm -rf runs/demo
	$(BIN)/ascend-run --nproc 2 --device cpu --log-dir runs/demo $(EXAMPLE)/pretrain_gpt2.py \
	    --data-path data/stdlib_text_document --pipeline-model-parallel-size 2 --exit-loss-drop 2.0
	$(BIN)/ascend-adapt status runs/demo

test: check .venv-deepspeed-0.9.2/.installed .triton/.installed
	$(BIN)/python -m pytest

check: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -q tests/test_layering.py tests/test_packaging.py

bench-overhead: install
	$(BIN)/python bench/overhead.py

bench-data: install
	$(BIN)/python bench/data.py $(BENCH_DATA)

RUNS ?= 200
SEED ?= 1
torture: install
	$(BIN)/python bench/torture.py --runs $(RUNS) --seed $(SEED) --write docs/reliability.md

bench-startup: install
	$(BIN)/python bench/startup.py

# torch_npu's schemas, read anew out of the wheels of four releases (about 140 MB).
npu-operators: install
	$(BIN)/python tests/upstream/torch_npu_schemas.py

clean:
	rm -rf $(VENV) .venv-deepspeed-0.9.2 .triton build dist *.egg-info data runs
