"""The words of CONTRIBUTING's vocabulary: none of its last column stands in a name or in text that a person reads.

``python tests/test_vocabulary.py [PATH ...]`` prints each place as file:line: word.
"""

from __future__ import annotations

import itertools
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = "CONTRIBUTING.md"
READ = (".py", ".md", ".c", ".h", ".cfg", ".toml", ".sh", "")
# Records of upstream's own words, and the table itself.
NOT_OURS = ("tests/upstream/*.json", "LICENSE")


def vocabulary() -> dict[str, str]:
    """Return each phrase that is not used, with the term that is."""
    section = (ROOT / PAGE).read_text().partition("## Vocabulary\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| ([^|]+) \| [^|]* \| (.*) \|$", section, re.M)
    return {
        " ".join(words): term
        for term, column in rows
        for phrase in re.findall(r"`([^`]+)`", column)
        for words in itertools.product(*(word.split("/") for word in phrase.split()))
    }


PHRASES = vocabulary()
# A method of files.
KEPT = re.compile(r"\.tell\b")
# In names words are joined by underscores or capitals; in text by blanks or a line's end.
PATTERN = re.compile(
    r"(?<![A-Za-z])(?:" + "|".join(r"[\s_]+".join(phrase.split()) for phrase in PHRASES) + r")(?![a-z])",
    re.IGNORECASE,
)


def files() -> list[Path]:
    command = ["git", "ls-files"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\n")
    paths = [Path(name) for name in listed if name and not any(Path(name).match(pattern) for pattern in NOT_OURS)]
    return [path for path in paths if path.suffix in READ and (ROOT / path).is_file()]


def places(text: str) -> Iterator[tuple[int, str]]:
    """Yield the line and the words of each place that uses one of them."""
    for found in PATTERN.finditer(text):
        yield text.count("\n", 0, found.start()) + 1, " ".join(found[0].split())


def found_in(path: Path) -> list[str]:
    text = KEPT.sub("", (ROOT / path).read_text(errors="replace"))
    if path == Path(PAGE):
        text = re.sub(r"^\|.*\|$", "", text, flags=re.M)
    return [f"{path}:{line}: {words}" for line, words in places(text)]


def room_of(path: Path) -> str:
    return "/".join(path.parts[:3][: len(path.parts) - 1]) or "."


@pytest.mark.parametrize("room", sorted({room_of(path) for path in files()}))
def test_no_other_word_is_used(room: str) -> None:
    assert [place for path in files() if room_of(path) == room for place in found_in(path)] == []


def test_the_page_is_short_and_each_row_can_be_found() -> None:
    rows = [line for line in (ROOT / PAGE).read_text().splitlines() if line.startswith("| ") and "`" in line]
    assert 0 < len(rows) <= 40
    for phrase in PHRASES:
        assert list(places(f"it {phrase} here")), phrase
        assert list(places(f"def _{phrase.replace(' ', '_')}():")), phrase


if __name__ == "__main__":
    wanted = [Path(word) for word in sys.argv[1:]] or [Path()]
    for path in files():
        if any(path.is_relative_to(one) for one in wanted):
            print(*found_in(path), sep="\n", end="\n" if found_in(path) else "")
