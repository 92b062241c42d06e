"""Each known problem is found in its own example, and in nothing that is healthy."""

from __future__ import annotations

import functools
import re

import pytest

from ascend_adapt.problems import explanation, known, reading
from ascend_adapt.problems.facts import Facts
from ascend_adapt.problems.log_text import LogText

PROBLEMS, FAULTS = known.problems({})


def found_in(example, folder):
    """Return the names of the problems that a text or facts show."""
    if isinstance(example, str):
        return {one.problem.name: one for one in explanation.explain(LogText(example), PROBLEMS, Facts())}
    readings = []
    for name, text in example.get("files", {}).items():
        (folder / name).write_text(text)
        readings.append(reading.read(folder / name))
    read = functools.reduce(lambda one, other: one + other, readings) if readings else None
    exported = {name: value for name, value, _ in read.environ} if read else {}
    versions = {name: str(version) for name, version in example.get("versions", {}).items()}
    environ = {**{name: str(value) for name, value in example.get("environ", {}).items()}, **exported}
    facts = Facts(versions, environ, example.get("device", "npu"), read, is_complete=True)
    return {one.problem.name: one for one in explanation.predict(PROBLEMS, facts)}


def test_the_files_are_valid():
    assert FAULTS == []
    assert len(PROBLEMS) > 100


@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda one: one.name)
def test_a_problem_is_found_in_its_example_only(problem, tmp_path):
    found = found_in(problem.example, tmp_path)
    assert problem.name in found, sorted(found)
    assert not re.search(r"\{\w+\}", found[problem.name].cause + found[problem.name].do)
    if problem.healthy:
        assert problem.name not in found_in(problem.healthy, tmp_path)
