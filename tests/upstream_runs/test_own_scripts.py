"""A program from PyPI that uses CUDA, as its README has it, on the CPU and on an emulated NPU, and the page of all."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
import upstream_job
from code_bases import NotHere
from own_scripts import packaged
from upstream_job import Place, UpstreamJob

PAGE = Path(__file__).parents[2] / "docs" / "own-script-programs.md"


@pytest.mark.parametrize("job", packaged.JOBS, ids=lambda job: job.name)
def test_a_packaged_program_is_the_same_on_an_emulated_npu(job: UpstreamJob, tmp_path) -> None:
    try:
        checkout = job.checkout(os.environ)
    except NotHere as error:
        pytest.skip(f"not checked: {job.name}: {error}")
    losses = {}
    for device in ("cpu", "npu-emulated"):
        ended = upstream_job.run(job, Place(tmp_path / device, tmp_path, checkout or tmp_path, device, "float32"))
        assert ended.problems == [], ended.output[-4000:]
        assert device == "cpu" or "known problems on NPUs: none found in " in ended.output
        assert f'"cuda" is mapped to the {"CPU" if device == "cpu" else "NPU"}' in ended.output
        losses[device] = ended.losses
    assert losses["cpu"][0] > losses["cpu"][-1]
    assert upstream_job.apart(losses["cpu"], losses["npu-emulated"]) <= job.bound, losses


def test_no_row_of_the_page_is_over_its_bound() -> None:
    rows = re.findall(r"^\| (\S+).*; (\S+) apart, at most (\S+) \|", PAGE.read_text(), re.MULTILINE)
    assert len(rows) > 10
    assert [(name, apart, bound) for name, apart, bound in rows if float(apart) > float(bound)] == []
