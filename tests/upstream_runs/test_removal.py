"""The table of removed patches: which jobs a patch is taken out of, what counts as an effect, and continuing."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import marked_page
import pytest
import records
import removal
import upstream_job
from records import Record
from upstream_job import Ended, UpstreamJob

WHOLE = Record("base:one", "cpu", "float32", (), True, 10.0, 0, (2.0, 1.0), ("p.a", "p.b"), {"applied": 2})


@pytest.mark.parametrize(
    ("changed", "shows", "reported"),
    [
        ({}, False, "the same losses, every digit"),
        ({"losses": (2.0, 1.000001)}, False, "losses 1e-06 apart"),
        ({"losses": (2.0, 1.5)}, True, "other numbers: loss 2 is 1.5 instead of 1"),
        ({"losses": (2.0,), "reported": "KeyError: 1"}, True, "1 losses instead of 2: `KeyError: 1`"),
        ({"losses": (), "reported": "it said nothing"}, True, "0 losses instead of 2: `it said nothing`"),
        ({"seconds": 21.0}, True, "slower: 21 s instead of 10 s"),
        ({"seconds": 19.0}, False, "the same losses, every digit"),
        ({"problems": ("p.b lost: reloaded",)}, True, "p.b lost: reloaded"),
        ({"code": 1, "reported": "KeyError: 'step'"}, True, "`KeyError: 'step'`"),
        (
            {"code": 1, "reported": "[rank1]: KeyError: 1 (exit code 1); its log: /a/b/rank-1.log"},
            True,
            "`KeyError: 1`",
        ),
        ({"code": 1, "reported": "OSError: \x1b[1mnone\x1b[0m"}, True, "`OSError: none`"),
        ({"code": 1, "reported": "OSError: /some/where/of/ours/a.py: a|b"}, True, r"`OSError: a.py: a\|b`"),
    ],
)
def test_what_the_absence_of_a_patch_does(changed, shows: bool, reported: str) -> None:
    without = replace(WHOLE, without=("p.a",), **changed)
    assert removal.effect(WHOLE, without) == removal.Effect(shows, reported)


def test_a_patch_is_taken_out_of_the_first_jobs_of_each_device_it_is_for() -> None:
    second = replace(WHOLE, job="base:second")
    emulated = replace(WHOLE, job="base:other", device="npu-emulated")
    for_devices = {"p.a": ("cpu", "npu"), "p.b": ()}
    found = removal.uses([emulated, WHOLE, second], ("cpu", "npu-emulated"), for_devices, tries=1)
    assert found == {"p.a": [[WHOLE], [emulated]], "p.b": [[WHOLE, emulated]]}
    found = removal.uses([emulated, WHOLE, second], ("cpu", "npu-emulated"), for_devices, tries=2)
    assert found["p.b"] == [[WHOLE, second, emulated]]


@pytest.fixture
def made(monkeypatch) -> list[tuple[str, ...]]:
    """Jobs that end at once: without p.a one fails, p.b changes nothing; what was left out, run by run."""
    left_out: list[tuple[str, ...]] = []

    def run(job, place, *, disable=()) -> Ended:
        left_out.append(tuple(disable))
        outcomes = [{"plugin": "p", "patch": patch, "state": "applied", "reason": ""} for patch in ("a", "b")]
        report = {"outcomes": outcomes, "problems": []}
        return Ended(int("p.a" in disable), (2.0, 1.0), "ValueError: no a\n", report, place.folder)

    monkeypatch.setattr(upstream_job, "run", run)
    return left_out


def test_each_patch_is_left_out_until_its_absence_shows_and_no_run_is_made_again(made, tmp_path) -> None:
    jobs = [("base", UpstreamJob(name, lambda place: ())) for name in ("one", "two")]
    seen = tmp_path / "seen.jsonl"

    def rows(limit: float) -> tuple[list[tuple[str, str]], removal.Removal]:
        it = removal.Removal(seen, tmp_path, limit)
        wholes = [record for name, job in jobs if (record := removal.complete_job(it, name, job, "cpu"))]
        found = removal.uses(wholes, ("cpu",), {}, tries=2)
        return [(patch, effect.text) for patch, _, effect in removal.rows(it, jobs, found)], it

    reported, it = rows(3)
    assert it.limit == 0
    assert reported == [("p.a", "`ValueError: no a`"), ("p.b", "not run")]
    reported, it = rows(float("inf"))
    assert reported == [("p.a", "`ValueError: no a`"), ("p.b", "the same losses, every digit; so in 1 more")]
    assert made == [(), (), ("p.a",), ("p.b",), ("p.b",)]
    assert [record.without for record in records.read(seen)] == made
    records.append(
        seen, replace(records.read(seen)[-1], job="base:two", without=("p.c",), code=1, reported="KeyError: 1")
    )
    it = removal.Removal(seen, tmp_path, 0)
    found = {"p.c": [[record for record in records.read(seen) if not record.without]]}
    assert [effect.text for _, _, effect in removal.rows(it, jobs, found)] == ["`KeyError: 1`"]


def test_a_job_that_is_not_whole_is_compared_with_nothing(monkeypatch, tmp_path, capsys) -> None:
    report = {"outcomes": [], "problems": []}
    monkeypatch.setattr(
        upstream_job, "run", lambda job, place, **_: Ended(1, (), "ValueError: bad\n", report, tmp_path)
    )
    it = removal.Removal(tmp_path / "seen.jsonl", tmp_path)
    assert removal.complete_job(it, "base", UpstreamJob("one", lambda place: ()), "cpu") is None
    assert "not checked: base:one on cpu: the complete job has exit code 1: ValueError: bad" in capsys.readouterr().out


def test_the_table_goes_between_the_marks_of_a_page(tmp_path) -> None:
    page = Path(tmp_path, "page.md")
    mark = marked_page.mark_of(removal.MAKER)
    page.write_text(f"# Page\n{mark}old\n{marked_page.END}rest\n")
    reported = removal.table([("p.a", WHOLE, removal.Effect(True, "`it ends`"))], {"p.a": "crash"})
    marked_page.put(page, reported, removal.MAKER)
    row = "| `p.a` | crash | one, cpu | `it ends` |\n"
    one = f"# Page\n{mark}{removal.HEAD}{row}{marked_page.END}rest\n"
    assert page.read_text() == one
    other = marked_page.mark_of(removal.MAKER, "other")
    page.write_text(f"{one}{other}{marked_page.END}")
    marked_page.put(page, reported, removal.MAKER, "other")
    assert page.read_text() == f"{one}{other}{removal.HEAD}{row}{marked_page.END}"
    page.write_text("# Page\n")
    with pytest.raises(marked_page.NoMarks, match=r"page.md: lacks the marks"):
        marked_page.put(page, reported, removal.MAKER)
    assert page.read_text() == "# Page\n"
