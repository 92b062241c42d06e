"""Jobs on several hosts, planned, and run through a stand-in for ssh that runs its command here, with `sh -c`.

Real hosts: tests/launch/hosts.
"""

from __future__ import annotations

import fcntl
import json
import os
import resource
import select
import signal
import socket
import sys
import termios
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ascend_adapt import launch
from ascend_adapt.errors import LaunchError
from ascend_adapt.launch.many_hosts import agent
from ascend_adapt.launch.many_hosts.launcher import allow_descriptors, compare
from ascend_adapt.launch.one_host.termination import GRACE_S
from ascend_adapt.launch.placement import environment, hostfile, network
from ascend_adapt.launch.placement import hosts as machines
from ascend_adapt.launch.placement.hostfile import Host
from ascend_adapt.launch.placement.plan import of_ranks
from ascend_adapt.launch.request import parse
from ascend_adapt.launch.transport import choice
from ascend_adapt.launch.transport.protocol import FrameDecoder, FrameSender, Kind, frame, json_frame

REPORT = """
import json, os, sys
names = [name for name in os.environ if name.startswith(("HCCL_", "OTHER_"))]
reported = [sys.argv[1:], {name: os.environ[name] for name in names}]
with open(f"reported.{os.environ['RANK']}", "w") as out:
    json.dump(reported, out)
"""


@pytest.fixture
def stub(tmp_path):
    """Variables with an ssh that runs its last argument here, and keeps what it was called with."""
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "ssh").write_text(
        f'#!/bin/sh\necho "$@" >> {tmp_path}/called\nfor last; do :; done\nexec sh -c "$last"\n'
    )
    (folder / "ssh").chmod(0o755)
    (tmp_path / "hosts").write_text("w-1 slots=1\nu@10.255.0.2 slots=1\n")
    (tmp_path / "reported.py").write_text(REPORT)
    return {"PATH": f"{folder}:{os.environ['PATH']}"}


JOB = ("--launcher", "ssh", "--device", "cpu", "--log-dir", "run", "-H", "hosts")


def reported(tmp_path):
    return [json.loads((tmp_path / f"reported.{rank}").read_text()) for rank in (0, 1)]


def test_env_1(ascend_run, stub, tmp_path):
    values = {"HCCL_A": "64(x2)", "HCCL_B": "a b\"c'd", "OTHER_C": "/x:/y z"}
    job = ascend_run(*JOB, "--export", "OTHER_C", "reported.py", "$HOME", **stub, **values)
    assert job.returncode == 0, job.stderr
    assert reported(tmp_path) == [[["$HOME"], values]] * 2
    called = (tmp_path / "called").read_text()
    assert "64(x2)" not in called
    assert "$HOME" not in called
    assert {line.split(" -c ")[0].split()[-2] for line in called.splitlines()} == {"w-1", "u@10.255.0.2"}


def encodable(text):
    try:
        return b"\0" not in os.fsencode(text)
    except UnicodeEncodeError:
        return False


WORDS = st.text(st.sampled_from("ab$ '\"\\{}*?;&|<>~`#!\n\r\t=%-\udcff\udc80é")).filter(encodable)


@given(arguments=st.lists(WORDS, max_size=20), values=st.lists(WORDS, min_size=1, max_size=20))
@settings(max_examples=4, deadline=None, suppress_health_check=list(HealthCheck))
def test_arguments_and_variables_byte_for_byte(ascend_run, stub, tmp_path, arguments, values):
    variables = {f"HCCL_{number}": value for number, value in enumerate(values)}
    job = ascend_run(*JOB, "reported.py", *arguments, **stub, **variables)
    assert job.returncode == 0, job.stderr
    assert reported(tmp_path) == [[arguments, variables]] * 2


@pytest.mark.parametrize("argv", [["reported.py"], ["--dry-run", "reported.py"]])
def test_host_2_a_hostfile_that_cannot_be_read(argv, ascend_run, stub, tmp_path):
    job = ascend_run(*JOB[:-1], "missing", *argv, **stub)
    assert job.returncode == 1
    assert "hostfile missing: No such file or directory" in job.stderr
    assert not (tmp_path / "called").exists()
    assert not (tmp_path / "run").exists()


def test_the_earliest_error_and_its_code(ascend_run, stub, tmp_path):
    (tmp_path / "fails.py").write_text(
        "import os, sys, time\nif os.environ['RANK'] == '1': open('failed', 'w').close(); sys.exit(9)\ntime.sleep(30)\n"
    )
    job = ascend_run(*JOB, "fails.py", **stub)
    assert job.returncode == 9
    assert "rank 1 on 10.255.0.2 failed first: sys.exit(9) (exit code 9)" in job.stderr
    (kept,) = json.loads((tmp_path / "run" / "job.json").read_text())["failure"]
    assert kept.startswith("rank 1 on 10.255.0.2 failed first: ")
    # The other host's rank, which has no handler, ends at SIGTERM, although ssh here ignores it.
    assert time.time() - (tmp_path / "failed").stat().st_mtime < GRACE_S


def test_ctrl_z_stops_the_launcher_only(background, stub, tmp_path):
    (tmp_path / "ticks.py").write_text(
        "import os\nopen('go' + os.environ['RANK']).read()\nopen('done' + os.environ['RANK'], 'w').close()\n"
    )
    for name in ("go0", "go1"):
        os.mkfifo(tmp_path / name)
    job = background(*JOB, "ticks.py", env=stub)
    with (tmp_path / "go0").open("w"), (tmp_path / "go1").open("w"):  # both ranks are there
        os.kill(job.pid, signal.SIGTSTP)
        while Path(f"/proc/{job.pid}/stat").read_text().rpartition(")")[2].split()[0] != "T":
            time.sleep(0.01)
    while not all((tmp_path / name).exists() for name in ("done0", "done1")):
        time.sleep(0.01)
    os.kill(job.pid, signal.SIGCONT)
    assert job.code() == 0


@pytest.mark.parametrize(("before", "after"), [(1_000_000, 0), (1, 1_000_000)])
def test_a_console_that_nobody_reads_holds_up_no_signal(background, stub, tmp_path, before, after):
    (tmp_path / "loud.py").write_text(
        "import signal, sys, time\n"
        f"signal.signal(signal.SIGTERM, lambda *_: sys.exit(print('x' * {after})))\n"
        f"print('x' * {before}, flush=True)\ntime.sleep(60)\n"
    )
    job = background(*JOB, "--grace", "2", "loud.py", env=stub)
    while select.select([job.process.stdout], [], [], 30)[0] and fill(job.process.stdout) < min(before, 1 << 16):
        time.sleep(0.05)
    job.process.terminate()
    assert job.code() == 128 + signal.SIGTERM


def fill(pipe):
    """Return how many bytes a pipe holds."""
    return int.from_bytes(fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)), sys.byteorder)


def test_a_restart_begins_anew_everywhere(ascend_run, stub, tmp_path):
    (tmp_path / "fails.py").write_text(
        "import os, sys\nprint(os.environ['TORCHELASTIC_RUN_ID'][-2:], os.environ['RANK'], flush=True)\n"
        "if os.environ['RANK'] == '1' and os.environ['TORCHELASTIC_RESTART_COUNT'] == '0': sys.exit(9)\n"
    )
    job = ascend_run(*JOB, "--max-restarts", "2", "fails.py", **stub)
    assert job.returncode == 0, job.stderr
    assert {".0 1", ".1 0", ".1 1"} <= set(job.stdout.splitlines())
    assert "ascend-run: restart 1 of 2" in job.stderr
    assert json.loads((tmp_path / "run" / "job.json").read_text())["failure"] == []


def test_a_host_that_cannot_be_reached(ascend_run, stub, tmp_path):
    (tmp_path / "bin/ssh").write_text("#!/bin/sh\necho 'Permission denied (publickey).' >&2\nexit 255\n")
    job = ascend_run(*JOB, "reported.py", **stub)
    assert job.returncode == 1
    for host in ("w-1", "10.255.0.2"):
        assert f"host {host}: cannot be reached or has no agent (Permission denied (publickey).)" in job.stderr
    assert not (tmp_path / "reported.0").exists()


def test_a_login_shell_that_prints(ascend_run, stub, tmp_path):
    path = tmp_path / "bin/ssh"
    path.write_text(path.read_text().replace("for last", "echo Welcome to this machine\nfor last"))
    assert ascend_run(*JOB, "reported.py", **stub).returncode == 0


def test_hosts_that_differ(ascend_run, stub, tmp_path):
    site = tmp_path / "site"
    (site / "deepspeed-0.0.1.dist-info").mkdir(parents=True)
    (site / "deepspeed-0.0.1.dist-info/METADATA").write_text("Metadata-Version: 2.1\nName: deepspeed\nVersion: 0.0.1\n")
    path = tmp_path / "bin/ssh"
    path.write_text(
        path.read_text().replace("for last", f'case "$*" in *w-1*) export PYTHONPATH={site};; esac\nfor last')
    )
    job = ascend_run(*JOB, "reported.py", **stub)
    assert job.returncode == 1
    assert "ascend-run: deepspeed: 0.0.1 on w-1, " in job.stderr
    assert "install the same on all hosts" in job.stderr


def test_two_names_of_one_machine():
    """Their ranks would take the same devices; on a CPU there is nothing to share."""
    facts = {"versions": {}, "devices": {}, "time_ns": time.time_ns(), "jobs": [], "machine": agent.machine()}
    links = [SimpleNamespace(name=name, address=name, hello=facts) for name in ("w-1", "W-1")]
    parts = {link.address: SimpleNamespace(ranks=()) for link in links}
    compare(links, parts, "cpu")
    with pytest.raises(LaunchError, match="hosts w-1 and W-1: are the same machine"):
        compare(links, parts, "npu")


def test_many_hosts_need_many_descriptors():
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (300, limits[1]))
        allow_descriptors(2)
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == 300
        allow_descriptors(100)
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == 756
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def serving(**limits):
    """Return an agent's process, with other limits of its waits, and the launcher's end of its connection."""
    ours, theirs = socket.socketpair()
    pid = os.fork()
    if pid == 0:
        ours.close()
        for name, seconds in limits.items():
            setattr(agent, name, seconds)
        agent.main(theirs.fileno(), None)
    theirs.close()
    return pid, ours


def gone(pid, seconds=15.0):
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if os.waitpid(pid, os.WNOHANG)[0]:
            return True
        time.sleep(0.05)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return False


def test_an_agent_without_an_order_ends():
    """Its launcher was cut off meanwhile: the connection stays as it is, and nobody says anything."""
    pid, ours = serving(_ORDER_WAIT_S=0.5)
    with ours:
        assert gone(pid)


def test_an_agent_whose_last_word_nobody_takes_ends(tmp_path):
    script = tmp_path / "loud.py"
    script.write_text("print('x' * 300000)")  # more than the connection takes, less than with all pipes before it
    pid, ours = serving(LOST_S=4.0, _LAST_WORDS_S=0.1, _END_S=1.0)
    argv, env = [sys.executable, str(script)], {"LOCAL_RANK": "0", "RANK": "1"}
    rank = {"host": "w-1", "rank": 1, "local_rank": 0, "device": "cpu", "env": env, "argv": argv}
    order = {
        "folder": str(tmp_path),
        "run_dir": str(tmp_path / "run"),
        "job": {"launcher": {}},
        "name": "job",
        "attempt": 0,
        "forwarded": {},
        "device": "cpu",
        "towards": "w-2",
        "strict": False,
        "grace": 10.0,
        "oversubscribe": False,
        "world_size": 1,
        "master_addr": "127.0.0.1",
        "master_port": 1,
        "ranks": [rank],
    }
    with ours:
        ours.sendall(json_frame(Kind.ORDER, order))
        assert gone(pid)
        # The guardian may still write what it has read when the agent is gone.
        deadline = time.monotonic() + 10
        while (tmp_path / "run/rank-1.log").stat().st_size < 300001 and time.monotonic() < deadline:
            time.sleep(0.05)
        assert (tmp_path / "run/rank-1.log").stat().st_size == 300001


def test_a_busy_port(ascend_run, stub):
    with socket.create_server(("", 0)) as taken:
        port = taken.getsockname()[1]
        job = ascend_run(*JOB, "--master-port", str(port), "reported.py", **stub)
    assert job.returncode == 1
    assert f"host w-1: port {port}: is in use" in job.stderr


def test_a_host_starts_ranks_from_its_own_installation(ascend_run, stub, tmp_path):
    """The stand-in has the package in another folder than the launcher."""
    own = tmp_path / "elsewhere/launch/program/rank_entry.py"
    own.parent.mkdir(parents=True)
    own.symlink_to(Path(launch.__file__).parent / "program" / "rank_entry.py")
    lines = (
        f'import pathlib; from ascend_adapt.launch.placement import plan; plan._RANK_ENTRY = pathlib.Path("{own}"); '
    )
    (tmp_path / "bin/ssh").write_text(f"""#!/bin/sh
for last; do :; done
exec sh -c "$(printf %s "$last" | sed 's#import sys;#{lines}import sys;#')"
""")
    (tmp_path / "started.py").write_text("print(open('/proc/self/cmdline').read().split('\\0')[1])")
    job = ascend_run(*JOB, "started.py", **stub)
    assert job.stdout.splitlines() == [str(own)] * 2, job.stderr


def test_a_folder_that_is_not_there(ascend_run, stub, tmp_path):
    """The stand-in looks at a file system without the folder by way of a link that it takes away."""
    path = tmp_path / "bin/ssh"
    lines = f'import os; here = os.chdir; os.chdir = lambda path: here("/nowhere" if path == "{tmp_path}" else path); '
    path.write_text(f"""#!/bin/sh
for last; do :; done
exec sh -c "$(printf %s "$last" | sed 's#import sys;#{lines}import sys;#')"
""")
    job = ascend_run(*JOB, "reported.py", **stub)
    assert job.returncode == 1
    assert "host w-1: " in job.stderr
    assert "expected the launcher's folder here too" in job.stderr


def test_the_dry_run(ascend_run, stub, tmp_path):
    (tmp_path / "hosts").write_text("w-1 slots=1\nw-2 slots=3\nw-3 slots=8\n")
    argv = ("--dry-run", "--json", "-i", "w-1@w-2:0,2", "--device", "npu", "--export", "MY_TOKEN", "reported.py")
    job = ascend_run(*JOB, *argv, MY_TOKEN="t0ken", HCCL_ALGO="ring", **stub)
    plan = json.loads(job.stdout)
    assert (plan["world_size"], plan["master_addr"]) == (3, "w-1")
    ranks = [(rank["host"], rank["rank"], rank["local_rank"], rank["device"]) for rank in plan["ranks"]]
    assert ranks == [("w-1", 0, 0, "npu:0"), ("w-2", 1, 0, "npu:0"), ("w-2", 2, 1, "npu:1")]
    assert [rank["env"].get("ASCEND_RT_VISIBLE_DEVICES") for rank in plan["ranks"]] == [None, "0,2", "0,2"]
    assert {rank["env"]["HCCL_CONNECT_TIMEOUT"] for rank in plan["ranks"]} == {"1210"}
    assert {(rank["env"]["HCCL_ALGO"], rank["env"]["MY_TOKEN"]) for rank in plan["ranks"]} == {("ring", "***")}
    assert "t0ken" not in job.stdout + job.stderr
    assert not (tmp_path / "called").exists()


ON_SOME = ("--launcher", "ssh", "--log-dir", "run", "-H", "hosts", "reported.py")


def test_the_dry_run_says_that_the_hosts_decide_on_the_device(ascend_run, stub):
    (note,) = json.loads(ascend_run("--dry-run", "--json", *ON_SOME, **stub).stdout)["notes"]
    assert note.startswith("device: cpu on this host; each host of the job detects its own when it starts")
    asked = ascend_run("--dry-run", "--json", *ON_SOME, ASCEND_ADAPT_DEVICE="cpu", **stub)
    assert "notes" not in json.loads(asked.stdout)


@pytest.mark.parametrize(
    ("of_the_other", "message"),
    [
        ("cuda", "device cuda: found on the hosts of the job; this host has cpu"),
        ("cpu", "device: cpu on 10.255.0.2, cuda on w-1"),
    ],
)
def test_the_hosts_decide_on_the_device(ascend_run, stub, tmp_path, of_the_other, message):
    """A login node without devices starts a job on hosts that have some; no GPU is here, so a probe reports them."""
    for host, device in (("w-1", "cuda"), ("u@10.255.0.2", of_the_other)):
        (tmp_path / host).mkdir()
        probe = f"from ascend_adapt import probe\nprobe.detect_device = lambda environ: ({device!r}, '')\n"
        (tmp_path / host / "sitecustomize.py").write_text(probe)
    (tmp_path / "bin" / "ssh").write_text(
        "#!/bin/sh\nfor last; do host=$before; before=$last; done\n"
        f'export PYTHONPATH={tmp_path}/$host\nexec sh -c "$last"\n'
    )
    job = ascend_run(*ON_SOME, **stub)
    assert job.returncode == 1
    assert message in job.stderr


def test_slots_are_counted_among_the_visible_devices():
    request, hosts = parse(["train.py"]), [Host("a", (0, 1), True), Host("b", (1,), True)]
    given = {"env": {}, "free_port": 1, "hosts": hosts}
    plan = of_ranks(request, device="npu", environ={"ASCEND_RT_VISIBLE_DEVICES": "4,6"}, **given)
    assert [rank.env["ASCEND_RT_VISIBLE_DEVICES"] for rank in plan.ranks] == ["4,6", "4,6", "6"]
    with pytest.raises(LaunchError, match="slot 1 of a: ASCEND_RT_VISIBLE_DEVICES=4 lists 1 devices"):
        of_ranks(request, device="npu", environ={"ASCEND_RT_VISIBLE_DEVICES": "4"}, **given)


def test_localhost_beside_others():
    hosts = [Host("localhost", (0,)), Host("b", (0,))]
    with pytest.raises(LaunchError, match="localhost together with 1 other hosts"):
        of_ranks(parse(["train.py"]), device="cpu", hosts=hosts, env={}, environ={}, free_port=1)


def test_ten_thousand_hosts_are_planned_in_less_than_a_second():
    text = "".join(f"worker-{number} slots=8\n" for number in range(10_000))
    request, env = parse(["train.py", "--lr", "1"]), {f"HCCL_{number}": "x" for number in range(20)}
    took = []
    for _ in range(5):  # the least of them, of this process alone: other processes may be running
        began = time.process_time()
        hosts = hostfile.select(hostfile.parse(text, "hosts", print), None, "worker-7:0")
        plan = of_ranks(request, device="npu", hosts=hosts, env=env, environ={}, free_port=1)
        took.append(time.process_time() - began)
    assert len(plan.ranks) == 79_999
    assert min(took) < 1


@pytest.mark.parametrize(
    ("argv", "wanted"),
    [
        (["-H", "hosts"], [("w-1", 4), ("w-2", 4)]),
        (["-H", "hosts", "--num_nodes", "1", "--num_gpus", "2"], [("w-1", 2)]),
        (["-i", "localhost:1"], [("localhost", 1)]),
        ([], None),
    ],
)
def test_which_machines(argv, wanted, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("hosts").write_text("w-1 slots=4\nw-2 slots=4\n")
    hosts = machines.chosen(parse([*argv, "train.py"]), 2, print)
    assert (hosts and [(host.address, len(host.slots)) for host in hosts]) == wanted


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["-H", "hosts", "--nnodes", "3"], "2 hosts are left"),
        (["-H", "hosts", "--nproc", "5"], "w-1 has 4 slots"),
        (["-H", "hosts", "--node-rank", "1"], "the hostfile determines both"),
    ],
)
def test_machines_that_are_not_there(argv, says, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("hosts").write_text("w-1 slots=4\nw-2 slots=4\n")
    with pytest.raises(LaunchError, match=says):
        machines.chosen(parse([*argv, "train.py"]), 2, print)


def test_what_is_forwarded():
    environ = {"HCCL_A": "1", "PATH": "/p", "PATHS": "no", "PYTHONPATH": "/x", "HOME": "no", "MINE": "2"}
    environ |= {"ASCEND_ADAPT_JOB": "no", "ASCEND_ADAPT_DISABLE": "x", "LD_LIBRARY_PATH": "/l", "LD_PRELOAD": "no"}
    wanted = {"HCCL_A", "PATH", "PYTHONPATH", "MINE", "ASCEND_ADAPT_DISABLE", "LD_LIBRARY_PATH"}
    assert set(environment.forwarded(environ, ["MINE"])) == wanted
    with pytest.raises(LaunchError, match="--export OTHER: not set here"):
        environment.forwarded(environ, ["OTHER"])


@pytest.mark.parametrize(
    ("device", "users", "wanted"),
    [
        ("cpu", {}, {"GLOO_SOCKET_IFNAME": "bond0", "TP_SOCKET_IFNAME": "bond0", "OMP_NUM_THREADS": "1"}),
        ("cuda", {"OMP_NUM_THREADS": "3", "GLOO_SOCKET_IFNAME": "x"}, {"NCCL_SOCKET_IFNAME": "=bond0"}),
        ("npu", {}, {"HCCL_IF_IP": "10.0.0.7", "HCCL_IF_BASE_PORT": "61000"}),
        ("npu", {"HCCL_SOCKET_IFNAME": "y"}, {"HCCL_IF_BASE_PORT": "61000", "HCCL_IF_IP": None}),
    ],
)
def test_what_a_host_adds_of_its_own(device, users, wanted, monkeypatch):
    monkeypatch.setattr(environment.network, "address_towards", {"w-1": "10.0.0.7"}.get)
    monkeypatch.setattr(environment.network, "interface_of", {"10.0.0.7": "bond0"}.get)
    own = environment.of_host(device, "w-1", 61000, 1000, users)
    assert {name: own.get(name) for name in wanted} == wanted
    assert not users.keys() & own.keys()


def test_a_host_without_a_way_to_the_others_adds_no_interface(monkeypatch):
    monkeypatch.setattr(environment.network, "address_towards", lambda name: None)
    assert set(environment.of_host("npu", "w-1", 61000, 1, {})) == {"OMP_NUM_THREADS", "HCCL_IF_BASE_PORT"}


def test_which_names_are_this_machine():
    for name in ("localhost", "127.0.0.1", socket.gethostname()):
        assert network.is_here(name)
    for name in ("somebody-else@localhost", "10.255.255.1", "no-such-host.invalid"):
        assert not network.is_here(name)
    assert {network.interface_of("127.0.0.1"), network.interface_of("10.255.255.1")} == {"lo", None}
    assert network.address_towards("127.0.0.1") is None


def test_names_of_hosts_are_resolved_concurrently(monkeypatch):
    together = threading.Barrier(8)

    def resolver(name, port):
        together.wait(timeout=10)
        raise socket.gaierror

    monkeypatch.setattr(socket, "getaddrinfo", resolver)
    choice.choose("ssh", None, [f"concurrent-{number}.invalid" for number in range(8)])


def test_deepspeed_env(tmp_path):
    (tmp_path / "home").mkdir()
    (tmp_path / "home/.deepspeed_env").write_text("HCCL_A=home\nHCCL_B=a b=c\n# no\n\n")
    (tmp_path / ".deepspeed_env").write_text("HCCL_A=here\n")
    environ = {"HOME": str(tmp_path / "home")}
    assert environment.of_deepspeed_env(environ, tmp_path) == {"HCCL_A": "here", "HCCL_B": "a b=c"}
    (tmp_path / ".deepspeed_env").write_text("HCCL_A\n")
    with pytest.raises(LaunchError, match=r"line 1 is 'HCCL_A', expected NAME=value"):
        environment.of_deepspeed_env(environ, tmp_path)


@pytest.mark.parametrize(
    ("environ", "says"),
    [
        ({"HCCL_EXEC_TIMEOUT": "3600"}, "HCCL_EXEC_TIMEOUT=3600 s, but the process group waits 1800 s"),
        ({"HCCL_EXEC_TIMEOUT": "3600", "DEEPSPEED_TIMEOUT": "60"}, ""),
        ({"HCCL_IF_IP": "10.0.0.1"}, "would be set on 2 hosts"),
        ({}, ""),
    ],
)
def test_warnings(environ, says):
    assert says in " ".join(environment.warnings("npu", environ, 2))
    assert bool(environment.warnings("npu", environ, 2)) == bool(says)


def test_two_names_of_one_setting():
    both = dict.fromkeys(environment.ALLOCATOR_SETTINGS, "expandable_segments:True")
    with pytest.raises(LaunchError, match="both are set"):
        environment.warnings("npu", both, 1)
    assert environment.warnings("cpu", both, 1) == []


def test_frames_come_whole_whatever_the_pieces():
    reader, writer = os.pipe()
    sender = FrameSender(writer, marked=True)
    assert sender.send(json_frame(Kind.HELLO, {"name": "\udcff"}))
    assert sender.send(frame(Kind.STDOUT, b"\0\1"))
    data = b"Welcome\n" + os.read(reader, 4096)
    decoder = FrameDecoder(marked=True)
    assert decoder.noise == b""
    found = [reported for index in range(len(data)) for reported in decoder.feed(data[index : index + 1])]
    assert [kind for kind, _ in found] == [Kind.HELLO, Kind.STDOUT]
    assert (json.loads(found[0][1]), found[1][1]) == ({"name": "\udcff"}, b"\0\1")
    os.close(reader)
    assert not sender.send(b"x")
    os.close(writer)


def test_what_came_instead_of_an_agent():
    decoder = FrameDecoder(marked=True)
    assert list(decoder.feed(b"bash: no such file\n")) == []
    assert decoder.noise == b"bash: no such file\n"


def test_what_an_agent_is_started_with_has_one_level_of_quoting():
    import shlex
    import subprocess

    from ascend_adapt.launch.transport import ssh_command

    (*_, last) = ssh_command.command("w-1", 2222)
    assert shlex.split(last) == ssh_command.program()
    reported = subprocess.run(["sh", "-c", last], input=b"", capture_output=True)
    assert b"ascend-run agent 1\n" in reported.stdout
    assert sys.executable in last
