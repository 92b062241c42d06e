"""ascend-run on four hosts by ssh and by pdsh; the hosts are namespaces of this machine (namespaces.py)."""

from __future__ import annotations

import json
import os
import signal
import sys
import time

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

REPORT = """
import json, os, socket, sys
names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "GLOO_SOCKET_IFNAME")
with open(f"reported.{os.environ['RANK']}", "w") as reported:
    json.dump([socket.gethostname(), [os.environ[name] for name in names], sys.argv[1:]], reported)
print("rank", os.environ["RANK"], "of", os.environ["TORCHELASTIC_RUN_ID"])
"""
ARGUMENTS = ["a b", "", "$HOME", '{"k": "v"}', "a;b", "--x=y z", "'"]


def last_lines(job):
    return job.stderr[-2000:]


def test_ranks_on_their_hosts_each_with_its_own_storage(cluster, launcher):
    cluster.write("reported.py", REPORT)
    job = cluster.ascend_run("reported.py", *ARGUMENTS, launcher=launcher)
    assert job.returncode == 0, last_lines(job)
    for node, name in enumerate(cluster.names):
        written = sorted(path.name for path in cluster.folder(name).glob("reported.[0-9]*"))
        assert written == [f"reported.{2 * node}", f"reported.{2 * node + 1}"]
        for local in (0, 1):
            rank = 2 * node + local
            reported = json.loads((cluster.folder(name) / f"reported.{rank}").read_text())
            wanted = [str(rank), str(local), "8", "2", str(node), "w-1", "eth0"]
            assert reported == [name, wanted, ARGUMENTS]
            assert f"rank {rank} of " in (cluster.folder(name) / f"run/rank-{rank}.log").read_text()
    assert len(job.stdout.splitlines()) == 8
    assert len({line.split()[-1] for line in job.stdout.splitlines()}) == 1  # one name of the job everywhere
    assert sorted(path.name for path in (cluster.folder("w-1") / "run").glob("adapt-status.*.json")) == [
        f"adapt-status.{rank}.json" for rank in range(8)
    ]
    assert not cluster.left()


def encodable(text):
    try:
        return b"\0" not in os.fsencode(text)
    except UnicodeEncodeError:
        return False


WORDS = st.text(st.sampled_from("ab$ '\"\\{}*?;&|<>~`#!\n\r\t=%hnu-\udcff\udc80é")).filter(encodable)
EXACT = """
import json, os, sys
with open("exact", "w") as reported:
    json.dump([sys.argv[1:], {name: os.environ[name] for name in os.environ if name.startswith("HCCL_")}], reported)
"""


@given(arguments=st.lists(WORDS, max_size=30), values=st.lists(WORDS, min_size=1, max_size=30))
@settings(max_examples=3, deadline=None, suppress_health_check=list(HealthCheck))
def test_arguments_and_variables_byte_for_byte(cluster, launcher, arguments, values):
    cluster.write("exact.py", EXACT)
    cluster.write("one", "root@w-2 slots=1\n")
    variables = {f"HCCL_{number}": value for number, value in enumerate(values)}
    job = cluster.ascend_run("-H", "one", "exact.py", *arguments, launcher=launcher, **variables)
    assert job.returncode == 0, last_lines(job)
    reported, found = json.loads((cluster.folder("w-2") / "exact").read_text())
    assert (reported, found) == (arguments, variables)


def test_addresses_and_another_port(cluster, launcher):
    cluster.write("reported.py", REPORT)
    cluster.write("two", "10.213.77.4 slots=1\nroot@10.213.77.3 slots=1\n")
    job = cluster.ascend_run("-H", "two", "--ssh-port", "2222", "reported.py", launcher=launcher)
    assert job.returncode == 0, last_lines(job)
    assert json.loads((cluster.folder("w-4") / "reported.0").read_text())[0] == "w-4"
    assert json.loads((cluster.folder("w-3") / "reported.1").read_text())[0] == "w-3"


def test_doctor_looks_at_all_of_them(cluster, launcher):
    given = ["doctor", "--hostfile", "hostfile", "--launcher", launcher, "--json"]
    job = cluster.run("w-1", sys.executable, "-m", "ascend_adapt.cli", *given)
    hosts = json.loads(job.stdout)["hosts"]
    assert [one["host"] for one in hosts] == cluster.names
    assert [one["sees_this_folder"] for one in hosts] == [True, False, False, False]
    assert all(one["free_port"] and one["versions"]["torch"] and abs(one["clock_ahead_s"]) < 5 for one in hosts)
    assert job.returncode == 0, job.stderr
    (cluster.base / "hostfile.missing").write_text("w-1 slots=1\nw-9 slots=1\n")
    given[2] = str(cluster.base / "hostfile.missing")
    job = cluster.run("w-1", sys.executable, "-m", "ascend_adapt.cli", *given)
    assert job.returncode == 1
    assert "cannot be reached" in json.loads(job.stdout)["hosts"][1]["problems"][0]


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


# What is left out of all these is in torture.py.
@pytest.mark.parametrize(
    ("launcher", "number"), [("ssh", signal.SIGINT), ("pdsh", signal.SIGTERM)], indirect=["launcher"]
)
def test_a_signal_ends_it_everywhere(cluster, up, number):
    job = up("import time\nprint('up', flush=True)\ntime.sleep(60)\n")
    os.kill(launcher_pid(cluster), number)
    job.communicate(timeout=40)
    assert job.returncode == 128 + number
    assert not cluster.left()


@pytest.mark.parametrize("launcher", ["pdsh"], indirect=True)
def test_a_killed_launcher_takes_every_host_with_it(slow, cluster, up):
    job = up(
        "import os, signal, subprocess, sys, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "subprocess.Popen(['sleep', '61'], start_new_session=True)\nprint('up', flush=True)\ntime.sleep(60)\n"
    )
    os.kill(launcher_pid(cluster), signal.SIGKILL)
    job.communicate(timeout=40)
    assert not cluster.left(patience_s=25)


@pytest.mark.parametrize("launcher", ["ssh"], indirect=True)
def test_a_host_cut_off_ends_the_job(slow, cluster, up):
    job = up("import time\nprint('up', flush=True)\ntime.sleep(90)\n")
    began = time.monotonic()
    cluster.link("w-3", "down")
    try:
        _, said = job.communicate(timeout=60)
        assert job.returncode == 1
        assert "host w-3: lost, no response for 20 s" in said
        assert time.monotonic() - began < 40
        assert not cluster.left(patience_s=25)
    finally:
        cluster.link("w-3", "up")
