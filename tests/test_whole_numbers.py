"""Whole numbers in variables, names and text have one reader, which no digit of another script confuses."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import pytest

from ascend_adapt.errors import SettingsError
from ascend_adapt.whole_numbers import of_variable, whole_number

ROOT = Path(__file__).parents[1]
SIGNED = ["-1", "+1", "1.0", "0x1", "1_0"]
# int() raises for the first two and the fourth, and reads the third as 3.
OTHER_DIGITS = ["²", "①", "٣", "9" * 5000, "1" * 19]


@pytest.mark.parametrize(
    "text", [None, "", " ", "-1", "+1", "1.0", "0x1", "1_0", *OTHER_DIGITS], ids=lambda text: repr(text)[:9]
)
def test_what_is_no_whole_number(text):
    assert whole_number(text) is None


@pytest.mark.parametrize(("text", "number"), [("0", 0), (" 12 ", 12), ("007", 7), ("9" * 18, 10**18 - 1)])
def test_a_whole_number(text, number):
    assert whole_number(text) == number


def test_a_variable_is_a_number_or_its_default():
    assert of_variable({"WORLD_SIZE": "8"}, "WORLD_SIZE", 1) == 8
    assert of_variable({"WORLD_SIZE": " "}, "WORLD_SIZE", 1) == of_variable({}, "WORLD_SIZE", 1) == 1


@pytest.mark.parametrize("text", ["two", *OTHER_DIGITS], ids=lambda text: text[:9])
def test_another_variable_is_refused_by_name(text):
    with pytest.raises(SettingsError, match=r"^WORLD_SIZE='.*': expected a whole number — correct it or unset it$"):
        of_variable({"WORLD_SIZE": text}, "WORLD_SIZE", 1)


def readers_of_their_own(path: Path) -> list[str]:
    """Return the calls of a module that read a whole number from text in their own way."""
    return [
        f"{path.name}:{node.lineno}: {ast.unparse(node)}"
        for node in ast.walk(ast.parse(path.read_text()))
        if (isinstance(node, ast.Attribute) and node.attr in ("isdigit", "isdecimal", "isnumeric"))
        or (isinstance(node, ast.Call) and ast.unparse(node).startswith(("int(os.environ", "int(environ")))
    ]


def test_there_is_no_other_reader():
    sources = [path for folder in ("ascend_adapt", "plugins") for path in (ROOT / folder).rglob("*.py")]
    assert [found for path in sources for found in readers_of_their_own(path)] == []


def test_another_reader_is_seen(tmp_path):
    (tmp_path / "own.py").write_text("import os\nx = int(os.environ.get('RANK', 0))\ny = '1'.isdigit()\n")
    assert len(readers_of_their_own(tmp_path / "own.py")) == 2


def test_files_of_a_run_directory_with_other_digits_are_no_files_of_a_rank(tmp_path):
    """A name such as ``adapt-status.².json`` once ended `status` with a traceback."""
    from ascend_adapt.diagnosis.status_report import NoStatus, of_run
    from ascend_adapt.launch.one_host.run_directory import RunDirectory

    for name in ("adapt-status.².json", "job.².json"):
        (tmp_path / name).write_text(json.dumps({}))
    assert RunDirectory(tmp_path).of_all_nodes() == [RunDirectory(tmp_path)]
    with pytest.raises(NoStatus, match=r"has no adapt-status\.<rank>\.json"):
        of_run(tmp_path)
