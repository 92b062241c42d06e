"""One signal to one receiver of one kind of job: what was saved, the exit code, what is left."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from ascend_adapt.launch.one_host import processes
from ascend_adapt.launch.one_host.processes import Identity

END = ("SIGTERM", "SIGINT", "SIGHUP")
PASSED = ("SIGUSR1", "SIGUSR2")
RECEIVERS = ("launcher", "guardian", "one rank", "all ranks", "process group", "all processes")
RUN = [sys.executable, "-m", "ascend_adapt.launch.cli"]

# Its handler takes longer than a second request may; each call is kept, and what it has saved.
WITH_HANDLER = """
import os, signal, sys, time
rank = os.environ.get("RANK", "0")
def save(number, frame):
    with open(f"called-{rank}", "a") as called:
        called.write("x")
    if number in (signal.SIGUSR1, signal.SIGUSR2):
        open(f"saved-{rank}", "w").close()
        return
    time.sleep(0.5)
    open(f"saved-{rank}", "w").close()
    sys.exit(0)
for name in ("SIGTERM", "SIGINT", "SIGHUP", "SIGUSR1", "SIGUSR2"):
    signal.signal(getattr(signal, name), save)
print("up", os.getpid(), flush=True)
while True:
    time.sleep(0.05)
"""
WITHOUT = "import os, time\nprint('up', os.getpid(), flush=True)\ntime.sleep(60)\n"
SHELL = f"{sys.executable} train.py\n"
INNER = f"{sys.executable} -m ascend_adapt.launch.cli --device cpu --nproc 2 --log-dir inner train.py\n"
JOBS = {
    "script with a handler": (WITH_HANDLER, "", ["--nproc", "2", "train.py"], 2),
    "script without": (WITHOUT, "", ["--nproc", "2", "train.py"], 2),
    "bash, script with a handler": (WITH_HANDLER, SHELL, ["bash", "run.sh"], 1),
    "a second ascend-run": (WITH_HANDLER, INNER, ["bash", "run.sh"], 2),
}


@dataclass(frozen=True)
class Outcome:
    """What became of a job; ``ended``: by the signal, not by the SIGTERM that ends it afterwards."""

    ended: bool
    code: int
    saved: int
    calls: int
    left: int
    reported: str

    def described(self) -> str:
        """Return a cell of the table."""
        saved = {0: "not saved", 1: "saved"}.get(self.saved, "saved")
        how = f"code {self.code}" if self.ended else "continues"
        return f"{saved}, {how}" + (f", LEFT {self.left}" if self.left else "")


class Job:
    """A job in a folder, and the processes in it."""

    def __init__(self, folder: Path, kind: str) -> None:
        script, shell, argv, self.ranks = JOBS[kind]
        self.shell = shell
        self.has_handler = script is WITH_HANDLER
        (folder / "train.py").write_text(script)
        (folder / "run.sh").write_text(shell)
        self.start(folder, argv)
        self.rank_pids = [int(line.split()[1]) for line in self.lines(r"up (\d+)", self.ranks)]

    rank_pids: list[int] = []  # noqa: RUF012
    patience_s, has_handler, shell = 8.0, True, ""

    def start(self, folder: Path, argv: list[str]) -> None:
        self.folder = folder
        self.errors = (folder / "stderr").open("w+")
        self.process = subprocess.Popen(
            [*RUN, "--device", "cpu", "--log-dir", "run", *argv],
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            text=True,
            start_new_session=True,
        )

    def lines(self, pattern: str, count: int) -> list[str]:
        """Return the next lines that match."""
        assert self.process.stdout is not None
        found: list[str] = []
        while len(found) < count:
            line = self.process.stdout.readline()
            assert line, (self.folder / "stderr").read_text()
            if re.match(pattern, line):
                found.append(line)
        return found

    def receivers(self, receiver: str) -> list[int]:
        below = [one.pid for one in processes.descendants(self.process.pid)]
        return {
            "launcher": [self.process.pid],
            "guardian": below[:1],  # the launcher's only child
            "one rank": self.rank_pids[-1:],
            "all ranks": self.rank_pids,
            "all processes": [self.process.pid, *below],
        }[receiver]

    def send(self, number: int, receiver: str) -> None:
        if receiver == "process group":
            os.killpg(self.process.pid, number)
            return
        for pid in self.receivers(receiver):
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                continue  # ended by what its parent got

    def outcome(self, name: str, receiver: str) -> Outcome:
        """Send the signal, and end the job if it does not end by that."""
        there = [self.process.pid, *self.receivers("all processes")]
        known = [one for one in map(Identity.of, there) if one is not None]
        self.send(signal.Signals[name], receiver)
        ended = self._ends(name)
        saved, calls = self.saved(), self.calls()
        reported = (self.folder / "stderr").read_text()
        if not ended:
            self.process.send_signal(signal.SIGTERM)
            assert self._wait(30), "does not end at SIGTERM"
        code = self.process.returncode if self.process.returncode >= 0 else 128 - self.process.returncode
        left = [one for one in known if one.is_alive()]
        return Outcome(ended, code, saved, calls, len(left), reported)

    def _ends(self, name: str) -> bool:
        """Wait for the end, for a save without an end, or until neither comes."""
        began = time.monotonic()
        while time.monotonic() - began < self.patience_s:
            if self._wait(0.2):
                return True
            if self.saved() and name in PASSED:
                return self._wait(3.0 if self.shell else 0.5)
            if self.saved() and self.process_count() < self.ranks:
                return self._wait(self.patience_s / 3)
            if not self.has_handler and name in PASSED and time.monotonic() - began > 0.8:
                break
        return False

    def process_count(self) -> int:
        return sum(Path(f"/proc/{pid}").exists() for pid in self.rank_pids)

    def _wait(self, seconds: float) -> bool:
        try:
            self.process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            return False
        return True

    def saved(self) -> int:
        return len(list(self.folder.glob("saved-*")))

    def calls(self) -> int:
        """Return the most calls of any rank's handler."""
        return max((len(path.read_text()) for path in self.folder.glob("called-*")), default=0)

    def close(self) -> None:
        for pid in self.receivers("all processes"):
            one = Identity.of(pid)
            if one is not None:
                one.send(signal.SIGKILL)
        self.process.communicate()
        self.errors.close()


SIZES = (
    "--num-layers 2 --hidden-size 32 --num-attention-heads 4 --seq-length 32 --max-position-embeddings 32 "
    "--micro-batch-size 2 --global-batch-size 4 --train-iters 100000 --lr 0.003 --log-interval 20 --eval-interval 0 "
    "--eval-iters 0 --split 100,0,0 --save saved --save-interval 100000"
)


class NativeJob(Job):
    """A native run that saves."""

    patience_s = 30.0

    def __init__(self, folder: Path, corpus: list[str]) -> None:
        self.start(folder, ["--nproc", "2", "--native", "megatron", *SIZES.split(), *corpus])
        self.ranks = 2
        self.lines(r".*iteration +\d+", 1)
        guardian = self.receivers("guardian")[0]
        below = processes.descendants(guardian)
        text = {one.pid: Path(f"/proc/{one.pid}/cmdline").read_bytes() for one in below}
        self.rank_pids = [pid for pid, words in text.items() if b"rank_entry" in words and _parent(pid) == guardian]

    def saved(self) -> int:
        return len(list((self.folder / "saved").glob("iter_*/metadata.json"))) or len(
            list((self.folder / "saved").glob("iter_*"))
        )

    def calls(self) -> int:
        return 0


def make_corpus(folder: Path) -> list[str]:
    """Return the options of a small corpus with a vocabulary of bytes."""
    from tokenizers.pre_tokenizers import ByteLevel

    from ascend_adapt import cli

    (folder / "text.jsonl").write_text("".join(json.dumps({"text": f"line {n} " * 40}) + "\n" for n in range(200)))
    letters = [*sorted(ByteLevel.alphabet()), "<|endoftext|>"]
    (folder / "vocab.json").write_text(json.dumps({letter: number for number, letter in enumerate(letters)}))
    (folder / "merges.txt").write_text("#version: 0.2\n")
    words = f"--input {folder}/text.jsonl --output-prefix {folder}/text --vocab {folder}/vocab.json"
    words += f" --merge-file {folder}/merges.txt --tokenizer-type GPT2BPETokenizer --append-eod --workers 1"
    assert cli.main(["preprocess", *words.split()]) == 0
    return ["--data-path", f"{folder}/text_text_document", "--vocab-file", f"{folder}/vocab.json"]


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def faults(kind: str, receiver: str, name: str, outcome: Outcome) -> list[str]:
    """Return what is wrong with a cell."""
    found = []
    if outcome.left:
        found.append(f"{outcome.left} processes left")
    # bash has no handler for it, see docs: its end is that of the job, and the script is asked to end too.
    ends = name in PASSED and kind.startswith(("bash", "a second")) and receiver == "all processes"
    if outcome.calls > 1 + ends:
        found.append(f"a handler was called {outcome.calls} times")
    number = signal.Signals[name]
    of_all = receiver in ("launcher", "guardian", "agent", "process group", "all processes")
    if name in PASSED:
        if outcome.ended and not (ends and name in outcome.reported):
            found.append(f"{name} ended the job")
        if not ends and kind != "script without" and not outcome.saved:
            found.append("not saved")
    elif of_all:
        if outcome.code != 128 + number or not outcome.ended:
            found.append(f"code {outcome.code}, expected {128 + number}")
        if kind != "script without" and not outcome.saved and not (kind == "native" and name == "SIGINT"):
            found.append("not saved")
    words = (name, "KeyboardInterrupt") if name == "SIGINT" else (name,)
    if outcome.ended and outcome.code and not any(word in outcome.reported for word in words):
        found.append(f"ended without a word about {name}")
    return found
