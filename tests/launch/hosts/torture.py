"""Ends parts of jobs on four hosts at random moments, cuts hosts off, and counts wrong codes and what is left.

    python tests/launch/hosts/torture.py --runs 50 --cuts 10 --seed 1

Half of the jobs go by ssh, half by pdsh. Each rank has a child in a session of its own.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from conftest import HOSTFILE, Cluster
from namespaces import why_not

SIGNALS = (signal.SIGTERM, signal.SIGKILL, signal.SIGINT)
VICTIMS = ("rank", "agent", "guardian", "launcher")
SCRIPT = """
import os, signal, subprocess
if os.environ["RANK"] == "3" and os.environ["STUBBORN"] == "1":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen(["sleep", "300"], start_new_session=True)
print("up", flush=True)
child.wait()
"""
PATIENCE_S = 60.0


def main() -> int:
    parser = argparse.ArgumentParser()
    for name, default in (("--runs", 50), ("--cuts", 10), ("--seed", 1)):
        parser.add_argument(name, type=int, default=default)
    known = parser.parse_args()
    reason = why_not()
    if reason:
        print(f"not checked: several hosts: {reason}")
        return 1
    for number in SIGNALS:
        # A shell without job control has what it starts with & ignore SIGINT, and so would each launcher.
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
    chance = random.Random(known.seed)
    kinds = ["cut"] * known.cuts + [chance.choice(VICTIMS) for _ in range(known.runs - known.cuts)]
    chance.shuffle(kinds)
    rows = defaultdict(list)
    with tempfile.TemporaryDirectory(prefix="torture-") as folder, Cluster(Path(folder, "of"), 4) as hosts:
        hosts.write("hostfile", HOSTFILE)
        hosts.write("up.py", SCRIPT)
        for number, victim in enumerate(kinds):
            way = ("ssh", "pdsh")[number % 2]
            what, wanted, code, left, seconds = one_run(hosts, victim, way, chance)
            rows[victim, what].append((code == wanted, len(left), seconds))
            mark = "" if code == wanted and not left else f"  WRONG: {left}"
            print(f"{number}: {way} {victim} {what}: code {code}, wanted {wanted}, {seconds:.1f} s{mark}", flush=True)
    print(
        "\n| ended | by | runs | exit code correct | hosts with processes left | longest shutdown |\n"
        "|---|---|---|---|---|---|"
    )
    for (victim, what), runs in sorted(rows.items()):
        right, left, longest = sum(run[0] for run in runs), sum(run[1] for run in runs), max(run[2] for run in runs)
        print(f"| {victim} | {what} | {len(runs)} | {right} | {left} | {longest:.1f} s |")
    return 0 if all(run[0] and not run[1] for runs in rows.values() for run in runs) else 1


def one_run(hosts: Cluster, victim: str, way: str, chance: random.Random) -> tuple[str, int, int, dict, float]:
    """Return what was done, the code wanted and got, what was left where, and how long the end took."""
    os.environ["STUBBORN"] = str(int(chance.random() < 0.1 and victim != "rank"))
    number = chance.choice(SIGNALS)
    name = chance.choice(hosts.names[1:])
    job = hosts.start("--export", "STUBBORN", "up.py", launcher=way)
    reported = [job.stdout.readline() for _ in range(8)]
    if reported != ["up\n"] * 8:
        return number.name, 0, -1, {"": [job.communicate()[1]]}, 0.0
    time.sleep(chance.uniform(0, 1))
    began = time.monotonic()
    if victim == "cut":
        hosts.link(name, "down")
    else:
        os.kill(pid_of(hosts, victim, name), number)
    try:
        job.communicate(timeout=PATIENCE_S)
        left = hosts.left(PATIENCE_S)
    except subprocess.TimeoutExpired:
        left = hosts.left(0)
        for pid, _ in [one for host in hosts.names for one in running(hosts, host)]:
            os.kill(pid, signal.SIGKILL)
        job.communicate()
    finally:
        if victim == "cut":
            hosts.link(name, "up")
    seconds = time.monotonic() - began
    code = job.returncode if job.returncode >= 0 else 128 - job.returncode
    # Of an agent that is killed outright nobody hears how its ranks ended; of a host that is cut off neither.
    is_silent = victim == "cut" or (victim == "agent" and number == signal.SIGKILL)
    wanted = 1 if is_silent else 128 + number
    return ("link down" if victim == "cut" else number.name), wanted, code, left, seconds


def pid_of(hosts: Cluster, victim: str, name: str) -> int:
    if victim == "launcher":
        return next(pid for pid, text in running(hosts, "w-1") if "--launcher" in text)
    if victim == "rank":
        return next(pid for pid, text in running(hosts, name) if "rank_entry" in text)
    agents = [pid for pid, text in running(hosts, name) if "import main; main()" in text or "import call" in text]
    guardian = next(pid for pid in agents if parent(pid) in agents)
    return guardian if victim == "guardian" else parent(guardian)


def running(hosts: Cluster, name: str) -> list[tuple[int, str]]:
    return [(int(line.partition(":")[0]), line) for line in hosts.processes(name)]


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


if __name__ == "__main__":
    sys.exit(main())
