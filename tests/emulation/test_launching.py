"""`ascend-run --device npu-emulated`: plans, refusals and reports."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

PROGRAM = """
import os, torch
total = torch.ones(2).npu().sum().item()
os.write(1, f"{os.environ.get('RANK')} {torch.npu.device_count()} {total}\\n".encode())
"""


@pytest.fixture
def ascend_run(tmp_path, launch):
    (tmp_path / "train.py").write_text(PROGRAM)
    return launch


def test_the_plan(ascend_run):
    plan = json.loads(
        ascend_run("--device", "npu-emulated:910A", "--nproc", "2", "--dry-run", "--json", "train.py").stdout
    )
    assert [rank["device"] for rank in plan["ranks"]] == ["npu-emulated:0", "npu-emulated:1"]
    env = plan["ranks"][1]["env"]
    assert (env["ASCEND_ADAPT_DEVICE"], env["ASCEND_ADAPT_EMULATED_SOC"]) == ("npu", "Ascend910A")
    assert (env["ASCEND_ADAPT_EMULATED_DEVICES"], env["TASK_QUEUE_ENABLE"]) == ("2", "0")


def test_visible_devices_restrict_the_machine(ascend_run):
    job = ascend_run("--device", "npu-emulated", "train.py", ASCEND_RT_VISIBLE_DEVICES="1,3")
    assert (job.returncode, sorted(job.stdout.splitlines())) == (0, ["0 2 2.0", "1 2 2.0"]), job.stderr


def test_more_ranks_than_visible_devices(ascend_run):
    job = ascend_run("--device", "npu-emulated", "--nproc", "2", "train.py", ASCEND_RT_VISIBLE_DEVICES="0")
    assert job.returncode == 1
    assert "--nproc 2: found 1 npu-emulated devices" in job.stderr


def test_a_command_has_as_many_devices_as_nproc_says(ascend_run):
    job = ascend_run("--device", "npu-emulated", "--nproc", "3", "bash", "-c", f"{sys.executable} train.py")
    assert (job.returncode, job.stdout) == (0, "None 3 2.0\n"), job.stderr


def test_each_rank_of_a_launcher_has_a_device(ascend_run):
    words = sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "train.py"
    job = ascend_run("--device", "npu-emulated", *words)
    assert (job.returncode, sorted(job.stdout.splitlines())) == (0, ["0 2 2.0", "1 2 2.0"]), job.stderr


def test_nproc_limits_the_devices_of_a_machine(ascend_run):
    words = sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "3", "train.py"
    job = ascend_run("--device", "npu-emulated", "--nproc", "2", *words)
    assert sorted(job.stdout.splitlines()) == ["0 2 2.0", "1 2 2.0", "2 2 2.0"], job.stderr


def test_without_patches_it_is_still_emulated(ascend_run):
    job = ascend_run("--no-adapt", "--device", "npu-emulated", "bash", "-c", f"{sys.executable} train.py")
    assert (job.returncode, job.stdout) == (0, "None 1 2.0\n"), job.stderr


def test_refusals_come_before_anything_starts(ascend_run, tmp_path):
    job = ascend_run("--device", "npu-emulated", "train.py", CC="no-such-compiler")
    assert (job.returncode, job.stdout) == (1, "")
    assert job.stderr.startswith("ascend-run: no-such-compiler: not found on PATH")
    assert len(job.stderr.splitlines()) == 1
    assert not (tmp_path / "runs").exists()


def test_a_failed_job_is_reported_up_to_its_failure(ascend_run, tmp_path):
    # The last line is not reached: only the file shows it.
    script = "import torch\ntorch.ones(2).npu() + torch.ones(2)\nArguments(optim='adamw_bnb_8bit')\n"
    (tmp_path / "train.py").write_text(script)
    job = ascend_run("--device", "npu-emulated", "--log-dir", "run", "train.py")
    assert job.returncode == 1
    assert "found at least two devices, npu:0 and cpu!" in job.stderr
    assert "rehearsal: torch_npu" in job.stderr
    report = json.loads((tmp_path / "run" / "rehearsal.json").read_text())
    assert report["ranks"]["0"]["steps"] == 0
    (known,) = report["known_problems"]
    assert known.startswith("known problem on NPUs: train.py:3: Arguments(optim='adamw_bnb_8bit') — ")
    assert known in job.stderr


def test_status_says_that_it_was_emulated(ascend_run, tmp_path):
    assert ascend_run("--device", "npu-emulated", "--log-dir", "run", "train.py").returncode == 0
    command = [sys.executable, "-m", "ascend_adapt.cli", "status", "run"]
    output = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=280).stdout
    assert "device npu (emulated on this host, no hardware)" in output
    assert "hardware" not in output.replace("no hardware", "")


SPAWNING = """
import os, torch, torch.distributed as dist, torch.multiprocessing as mp

def run(rank):
    torch.npu.set_device(rank)
    dist.init_process_group("hccl", init_method=f"file://{os.path.abspath('store')}", rank=rank, world_size=2)
    total = torch.ones(2).npu()
    dist.all_reduce(total)
    os.write(1, f"{rank} {total.sum().item()}\\n".encode())

if __name__ == "__main__":
    mp.spawn(run, nprocs=2)
"""


def test_ranks_that_a_script_spawns_are_reported_with_their_patches(ascend_run, tmp_path):
    (tmp_path / "train.py").write_text(SPAWNING)
    job = ascend_run("--device", "npu-emulated", "--nproc", "2", "--log-dir", "run", "train.py")
    assert (job.returncode, sorted(job.stdout.splitlines())) == (0, ["0 4.0", "1 4.0"]), job.stderr
    assert "on an emulated Ascend910B2, 2 ranks;" in job.stderr
    assert "patches applied: " in job.stderr
    assert "patches applied: none" not in job.stderr
    for name in ("rehearsal", "adapt-status"):
        assert {"0", "1"} <= {file.name.split(".")[1] for file in (tmp_path / "run").glob(f"{name}.*.json")}


def test_a_script_that_is_started_once_is_reported_with_its_patches(ascend_run, tmp_path):
    job = ascend_run("--device", "npu-emulated", "--once", "--log-dir", "run", "train.py")
    assert (job.returncode, job.stdout) == (0, "None 1 2.0\n"), job.stderr
    assert "patches applied: " in job.stderr
    assert "patches applied: none" not in job.stderr
    (record,) = (tmp_path / "run").glob("adapt-status.*.json")
    assert record.name.startswith("adapt-status.p")
