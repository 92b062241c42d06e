"""Each planted fault is found in its module and step, and runs without a fault agree."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from alignment.planted_faults import FAULTS, ON_TWO_RANKS, record_on_two_ranks
from alignment.small_training import Run

DOCUMENT = Path(__file__).parents[2] / "docs" / "alignment.md"


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_fault_is_found_where_it_is(fault, clean, compared, tmp_path):
    faulty = replace(fault.run, steps=fault.step).record(tmp_path)
    found = compared(clean(fault.clean.recompute), faulty).first
    assert (found.module, found.step) == (fault.instead or fault.module, fault.step), found


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("loss not divided by the micro-batches", "B's is 2 times A's: averaging, accumulation or loss scale differs"),
        ("labels off by one", "labels or loss"),
    ],
)
def test_a_factor_of_the_loss_is_named(name, what, clean, compared, tmp_path):
    (fault,) = (one for one in FAULTS if one.name == name)
    found = compared(clean(), replace(fault.run, steps=1).record(tmp_path)).first
    assert found.what.endswith(f"to Decoder differs: {what}")


@pytest.fixture(scope="module")
def two_ranks(tmp_path_factory):
    """The folder of the recordings of two ranks."""
    folder = tmp_path_factory.mktemp("ranks")
    record_on_two_ranks(folder)
    return folder


@pytest.mark.parametrize("fault", ON_TWO_RANKS, ids=lambda fault: fault.name)
def test_a_fault_of_two_ranks_is_found(fault, two_ranks, compared):
    found = compared(two_ranks / "clean", two_ranks / fault.name).first
    assert (found.module, found.step) == (fault.module, fault.step), found


def test_at_least_36_of_40_are_named():
    everything = [*FAULTS, *ON_TWO_RANKS]
    assert len(everything) >= 40
    assert sum(not fault.instead for fault in everything) >= 0.9 * len(everything)


def test_the_table_is_in_the_documentation():
    text = DOCUMENT.read_text()
    for fault in [*FAULTS, *ON_TWO_RANKS]:
        assert f"| {fault.name} | {fault.module} |" in text, fault.name


@pytest.mark.parametrize(
    "run",
    [
        pytest.param(Run(), id="again"),
        pytest.param(Run(recompute=True), id="with recomputation"),
        pytest.param(Run(dtype=torch.bfloat16), id="in bfloat16"),
        pytest.param(Run(dtype=torch.float64), id="in float64"),
    ],
)
def test_runs_without_a_fault_agree(run, clean, compared, tmp_path):
    report = compared(clean(), run.record(tmp_path))
    assert report.first is None, report.first
    assert report.steps == [1, 2, 3]


def test_another_number_of_threads_is_no_difference(clean, compared, tmp_path):
    torch.set_num_threads(2)
    try:
        other = Run(steps=1).record(tmp_path)
    finally:
        torch.set_num_threads(1)
    assert compared(clean(), other).first is None
