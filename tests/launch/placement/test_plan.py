from __future__ import annotations

import sys
from pathlib import Path

import pytest

from ascend_adapt import launch
from ascend_adapt.errors import LaunchError
from ascend_adapt.launch.placement.plan import local_host, of_command, of_ranks, without_secrets
from ascend_adapt.launch.request import parse


def plan(*argv, device="cpu", found=1, environ=(), env=()):
    request = parse([*argv, "train.py", "--lr", "a b"])
    hosts = [local_host(request, device, found)]
    return of_ranks(request, device=device, hosts=hosts, env=dict(env), environ=dict(environ), free_port=4321)


def test_one_rank_on_a_cpu_and_one_a_device_elsewhere():
    assert plan().world_size == 1
    assert plan(device="npu", found=8).world_size == 8


def test_ranks_devices_and_their_variables():
    job = plan("--nproc", "2", device="cuda", found=4, env={"X": "1"})
    assert [(rank.rank, rank.local_rank, rank.device) for rank in job.ranks] == [(0, 0, "cuda:0"), (1, 1, "cuda:1")]
    wanted = {
        "RANK": "1",
        "LOCAL_RANK": "1",
        "WORLD_SIZE": "2",
        "LOCAL_WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "4321",
        "X": "1",
    }
    assert wanted.items() <= dict(job.ranks[1].env).items()


def test_the_script_gets_its_arguments_as_typed():
    (rank,) = plan().ranks
    entry = str(Path(launch.__file__).parent / "program" / "rank_entry.py")
    assert rank.argv == (sys.executable, entry, "train.py", "--lr", "a b")
    assert plan("--pass-local-rank").ranks[0].argv[2:] == ("train.py", "--local_rank=0", "--lr", "a b")


def test_what_the_user_has_set_wins():
    assert "OMP_NUM_THREADS" in plan().ranks[0].env
    assert "OMP_NUM_THREADS" not in plan(environ={"OMP_NUM_THREADS": "7"}).ranks[0].env


@pytest.mark.parametrize(
    ("argv", "command"),
    [
        (["bash", "run.sh", "a b"], ("bash", "run.sh", "a b")),
        (["--once", "train.py", "x"], (sys.executable, "train.py", "x")),
    ],
)
def test_what_is_started_once_is_no_rank(argv, command):
    job = of_command(parse(argv), device="cpu", env={"X": "1"})
    (only,) = job.ranks
    assert (only.argv, only.rank, only.local_rank, only.env) == (command, None, None, {"X": "1"})
    assert (job.world_size, job.master_addr, job.master_port) == (None, None, None)


def test_more_ranks_than_devices_is_an_error():
    with pytest.raises(LaunchError, match="--nproc 3: found 2 npu devices"):
        plan("--nproc", "3", device="npu", found=2)


def test_which_names_look_secret():
    secret = ("AWS_SECRET_ACCESS_KEY", "DB_PASS", "SSH_KEY", "MYSQL_PWD", "GIT_AUTH", "GPG_PASSPHRASE")
    reported = {*secret, "PWD", "OLDPWD", "KEYBOARD", "HCCL_BYPASS", "HCCL_BUFFSIZE"}
    hidden = {name for name, value in without_secrets(dict.fromkeys(reported, "v")).items() if value == "***"}
    assert hidden == set(secret)


def test_json_hides_what_looks_secret():
    job = plan(env={"HF_TOKEN": "t", "WANDB_API_KEY": "k", "HCCL_CONNECT_TIMEOUT": "1800"})
    (rank,) = job.to_json()["ranks"]
    assert (rank["env"]["HF_TOKEN"], rank["env"]["WANDB_API_KEY"], rank["env"]["HCCL_CONNECT_TIMEOUT"]) == (
        "***",
        "***",
        "1800",
    )
    assert set(rank) == {"host", "rank", "local_rank", "device", "env", "argv"}
