"""A dump that mindstudio-probe 26.2.0 made of the run in small_training: level L0, step 0, the first micro-batch."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from alignment.planted_faults import FAULTS
from alignment.small_training import Run, batches

from ascend_adapt.alignment import comparison, msprobe, recording
from ascend_adapt.errors import AlignmentError

DUMP = Path(__file__).with_name("msprobe_dump")
ONE = Run(batches=lambda step: batches(step)[:1], accumulation=1.0, clip=None, steps=1)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    return ONE.record(tmp_path_factory.mktemp("recorded"))


def test_a_recording_agrees_with_a_dump(recorded):
    report = comparison.compare(recording.read(recorded), msprobe.read_any(DUMP))
    assert report.first is None, report.first
    assert report.steps == [1]


@pytest.mark.parametrize("name", ["causal mask dropped", "norm without its weight", "bias missing"])
def test_a_fault_is_found_beside_a_dump(name, tmp_path):
    fault = next(one for one in FAULTS if one.name == name)
    run = replace(ONE, plant=fault.run.plant).record(tmp_path)
    found = comparison.compare(msprobe.read_any(DUMP), recording.read(run)).first
    assert (found.module, found.phase) == (fault.module, "forward")


def test_a_loss_that_differs_beside_a_dump_has_no_factor(tmp_path):
    """A dump has statistics of a gradient only, which several factors may explain."""
    found = comparison.compare(msprobe.read_any(DUMP), recording.read(replace(ONE, accumulation=2.0).record(tmp_path)))
    assert found.first.what.endswith("differs: labels, loss or loss scale"), found.first


def test_what_is_written_has_the_form_of_a_dump(recorded, tmp_path):
    msprobe.write(recording.read(recorded), tmp_path / "dump")
    for name in ("dump.json", "construct.json"):
        mine, theirs = (json.loads((each / "step0" / "rank0" / name).read_text()) for each in (tmp_path / "dump", DUMP))
        if name == "dump.json":
            assert mine.keys() == theirs.keys()
            mine, theirs = mine["data"], theirs["data"]
            for key in mine:
                assert mine[key].keys() == theirs[key].keys(), key
        # A tied head has no gradient of its own here: it is that of the embedding.
        assert theirs.keys() - mine.keys() <= {"Module.head.Linear.parameters_grad.0"}
        assert mine.keys() <= theirs.keys()
    report = comparison.compare(msprobe.read_any(tmp_path / "dump"), msprobe.read_any(DUMP))
    assert report.first is None, report.first


def test_a_dump_without_modules_is_refused(tmp_path):
    home = tmp_path / "step0" / "rank0"
    home.mkdir(parents=True)
    for name, content in (("dump.json", {"data": {}}), ("construct.json", {})):
        (home / name).write_text(json.dumps(content))
    with pytest.raises(AlignmentError, match="no modules in dump.json, expected level L0 or mix"):
        msprobe.read_any(tmp_path)
    (home / "dump.json").write_text("{")
    with pytest.raises(AlignmentError, match="expected an msprobe dump"):
        msprobe.read_any(tmp_path)
