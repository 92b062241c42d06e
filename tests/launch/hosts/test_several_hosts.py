"""ascend-run on four hosts by ssh and by pdsh; the hosts are namespaces of this machine (namespaces.py)."""

from __future__ import annotations

import json
import os
import signal
import time

import pytest

TOLD = """
import json, os, socket, sys
names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "GLOO_SOCKET_IFNAME")
with open(f"told.{os.environ['RANK']}", "w") as told:
    json.dump([socket.gethostname(), [os.environ[name] for name in names], sys.argv[1:]], told)
print("rank", os.environ["RANK"], "of", os.environ["TORCHELASTIC_RUN_ID"])
"""
ARGUMENTS = ["a b", "", "$HOME", '{"k": "v"}', "a;b", "--x=y z", "'"]


def last_lines(job):
    return job.stderr[-2000:]


def test_ranks_on_their_hosts_each_with_its_own_storage(cluster, launcher):
    cluster.write("told.py", TOLD)
    job = cluster.ascend_run("told.py", *ARGUMENTS, launcher=launcher)
    assert job.returncode == 0, last_lines(job)
    for node, name in enumerate(cluster.names):
        written = sorted(path.name for path in cluster.folder(name).glob("told.[0-9]*"))
        assert written == [f"told.{2 * node}", f"told.{2 * node + 1}"]
        for local in (0, 1):
            rank = 2 * node + local
            told = json.loads((cluster.folder(name) / f"told.{rank}").read_text())
            wanted = [str(rank), str(local), "8", "2", str(node), "w-1", "eth0"]
            assert told == [name, wanted, ARGUMENTS]
            assert f"rank {rank} of " in (cluster.folder(name) / f"run/rank-{rank}.log").read_text()
    assert len(job.stdout.splitlines()) == 8
    assert len({line.split()[-1] for line in job.stdout.splitlines()}) == 1  # one name of the job everywhere
    assert sorted(path.name for path in (cluster.folder("w-1") / "run").glob("adapt-status.*.json")) == [
        f"adapt-status.{rank}.json" for rank in range(8)
    ]
    assert not cluster.left()


def test_the_exit_code_and_the_earliest_error(cluster, launcher):
    cluster.write(
        "fails.py",
        "import os, sys, time\nrank = os.environ['RANK']\n"
        "if rank == '5': raise SystemExit(7)\n"
        "if rank == '2': time.sleep(1); raise ValueError('only because rank 5 is gone')\n"
        "time.sleep(60)\n",
    )
    job = cluster.ascend_run("fails.py", launcher=launcher)
    assert job.returncode == 7, last_lines(job)
    assert "rank 5 on w-3 failed first: sys.exit(7) (exit code 7)" in job.stderr
    assert not cluster.left()


@pytest.fixture
def up(cluster, launcher):
    """A job whose ranks are all up; it is ended if the test does not."""
    jobs = []

    def start(text):
        cluster.write("up.py", text)
        jobs.append(cluster.start("up.py", launcher=launcher))
        assert [jobs[0].stdout.readline() for _ in range(8)] == ["up\n"] * 8
        return jobs[0]

    yield start
    for job in jobs:
        job.terminate()
        job.communicate(timeout=60)


def launcher_pid(cluster):
    return int(next(line for line in cluster.processes("w-1") if "--launcher" in line).partition(":")[0])


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_everywhere(cluster, up, number):
    job = up("import time\nprint('up', flush=True)\ntime.sleep(60)\n")
    os.kill(launcher_pid(cluster), number)
    job.communicate(timeout=40)
    assert job.returncode == 128 + number
    assert not cluster.left()


def test_a_killed_launcher_takes_every_host_with_it(cluster, up):
    job = up(
        "import os, signal, subprocess, sys, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "subprocess.Popen(['sleep', '61'], start_new_session=True)\nprint('up', flush=True)\ntime.sleep(60)\n"
    )
    os.kill(launcher_pid(cluster), signal.SIGKILL)
    job.communicate(timeout=40)
    assert not cluster.left(patience_s=25)


def test_a_host_cut_off_ends_the_job(cluster, up):
    job = up("import time\nprint('up', flush=True)\ntime.sleep(90)\n")
    began = time.monotonic()
    cluster.link("w-3", "down")
    try:
        _, said = job.communicate(timeout=60)
        assert job.returncode == 1
        assert "host w-3: lost, no word from it for 20 s" in said
        assert time.monotonic() - began < 40
        assert not cluster.left(patience_s=25)
    finally:
        cluster.link("w-3", "up")
