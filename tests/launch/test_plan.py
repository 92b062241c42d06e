from __future__ import annotations

import sys

import pytest

from ascend_adapt.errors import LaunchError
from ascend_adapt.launch.plan import build
from ascend_adapt.launch.request import parse


def plan(*argv, device="cpu", found=1, environ=(), plugin_env=()):
    return build(
        parse([*argv, "train.py", "--lr", "a b"]),
        device=device,
        devices_found=found,
        environ=dict(environ),
        plugin_env=dict(plugin_env),
        free_port=4321,
        run_dir="/runs/1",
    )


def test_one_rank_on_a_cpu_and_one_a_device_elsewhere():
    assert plan().world_size == 1
    assert plan(device="npu", found=8).world_size == 8


def test_ranks_devices_and_their_variables():
    job = plan("--nproc", "2", device="cuda", found=4)
    assert [(rank.rank, rank.local_rank, rank.device) for rank in job.ranks] == [(0, 0, "cuda:0"), (1, 1, "cuda:1")]
    wanted = {
        "RANK": "1",
        "LOCAL_RANK": "1",
        "WORLD_SIZE": "2",
        "LOCAL_WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "4321",
        "ASCEND_ADAPT_DEVICE": "cuda",
        "ASCEND_ADAPT_RUN_DIR": "/runs/1",
    }
    assert wanted.items() <= dict(job.ranks[1].env).items()


def test_the_script_gets_its_arguments_as_typed():
    (rank,) = plan().ranks
    assert rank.argv == (sys.executable, "-m", "ascend_adapt.launch.rank_entry", "train.py", "--lr", "a b")
    assert plan("--pass-local-rank").ranks[0].argv[3:] == ("train.py", "--local_rank=0", "--lr", "a b")


def test_what_the_user_has_set_wins():
    assert "OMP_NUM_THREADS" in plan().ranks[0].env
    assert "OMP_NUM_THREADS" not in plan(environ={"OMP_NUM_THREADS": "7"}).ranks[0].env


def test_patch_options_become_variables():
    env = plan("--disable", "a", "--strict", "--allow-drift", "b", environ={"ASCEND_ADAPT_DISABLE": "z"}).ranks[0].env
    assert (env["ASCEND_ADAPT_DISABLE"], env["ASCEND_ADAPT_STRICT"], env["ASCEND_ADAPT_ALLOW_DRIFT"]) == (
        "z,a",
        "1",
        "b",
    )
    assert plan("--no-adapt").ranks[0].env["ASCEND_ADAPT"] == "0"


def test_more_ranks_than_devices_is_an_error():
    with pytest.raises(LaunchError, match="--nproc 3: found 2 npu devices"):
        plan("--nproc", "3", device="npu", found=2)


def test_json_hides_what_looks_secret():
    job = plan(plugin_env={"HF_TOKEN": "t", "WANDB_API_KEY": "k", "HCCL_CONNECT_TIMEOUT": "1800"})
    (rank,) = job.to_json()["ranks"]
    assert (rank["env"]["HF_TOKEN"], rank["env"]["WANDB_API_KEY"], rank["env"]["HCCL_CONNECT_TIMEOUT"]) == (
        "***",
        "***",
        "1800",
    )
    assert set(rank) == {"host", "rank", "local_rank", "device", "env", "argv"}
