"""Every signal to every receiver of every kind of job; writes the table between the marks in docs/reliability.md.

python tests/launch/signal_table.py [--kind KIND] [--seen FILE] [--write FILE]; hosts need root. What FILE of --seen has
is not tried again.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parent / "hosts"))
from hosts.conftest import Cluster
from hosts.namespaces import why_not
from hosts.torture import pid_of, running
from signal_cells import END, JOBS, PASSED, RECEIVERS, WITH_HANDLER, Job, NativeJob, Outcome, faults, make_corpus
from upstream_runs import marked_page

from ascend_adapt.launch.one_host import signals

HOSTS = "two hosts, script with a handler"
KINDS = (*JOBS, "native", HOSTS)
MAKER = "make signals"


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--kind", action="append", choices=KINDS)
    parser.add_argument("--seen", type=Path, default=Path("runs/signals.jsonl"))
    parser.add_argument("--write", type=Path)
    known = parser.parse_args()
    known.seen.parent.mkdir(parents=True, exist_ok=True)
    seen = _read(known.seen)
    signals.restore_defaults()  # ignored by a shell without job control and nohup: no job would respond
    for kind in known.kind or KINDS:
        if kind == HOSTS and (why := why_not()):
            print(f"not checked: {kind}: {why}")
            continue
        cells = [(name, one) for name in (*END, *PASSED) for one in receivers(kind) if (kind, name, one) not in seen]
        for name, receiver, outcome in outcomes(kind, cells):
            wrong = faults("native" if kind == "native" else kind, receiver, name, outcome)
            row = {"kind": kind, "signal": name, "receiver": receiver, "cell": outcome.described(), "faults": wrong}
            with known.seen.open("a") as file:
                file.write(json.dumps(row) + "\n")
            print(f"{kind} | {name} | {receiver} | {outcome.described()} | {wrong or ''}", flush=True)
    rows = _read(known.seen)
    if known.write is not None:
        write(known.write, rows)
    return int(any(row["faults"] for row in rows.values()))


def receivers(kind: str) -> tuple[str, ...]:
    return RECEIVERS if kind != HOSTS else (*RECEIVERS[:2], "agent", *RECEIVERS[2:])


def outcomes(kind, cells):
    """Yield signal, receiver and outcome of each cell."""
    if kind == HOSTS and cells:
        with tempfile.TemporaryDirectory(prefix="signals-") as folder, Cluster(Path(folder, "of"), 2) as hosts:
            hosts.write("hostfile", "w-1 slots=1\nw-2 slots=1\n")
            hosts.write("train.py", WITH_HANDLER)
            for name, receiver in cells:
                yield name, receiver, on_hosts(hosts, name, receiver)
        return
    with tempfile.TemporaryDirectory(prefix="signals-") as corpus:
        options = make_corpus(Path(corpus)) if kind == "native" and cells else []
        for name, receiver in cells:
            with tempfile.TemporaryDirectory(prefix="signals-") as folder:
                job = NativeJob(Path(folder), options) if kind == "native" else Job(Path(folder), kind)
                try:
                    yield name, receiver, job.outcome(name, receiver)
                finally:
                    job.close()


def on_hosts(hosts: Cluster, name: str, receiver: str) -> Outcome:
    for host in hosts.names:
        for path in (*hosts.folder(host).glob("saved-*"), *hosts.folder(host).glob("called-*")):
            path.unlink()
    job = hosts.start("train.py", launcher="ssh")
    reported = [job.stdout.readline() for _ in hosts.names]
    assert all(line.startswith("up ") for line in reported), job.communicate()[1]
    ranks = [pid_of(hosts, "rank", host) for host in hosts.names]
    launcher = pid_of(hosts, "launcher", "w-1")
    pids = {
        "launcher": [launcher],
        "guardian": [pid_of(hosts, "guardian", "w-2")],
        "agent": [pid_of(hosts, "agent", "w-2")],
        "one rank": ranks[-1:],
        "all ranks": ranks,
        "process group": [pid for pid, _ in running(hosts, "w-1") if os.getpgid(pid) == os.getpgid(launcher)],
        "all processes": [pid for host in hosts.names for pid, _ in running(hosts, host)],
    }[receiver]
    for pid in pids:
        try:
            os.kill(pid, signal.Signals[name])
        except ProcessLookupError:
            continue
    ended, errors = True, ""
    try:
        errors = job.communicate(timeout=2.5 if name in PASSED or receiver == "one rank" else 15)[1]
    except subprocess.TimeoutExpired:
        ended = False
    saved = sum(len(list(hosts.folder(host).glob("saved-*"))) for host in hosts.names)
    calls = [len(path.read_text()) for host in hosts.names for path in hosts.folder(host).glob("called-*")]
    if not ended:
        os.kill(launcher, signal.SIGTERM)
        errors = job.communicate(timeout=60)[1]
    left = sum(len(found) for found in hosts.left(5).values())
    code = job.returncode if job.returncode >= 0 else 128 - job.returncode
    return Outcome(ended, code, saved, max(calls, default=0), left, errors)


def write(page: Path, rows: dict[tuple[str, str, str], dict]) -> None:
    """Put the table between its marks on the page; the text around them is written by hand."""
    wrong = sum(bool(row["faults"]) for row in rows.values())
    lines = [f"`{MAKER}`, {time.strftime('%Y-%m-%d')}: {len(rows)} cells tried, {wrong} wrong.", ""]
    lines += ["| job | receiver | " + " | ".join((*END, *PASSED)) + " |", "|---|---|" + "---|" * 5]
    for kind in KINDS:
        for receiver in receivers(kind):
            cells = [rows.get((kind, name, receiver), {"cell": "not tried"})["cell"] for name in (*END, *PASSED)]
            lines.append(f"| {kind} | {receiver} | {' | '.join(cells)} |")
    marked_page.put(page, "\n".join([*lines, ""]), MAKER)


def _read(path: Path) -> dict[tuple[str, str, str], dict]:
    rows = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    return {(row["kind"], row["signal"], row["receiver"]): row for row in rows}


if __name__ == "__main__":
    sys.exit(main())
