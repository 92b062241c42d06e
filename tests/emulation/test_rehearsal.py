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
        "findings": [],
        "steps": 2,
        "peak_bytes": {str(rank): 3 << 20},
        "visible": "",
        "torch_npu": "2.13.0",
        "soc": "Ascend910B2",
    }
    (run_dir / f"rehearsal.{rank}.json").write_text(json.dumps({**facts, **more}))


def one(kind, what, file="", line=0, count=1, detail=""):
    return {"kind": kind, "what": what, "file": file, "line": line, "count": count, "bytes": 0, "detail": detail}


def test_two_ranks(tmp_path):
    write_rank(tmp_path, 0)
    found = [
        one("CPU fallback", "aten::eig", file="solver.py", line=3),
        one("unsupported operator", "npu::npu_x", count=2),
    ]
    write_rank(tmp_path, 1, operators={"aten::mm": 12}, findings=found)
    status = {"outcomes": [{"patch": "here", "state": "applied"}, {"patch": "not_here", "state": "skipped"}]}
    (tmp_path / "adapt-status.0.json").write_text(json.dumps(status))
    report = "\n".join(rehearsal.report(tmp_path))
    assert "torch_npu 2.13.0 on an emulated Ascend910B2, 2 ranks" in report
    assert "operators: 2 distinct, 12 to 14 calls per rank, 2 optimizer steps; most frequent: aten::mm 10 " in report
    assert "solver.py:3: CPU fallback: aten::eig (1 time) — each call copies" in report
    assert "(unknown line): unsupported operator: npu::npu_x (2 times) — the rehearsal stopped here" in report
    assert "most frequent: aten::mm 10 to 12" in report
    assert "host-device syncs: 6 per rank, 3 per optimizer step" in report
    assert "npu:0 3.0 MiB, npu:1 3.0 MiB" in report
    assert "patches applied: here\n" in report
    assert "its process group), except those rejected above, with these patches applied\n" in report
    assert report.endswith("(evidence: emulated)")
    written = json.loads((tmp_path / "rehearsal.json").read_text())
    assert (written["evidence"], sorted(written["ranks"])) == ("emulated", ["0", "1"])


def test_one_of_each(tmp_path):
    numbers = {"operators": {"aten::mm": 1}, "steps": 1, "synchronisations": {"aten::item": 1}}
    found = [one("limit", "npu::npu_swiglu", detail="dim is 7, expected: dim is even")]
    write_rank(tmp_path, 0, **numbers, peak_bytes={"0": 512}, findings=found)
    report = "\n".join(rehearsal.report(tmp_path))
    assert "operators: 1 distinct, 1 call per rank, 1 optimizer step; most frequent: aten::mm 1" in report
    assert "limit: npu::npu_swiglu: dim is 7, expected: dim is even (1 time)" in report
    assert "syncs: 1 per rank, 1 per optimizer step" in report
    assert "npu:0 0.5 KiB" in report
    assert "patches applied: none\n" in report
    assert "with these patches" not in report


def test_processes_that_a_rank_starts_are_counted_with_it(tmp_path):
    write_rank(tmp_path, 0, operators={})
    write_rank(tmp_path, "0-123", operators={"aten::mm": 3}, findings=[one("limit", "npu::npu_x")])
    report = "\n".join(rehearsal.report(tmp_path))
    assert "1 rank and 1 process that they started" in report
    assert "1 distinct, 3 calls per rank" in report
    assert "limit: npu::npu_x" in report


def test_a_command_without_ranks(tmp_path):
    write_rank(tmp_path, "p123")
    report = rehearsal.report(tmp_path)
    assert "on an emulated Ascend910B2, 1 process;" in report[0]
    assert "patches applied: none" in report


def test_patches_of_a_command_without_ranks(tmp_path):
    write_rank(tmp_path, "p123")
    for name, patch in (("p123", "here"), ("p124", "there")):
        status = {"rank": None, "outcomes": [{"patch": patch, "state": "applied"}]}
        (tmp_path / f"adapt-status.{name}.json").write_text(json.dumps(status))
    report = rehearsal.report(tmp_path)
    assert "patches applied: here, there" in report
    assert any("with these patches applied" in line for line in report)
    assert not any("did not end normally" in line for line in report)


def test_a_program_that_is_no_rank_beside_ranks(tmp_path):
    for rank in (0, 1):
        write_rank(tmp_path, rank)
    write_rank(tmp_path, "p123", findings=[one("limit", "npu::npu_x", file="evaluate.py", line=3)])
    report = rehearsal.report(tmp_path)
    assert "2 ranks and 1 process that is no rank" in report[0]
    assert "evaluate.py:3: limit: npu::npu_x" in "\n".join(report)
    written = json.loads((tmp_path / "rehearsal.json").read_text())
    assert (sorted(written["ranks"]), sorted(written["programs"])) == (["0", "1"], ["p123"])


def test_a_rank_of_a_script_without_a_report(tmp_path):
    write_rank(tmp_path, "p123")
    (tmp_path / "adapt-status.0.json").write_text('{"outcomes": []}')
    assert "ranks without a report, because they did not end normally: 0" in rehearsal.report(tmp_path)


def test_a_job_that_failed_proves_nothing(tmp_path):
    write_rank(tmp_path, 0)
    report = rehearsal.report(tmp_path, code=3)
    assert report[-1] == "the job failed with exit code 3: this proves nothing about code that had not run by then"
    assert not any("this proves: " in line for line in report)


def test_no_operator_ran(tmp_path):
    write_rank(tmp_path, 0, operators={})
    (line,) = rehearsal.report(tmp_path)
    assert line == "rehearsal: torch_npu was imported, but no operator ran on the device: nothing was rehearsed"


def test_at_most_25_lines(tmp_path):
    found = [one("host-device sync", "aten::x", file=f"a{index}.py", line=1) for index in range(40)]
    write_rank(tmp_path, 0, findings=found)
    write_rank(tmp_path, 1, peak_bytes={"0": 1})
    report = rehearsal.report(tmp_path)
    assert len(report) <= 25
    assert "30 more findings: see rehearsal.html" in report
    assert (tmp_path / "rehearsal.html").read_text().count("<tr>") == 41


def test_a_finding_at_several_lines_of_a_file_is_printed_once(tmp_path):
    found = [one("not compiled", "torch.compile(backend='inductor')", file="a.py", line=line) for line in (3, 9, 27)]
    write_rank(tmp_path, 0, findings=[*found, one("not compiled", "torch.compile(backend='npugraphs')", "a.py", 30)])
    printed = [line for line in rehearsal.report(tmp_path) if "not compiled" in line]
    assert [line.partition(": not compiled")[0] for line in printed] == ["a.py:3 and 2 other lines", "a.py:30"]
    assert (tmp_path / "rehearsal.html").read_text().count("not compiled") == 4


def test_ranks_on_one_device_are_named(tmp_path):
    write_rank(tmp_path, 0)
    write_rank(tmp_path, 1, peak_bytes={"0": 1 << 20, "1": 1 << 20})
    (report,) = [line for line in rehearsal.report(tmp_path) if "expected one device for each rank" in line]
    assert report.startswith("npu:0: has tensors of ranks 0, 1, expected")


def test_ranks_that_see_one_device_each_share_none(tmp_path):
    for rank in (0, 1):
        write_rank(tmp_path, rank, peak_bytes={"0": 1 << 20}, visible=str(rank))
    assert "expected one device for each rank" not in "\n".join(rehearsal.report(tmp_path))


def test_a_rank_without_a_report(tmp_path):
    write_rank(tmp_path, 0)
    for rank in (0, 1):
        (tmp_path / f"adapt-status.{rank}.json").write_text('{"outcomes": []}')
    assert "ranks without a report, because they did not end normally: 1" in rehearsal.report(tmp_path)


def test_nothing_was_rehearsed(tmp_path):
    (line,) = rehearsal.report(tmp_path)
    assert "no process that imported torch_npu ended normally" in line
    assert not (tmp_path / "rehearsal.json").exists()


def test_known_problems_are_part_of_the_report(tmp_path):
    write_rank(tmp_path, 0)
    assert "known problem on NPUs: x" in rehearsal.report(tmp_path, known_problems=["known problem on NPUs: x"])
    assert json.loads((tmp_path / "rehearsal.json").read_text())["known_problems"] == ["known problem on NPUs: x"]
