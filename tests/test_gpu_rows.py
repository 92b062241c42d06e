"""``python -m bench.gpu``: a row is a module and arguments that it reads; one that fails has its reason."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from types import SimpleNamespace

import pytest

from bench.gpu import __main__ as table
from bench.gpu import job, memory, own_scripts
from bench.gpu.rows import ROWS, Row


@pytest.mark.parametrize("name", ROWS)
def test_a_row_is_a_module_and_its_arguments(name):
    module, *arguments = ROWS[name].words
    assert hasattr(importlib.import_module(module), "main" if module != "bench.gpu.job" else "measure")
    if module == "bench.gpu.job":
        job.parser().parse_args([*arguments, "--tiny"])


def test_a_row_that_fails_has_its_reason_and_one_that_hangs_is_stopped(tmp_path, monkeypatch):
    monkeypatch.setenv("ASCEND_ADAPT_UPSTREAMS", str(tmp_path))
    failed = table.measured(ROWS["nanogpt"], None)
    assert failed == {
        "failed": f"{tmp_path / 'nanoGPT'}: has no train.py, expected a clone of nanoGPT — set "
        "ASCEND_ADAPT_UPSTREAMS to its parent"
    }
    monkeypatch.setattr(table, "SLACK", 0.001)
    stopped = table.measured(Row("nanogpt", 1), None)
    assert stopped == {"failed": "stopped after 0.001 s, its estimate times 0.001"}
    assert table.failures({"nanogpt": [failed, {}], "attention": [{"compared": []}]}) == [
        f"nanogpt, card 0: {failed['failed']}",
        "nanogpt, card 1: not run",
    ]


def test_a_program_alone_is_compared_with_itself_under_ascend_run():
    alone = SimpleNamespace(losses=(3.0, 2.0), times=(0.0, 9.0, 9.5, 10.0, 10.1, 10.2))
    ours = SimpleNamespace(losses=(3.0, 2.5), times=(0.0, 9.0, 9.5, 10.0, 10.2, 10.4))
    same, differs = own_scripts.compared([alone], [alone]), own_scripts.compared([alone], [ours, ours])
    assert [(one.what, one.ratio) for one in same] == [
        ("losses that differ from the program's own", 0),
        ("step time", 1.0),
    ]
    assert [round(one.ratio, 6) for one in differs] == [1, 2.0]
    # Too few losses to time a step.
    short = SimpleNamespace(losses=(3.0,), times=(0.0, 9.0))
    assert len(own_scripts.compared([short], [short])) == 1


def test_memory_is_compared_with_its_prediction():
    assert memory.compared("native-345M", 10.5, 10.0).ratio == 1.05
    assert memory.compared("native-345M", None, 10.0).details == "not measured"
    assert memory.compared("native-345M", 10.0, None).details == "not predicted"
    gib = 1 << 30
    devices = {"0": {"full_size": {"memory": {"0": {"allocated_peak": 2 * gib}}}}, "1": {"full_size": {}}}
    assert memory.peak_gib({"ranks": devices}) == 2.0
    assert memory.peak_gib({"ranks": {}}) == 0
    for words in memory.JOBS.values():
        job.parser().parse_args(words)


def test_an_unknown_row_is_refused(capsys):
    with pytest.raises(SystemExit):
        table.parser().parse_args(["--rows", "345M-16,megatorn"])
    assert "megatorn: expected names of 345M-16, 345M-16-minimal" in capsys.readouterr().err


def test_ligers_kernels_run_in_tritons_interpreter():
    """On a GPU they are compiled; the interpreter lacks what two of them use."""
    ended = subprocess.run(
        [sys.executable, "-m", "bench.gpu.liger", "--tiny"], capture_output=True, text=True, timeout=200
    )
    compared = json.loads(ended.stdout)["compared"]
    assert len(compared) == 6
    assert [one for one in compared if "failed" in one["details"]] == []
