"""Kills parts of running jobs at random moments and counts the errors.

Each run starts `ascend-run --nproc 2` on a script whose ranks each have a child in its own session. It picks a victim,
a signal and a moment, and checks the exit code, the job's remaining processes, and processes that do not belong to the
job.

    python bench/torture.py --runs 200 --seed 1 --write docs/reliability.md
"""

from __future__ import annotations

import argparse
import os
import platform
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from upstream_runs import marked_page

VICTIMS = ("rank", "agent", "guardian", "launcher", "grandchild")
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2")
SIGNALS = (signal.SIGTERM, signal.SIGKILL, signal.SIGINT)
MARK = "TORTURE_RUN"
# The interpreter itself needs this long before it can distinguish a SIGINT from a failed start.
STARTED_S = 0.05
LATEST_S = 1.0
PATIENCE_S = 40.0

SCRIPT = """
import os, signal, subprocess, sys
if os.environ["STUBBORN"] == "1" and os.environ["RANK"] == "0":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen(["sleep", "300"], start_new_session=True)
os.write(1, f"{os.getpid()} {os.getppid()} {child.pid}\\n".encode())  # in one piece, even if others write
child.wait()
"""


@dataclass(frozen=True)
class Run:
    """One job: what was killed, and the outcome."""

    victim: str
    signal: signal.Signals
    moment_s: float
    wanted: int
    code: int
    left: int
    seconds: float

    @property
    def is_right(self) -> bool:
        return self.code == self.wanted and self.left == 0


def one_run(number: int, chance: random.Random, folder: Path, agents_own: Mapping[int, int]) -> Run:
    victim, what = chance.choice(VICTIMS), chance.choice(SIGNALS)
    moment = chance.uniform(STARTED_S, LATEST_S)
    # In a stubborn job, rank 0 and its child ignore SIGTERM, so SIGTERM is not sent to them. torchrun's grace period of
    # 30 s for such a rank is not measured here.
    ends_at_first = victim == "agent" or (victim in ("rank", "grandchild") and what == signal.SIGTERM)
    stubborn = chance.random() < 0.05 and not ends_at_first
    target = [*TORCHRUN, "train.py"] if victim == "agent" else ["--nproc", "2", "train.py"]
    log_dir = ["--log-dir", f"run-{number}"]
    job = start([sys.executable, "-m", "ascend_adapt.launch.cli", *log_dir, *target], number, folder, stubborn)
    if victim == "launcher":
        # The moment is arbitrary: the job may not have started yet.
        time.sleep(moment)
        pids = [job.pid]
    else:
        pids = chance.choice(victims(job, victim))
        time.sleep(moment - STARTED_S)
    began = time.monotonic()
    for pid in pids:
        os.kill(pid, what)
    code = job.wait(PATIENCE_S)
    # A launcher killed with SIGKILL cannot wait for its guardian, so this script waits.
    while (left := marked(number)) and victim == "launcher" and what == signal.SIGKILL:
        if time.monotonic() - began > PATIENCE_S:
            break
        time.sleep(0.02)
    seconds = time.monotonic() - began
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    wanted = {"grandchild": 0, "agent": agents_own[what]}.get(victim, 128 + what)
    return Run(victim, what, moment, wanted, shell_exit_code(code), len(left), seconds)


def start(command: Sequence[str], number: int, folder: Path, stubborn: bool = False) -> subprocess.Popen[str]:
    env = {**os.environ, MARK: mark_of(number), "STUBBORN": str(int(stubborn)), "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        command, cwd=folder, env=env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, bufsize=1
    )


def victims(job: subprocess.Popen[str], victim: str) -> list[list[int]]:
    """Wait until both ranks run; return the possible victims, each with all processes to kill."""
    assert job.stdout is not None
    ranks = [[int(word) for word in job.stdout.readline().split()] for _ in range(2)]
    return {
        "rank": [[rank[0]] for rank in ranks],
        "guardian": [[ranks[0][1]]],
        "agent": [[ranks[0][1]]],
        "grandchild": [[rank[2] for rank in ranks]],
    }[victim]


def codes_of_an_agent_alone(folder: Path) -> dict[int, int]:
    """Return torchrun's exit code for each signal, without ascend-run."""
    codes = {}
    for what in SIGNALS:
        agent = start([*TORCHRUN, "train.py"], -what, folder)
        victims(agent, "agent")
        agent.send_signal(what)
        codes[int(what)] = shell_exit_code(agent.wait(PATIENCE_S))
        for pid in marked(-what):
            os.kill(pid, signal.SIGKILL)
    return codes


def shell_exit_code(code: int) -> int:
    return code if code >= 0 else 128 - code


def mark_of(number: int) -> str:
    """Return the mark in the environment of all processes of a run; other instances of this script use other marks."""
    return f"{os.getpid()}.{number}"


def marked(number: int) -> list[int]:
    """Return the processes of a run, in any session."""
    found = []
    mark = f"{MARK}={mark_of(number)}".encode()
    for entry in os.listdir("/proc"):
        try:
            if entry.isdigit() and mark in Path("/proc", entry, "environ").read_bytes().split(b"\0"):
                found.append(int(entry))
        except OSError:
            continue
    return found


def report(runs: list[Run], touched: int, foreign: int, command: str) -> str:
    right = sum(run.code == run.wanted for run in runs)
    lines = [
        f"`{command}`, {time.strftime('%Y-%m-%d')}, Python {platform.python_version()}, Linux, {os.cpu_count()} cores.",
        "",
        f"- exit code correct: {right}/{len(runs)}",
        f"- processes left: {sum(run.left for run in runs)}",
        f"- foreign processes touched: {touched} of {foreign}",
        "",
        "| killed | signal | runs | expected exit code | correct | processes left | longest shutdown |",
        "|---|---|---|---|---|---|---|",
    ]
    groups: dict[tuple[str, signal.Signals], list[Run]] = defaultdict(list)
    for run in runs:
        groups[run.victim, run.signal].append(run)
    for victim, what in sorted(groups, key=lambda group: (VICTIMS.index(group[0]), SIGNALS.index(group[1]))):
        group = groups[victim, what]
        correct = sum(run.code == run.wanted for run in group)
        left, longest = sum(run.left for run in group), max(run.seconds for run in group)
        lines.append(
            f"| {victim} | {what.name} | {len(group)} | {group[0].wanted} | {correct} | {left} | {longest:.1f} s |"
        )
    return "\n".join([*lines, ""])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--write", type=Path, help="the page whose table is renewed, between its marks")
    known = parser.parse_args()
    chance = random.Random(known.seed)
    foreign = [subprocess.Popen(["sleep", "100000"], start_new_session=number % 2 == 0) for number in range(10)]
    runs: list[Run] = []
    try:
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "train.py").write_text(SCRIPT)
            agents_own = codes_of_an_agent_alone(Path(folder))
            for number in range(known.runs):
                runs.append(one_run(number, chance, Path(folder), agents_own))
                if not runs[-1].is_right:
                    print(f"run {number}: {runs[-1]}", flush=True)
        touched = sum(process.poll() is not None for process in foreign)
    finally:
        for process in foreign:
            process.kill()
    text = report(runs, touched, len(foreign), f"make torture RUNS={known.runs} SEED={known.seed}")
    print(text)
    if known.write is not None:
        marked_page.put(known.write, text, "make torture")
    return 0 if all(run.is_right for run in runs) and not touched else 1


if __name__ == "__main__":
    sys.exit(main())
