"""Which machine of a job this one is, where each has a launcher of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from ascend_adapt.errors import LaunchError
from ascend_adapt.launch.placement.cluster_environment import (
    ClusterNode,
    first_of_nodelist,
    of_this_host,
    overlooked,
    refuse_copies,
)
from ascend_adapt.launch.request import parse


def share(*argv, own=(), **environ):
    return of_this_host(parse([*argv, "train.py"]), environ, lambda: set(own))


SLURM = {
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NUM_NODES": "4",
    "SLURM_STEP_NUM_TASKS": "4",
    "SLURM_STEP_NODELIST": "rack1n[03-05,7]",
    "SLURM_NODEID": "2",
    "SLURM_JOB_ID": "4711",
}


@pytest.mark.parametrize(
    ("argv", "environ", "wanted"),
    [
        ([], {}, None),
        (
            ["--nnodes", "2", "--node_rank", "1", "--master-addr", "a", "--master_port", "7"],
            {},
            ClusterNode(2, 1, "a", 7, "the command line"),
        ),
        (
            ["--nnodes", "2", "--node-rank", "0"],
            {"MASTER_ADDR": "m", "MASTER_PORT": "8"},
            ClusterNode(2, 0, "m", 8, "the command line"),
        ),
        (
            ["--num-nodes", "2", "--node-ips", "10.0.0.1,10.0.0.2"],
            {"own": ("10.0.0.2",)},
            ClusterNode(2, 1, "10.0.0.1", 29500, "the command line"),
        ),
        ([], SLURM, ClusterNode(4, 2, "rack1n03", 16000 + 4711, "Slurm")),
        (["--master-port", "7"], SLURM, ClusterNode(4, 2, "rack1n03", 7, "Slurm")),
        ([], {**SLURM, "SLURM_STEP_NUM_NODES": "1", "SLURM_STEP_NUM_TASKS": "1"}, None),
        ([], {"SLURM_JOB_NUM_NODES": "4", "SLURM_NODEID": "0", "SLURM_PROCID": "0"}, None),  # a batch script itself
        (
            [],
            {"MA_NUM_HOSTS": "2", "MA_NUM_GPUS": "8", "VC_TASK_INDEX": "1", "VC_WORKER_HOSTS": "job-0.job,job-1.job"},
            ClusterNode(2, 1, "job-0.job", 29500, "ModelArts", 8),
        ),
        (
            [],
            {"VC_TASK_INDEX": "0", "RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "p-0", "MASTER_PORT": "23456"},
            ClusterNode(2, 1, "p-0", 23456, "Volcano"),
        ),
        ([], {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "p-0"}, None),  # anybody's, of a rank for example
        (
            [],
            {"PET_NNODES": "2", "PET_NODE_RANK": "1", "PET_MASTER_ADDR": "p-0", "PET_NPROC_PER_NODE": "4"},
            ClusterNode(2, 1, "p-0", 29500, "torchrun's PET_*", 4),
        ),
    ],
)
def test_who_says_so(argv, environ, wanted):
    assert share(*argv, **environ) == wanted


@pytest.mark.parametrize(
    ("argv", "environ", "says"),
    [
        (["--nnodes", "2"], {}, "add --node-rank"),
        (["--nnodes", "2", "--node-rank", "0"], {}, "add --master-addr"),
        (["--nnodes", "2", "--node-rank", "2", "--master-addr", "a"], {}, "host 2 of 2"),
        (["--node-ips", "10.0.0.1,10.0.0.2"], {}, "0 of them are this host's"),
        (["--nnodes", "3", "--node-ips", "10.0.0.1,10.0.0.2"], {}, "lists 2 hosts, --nnodes says 3"),
        ([], {"PET_NNODES": "2", "PET_NODE_RANK": "0"}, "PET_MASTER_ADDR is not set"),
    ],
)
def test_what_does_not_fit(argv, environ, says):
    with pytest.raises(LaunchError, match=says):
        share(*argv, **environ)


ONE_NODE = {**SLURM, "SLURM_STEP_NUM_NODES": "1", "SLURM_STEP_NODELIST": "n1", "SLURM_NODEID": "0"}
EIGHT_TASKS = {**ONE_NODE, "SLURM_STEP_NUM_TASKS": "8", "SLURM_NTASKS": "8", "SLURM_STEP_TASKS_PER_NODE": "8"}
TORCHRUN = {"RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}


@pytest.mark.parametrize(
    ("argv", "environ", "says"),
    [
        ([], {**SLURM, "SLURM_STEP_NUM_TASKS": "32"}, "32 times on 4 nodes, expected once per node"),
        ([], EIGHT_TASKS, "8 times on 1 node, expected once per node — use srun --ntasks-per-node=1"),
        (["--hostfile", "hosts"], SLURM, "4 times on 4 nodes, expected once, it reaches the other hosts"),
        (["--hostfile", "hosts", "--nnodes", "2"], EIGHT_TASKS, "expected once, it reaches"),
        ([], {"OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_RANK": "3"}, "OMPI_COMM_WORLD_SIZE=4: mpirun starts"),
        ([], {"PMI_SIZE": "2", "PMI_RANK": "0"}, "PMI_SIZE=2: mpirun starts"),
        ([], TORCHRUN, "WORLD_SIZE=2: another launcher starts ascend-run 2 times"),
        (
            [],
            {**TORCHRUN, "ASCEND_ADAPT_RANK_PID": f"{os.getpid()} 1:1:2"},
            "put ascend-run first",
        ),  # our own bootstrap
    ],
)
def test_a_copy_for_each_rank_is_refused(argv, environ, says):
    with pytest.raises(LaunchError, match=says):
        refuse_copies(parse([*argv, "train.py"]), environ)


@pytest.mark.parametrize(
    ("argv", "environ"),
    [
        ([], {}),
        ([], SLURM),
        ([], {**SLURM, "PMI_SIZE": "4"}),  # srun --mpi=pmi2
        ([], {**ONE_NODE, "SLURM_STEP_NUM_TASKS": "1", "SLURM_NTASKS": "1"}),
        # A batch script of --ntasks=8 itself, and a shell of salloc --ntasks=8.
        ([], {"SLURM_NTASKS": "8", "SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NNODES": "1"}),
        ([], {**EIGHT_TASKS, "SLURM_STEP_ID": "4294967290"}),
        (["--nnodes", "1"], EIGHT_TASKS),
        (["--nnodes", "2", "--node-rank", "1", "--master-addr", "a"], {"OMPI_COMM_WORLD_SIZE": "2"}),
        ([], {"OMPI_COMM_WORLD_SIZE": "1", "PMI_SIZE": "1"}),
        ([], {**TORCHRUN, "WORLD_SIZE": "1"}),
        ([], {**TORCHRUN, "ASCEND_ADAPT_RANK_PID": "1 1:1:2"}),  # a rank of ours starts another job
    ],
)
def test_one_copy_is_started(argv, environ):
    refuse_copies(parse([*argv, "train.py"]), environ)


@pytest.mark.parametrize(("environ", "ranks"), [({}, ""), (TORCHRUN, ""), ({"RANK": "1", "WORLD_SIZE": "2"}, "2")])
def test_variables_of_a_pod_are_not_overlooked_in_silence(environ, ranks):
    assert (f"--nnodes {ranks} --node-rank 1" in overlooked(environ)) is bool(ranks)


@pytest.mark.usefixtures("needs_torch")
def test_torchrun_around_ascend_run_is_refused(tmp_path):
    (tmp_path / "train.py").write_text("open('ran', 'w').close()\n")
    inner = [sys.executable, "-m", "ascend_adapt.launch.cli", "--device", "cpu", "train.py"]
    outer = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "--no-python"]
    job = subprocess.run([*outer, *inner], cwd=tmp_path, capture_output=True, text=True, timeout=280)
    assert job.returncode == 1
    assert "another launcher starts ascend-run 2 times, and each would start the full job" in job.stderr
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("text", "first"),
    [("n1", "n1"), ("n[1-4]", "n1"), ("n[03-05,7],login", "n03"), ("rack[2,4]n[10-12]", "rack2n10"), ("a,b", "a")],
)
def test_the_first_of_slurms_nodelist(text, first):
    assert first_of_nodelist(text) == first


@pytest.mark.usefixtures("needs_torch")
def test_two_machines_started_by_hand(ascend_run, background, tmp_path):
    (tmp_path / "train.py").write_text(
        "import os\nimport torch.distributed as dist\ndist.init_process_group('gloo')\n"
        "import torch\nsum = torch.ones(1)\ndist.all_reduce(sum)\n"
        "print(int(sum), os.environ['RANK'], os.environ['LOCAL_RANK'], os.environ['GROUP_RANK'])\n"
        "dist.destroy_process_group()\n"
    )
    from ascend_adapt.launch.placement.ports import Ports

    with Ports() as ports:
        given = ["--device", "cpu", "--nproc", "2", "--nnodes", "2", "--master-addr", "127.0.0.1"]
        given += ["--master-port", str(ports.rendezvous)]
        first = background("--log-dir", "a", *given, "--node-rank", "0", "train.py")
        second = ascend_run("--log-dir", "b", *given, "--node-rank", "1", "train.py")
        assert second.returncode == 0, second.stderr
        assert sorted(second.stdout.splitlines()) == ["4 2 0 1", "4 3 1 1"]
        assert first.lines(2) == ["4 0 0 0", "4 1 1 0"]
        assert first.code() == 0


def test_a_plan_of_one_machine_of_several(ascend_run, tmp_path):
    (tmp_path / "train.py").touch()
    given = ["--dry-run", "--json", "--device", "cpu", "--nproc", "2"]
    plan = json.loads(ascend_run(*given, "train.py", **SLURM).stdout)
    assert (plan["world_size"], plan["master_addr"], plan["master_port"]) == (8, "rack1n03", 20711)
    assert [rank["rank"] for rank in plan["ranks"]] == [4, 5]
