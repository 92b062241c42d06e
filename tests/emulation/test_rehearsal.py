"""The rehearsal report from the counts of the ranks."""

from __future__ import annotations

import json

from ascend_adapt.emulation import rehearsal


def write_rank(run_dir, rank, **more):
    facts = {
        "operators": {"aten::mm": 10, "aten::add.Tensor": 4},
        "on_the_host": {},
        "missing": {},
        "synchronisations": {"aten::_local_scalar_dense": 6},
        "violations": [],
        "steps": 2,
        "peak_bytes": {str(rank): 3 << 20},
        "visible": "",
        "torch_npu": "2.13.0",
        "soc": "Ascend910B2",
    }
    (run_dir / f"rehearsal.{rank}.json").write_text(json.dumps({**facts, **more}))


def test_two_ranks(tmp_path):
    write_rank(tmp_path, 0)
    write_rank(tmp_path, 1, operators={"aten::mm": 12}, on_the_host={"aten::eig": 1}, missing={"npu::npu_x": 2})
    status = {"outcomes": [{"patch": "here", "state": "applied"}, {"patch": "not_here", "state": "skipped"}]}
    (tmp_path / "adapt-status.0.json").write_text(json.dumps(status))
    report = "\n".join(rehearsal.report_lines(tmp_path))
    assert "torch_npu 2.13.0 on an emulated Ascend910B2, 2 ranks" in report
    assert "operators: 2 kinds, 12 to 14 calls per rank, 2 optimizer steps; most: aten::mm 10 to 12" in report
    assert "as torch_npu has no kernel for them: aten::eig 0 to 1" in report
    assert "not emulated, so not rehearsed: npu::npu_x 0 to 2" in report
    assert "the host waited for the device: 6 times per rank, 3 per optimizer step" in report
    assert "npu:0 3.0 MiB, npu:1 3.0 MiB" in report
    assert "patches applied: here\n" in report
    assert "its process group), and these patches worked on it\n" in report
    assert report.endswith("(evidence: emulated)")
    written = json.loads((tmp_path / "rehearsal.json").read_text())
    assert (written["evidence"], sorted(written["ranks"])) == ("emulated", ["0", "1"])


def test_one_of_each(tmp_path):
    violation = {"operator": "npu::npu_swiglu", "limit": "dim is even", "count": 1, "detail": "dim is 7"}
    one = {"operators": {"aten::mm": 1}, "steps": 1, "synchronisations": {"aten::item": 1}, "peak_bytes": {"0": 512}}
    write_rank(tmp_path, 0, **one, violations=[violation])
    report = "\n".join(rehearsal.report_lines(tmp_path))
    assert "operators: 1 kind, 1 call per rank, 1 optimizer step; most: aten::mm 1" in report
    assert "(rank 0, 1 time)" in report
    assert "1 time per rank, 1 per optimizer step" in report
    assert "npu:0 0.5 KiB" in report
    assert "patches applied: none\n" in report
    assert "these patches worked" not in report


def test_ranks_that_only_start_others_are_reported(tmp_path):
    write_rank(tmp_path, 0, operators={})
    assert any("none ran on the device in the ranks themselves" in line for line in rehearsal.report_lines(tmp_path))


def test_ranks_on_one_device_are_named(tmp_path):
    write_rank(tmp_path, 0)
    write_rank(tmp_path, 1, peak_bytes={"0": 1 << 20, "1": 1 << 20})
    (report,) = [line for line in rehearsal.report_lines(tmp_path) if "expected one device for each rank" in line]
    assert report.startswith("npu:0: has tensors of ranks 0, 1, expected")


def test_ranks_that_see_one_device_each_share_none(tmp_path):
    for rank in (0, 1):
        write_rank(tmp_path, rank, peak_bytes={"0": 1 << 20}, visible=str(rank))
    assert "expected one device for each rank" not in "\n".join(rehearsal.report_lines(tmp_path))


def test_a_violated_limit_is_reported_once_with_its_rank(tmp_path):
    violation = {"operator": "npu::npu_swiglu", "limit": "dim is even", "count": 3, "detail": "dim is 7"}
    for rank in (0, 1):
        write_rank(tmp_path, rank, violations=[violation])
    report = [line for line in rehearsal.report_lines(tmp_path) if line.startswith("limit violated")]
    assert report == ["limit violated: npu::npu_swiglu: dim is 7 (rank 0, 3 times), expected: dim is even"]


def test_a_rank_without_a_report(tmp_path):
    write_rank(tmp_path, 0)
    for rank in (0, 1):
        (tmp_path / f"adapt-status.{rank}.json").write_text('{"outcomes": []}')
    assert "ranks without a report, because they did not end normally: 1" in rehearsal.report_lines(tmp_path)


def test_nothing_was_rehearsed(tmp_path):
    (line,) = rehearsal.report_lines(tmp_path)
    assert "no process of the job imported torch_npu" in line
    assert not (tmp_path / "rehearsal.json").exists()


def test_known_problems_are_part_of_the_report(tmp_path):
    write_rank(tmp_path, 0)
    assert "known problem of NPUs: x" in rehearsal.report_lines(tmp_path, ["known problem of NPUs: x"])
    assert json.loads((tmp_path / "rehearsal.json").read_text())["known_problems"] == ["known problem of NPUs: x"]
