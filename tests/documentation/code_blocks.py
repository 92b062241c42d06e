"""The code blocks of the READMEs and the quick starts, and how each kind is run."""

from __future__ import annotations

import doctest
import os
import re
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = (
    "README.md",
    "docs/index.md",
    "docs/troubleshooting.md",
    *(f"docs/quickstart/{one.name}" for one in sorted((ROOT / "docs/quickstart").glob("*.md"))),
)
TRANSLATED = {
    "README.md": "README.zh-CN.md",
    "docs/troubleshooting.md": "docs/zh/troubleshooting.md",
    **{page: page.replace("docs/", "docs/zh/") for page in PAGES if page.startswith("docs/quickstart/")},
}
_BLOCK = re.compile(r"(<!-- slow -->\n)?^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    """One fenced block: its page, its language, its text, and whether only `make docs-run` runs it."""

    page: str
    language: str
    text: str
    slow: bool

    @property
    def name(self) -> str:
        """The first line, with its page, as the name of a test."""
        return f"{Path(self.page).stem}: {self.text.splitlines()[0][:60]}"


def blocks(page: str, language: str) -> list[Block]:
    """Return the blocks of one page in this language."""
    found = _BLOCK.findall((ROOT / page).read_text(encoding="utf-8"))
    return [Block(page, named, text, bool(slow)) for slow, named, text in found if named == language]


def commands(block: Block) -> list[list[str]]:
    """Return the commands of a block of the shell, without their comments."""
    return [
        words for line in block.text.replace("\\\n", "").splitlines() if (words := shlex.split(line, comments=True))
    ]


def environment() -> dict[str, str]:
    """Return the environment of a user whose virtual environment is active."""
    programs = str(Path(sys.executable).parent)
    return {**os.environ, "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}", "HF_HUB_OFFLINE": "1"}


# Losses have two decimals or more. They are compared within what 16 bits differ by between processors.
_LOSS = re.compile(r"\d+\.\d{2,}")
_TOLERANCE = 0.02


def check_console(block: Block) -> None:
    """Run the commands of a console block at the root and compare what they print; ``...`` stands for anything."""
    for entry in re.split(r"(?m)^\$ ", block.text)[1:]:
        command, _, expected = entry.partition("\n")
        options = {"cwd": ROOT, "env": environment(), "stderr": subprocess.STDOUT}
        ran = subprocess.run(command, shell=True, stdout=subprocess.PIPE, text=True, **options)
        flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
        shown = _LOSS.sub("...", expected)
        assert doctest.OutputChecker().check_output(shown, ran.stdout, flags), f"$ {command}\n{ran.stdout}"
        printed = [float(one) for one in _LOSS.findall(ran.stdout)]
        for loss in map(float, _LOSS.findall(expected)):
            assert min(abs(loss - one) for one in printed) <= _TOLERANCE, (
                f"$ {command}\n{loss}, expected one of {printed}"
            )
