"""One job of an unmodified code base under `ascend-run`: how it is started, and its outcome."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import code_bases
import diagnose

from ascend_adapt.testing.releases import Releases, ReleaseUnreachable

HERE = Path(__file__).parent
# The source archives, unpacked: nothing in them is compiled.
RELEASES = Releases(HERE.parents[1] / ".releases")
DEVICES = ("cpu", "npu-emulated", "cuda")
_BFLOAT16_BOUND = 1e-2
BAD_STATES = ("failed", "drifted", "lost")

# What torch, torch_npu, DeepSpeed and ascend_adapt would read; a job gets what it says itself.
_LEFT_OUT = re.compile(r"ASCEND_|HCCL_|TORCH_TRANSFER|PYTORCH_|RANK$|LOCAL_|WORLD_SIZE$|MASTER_|DS_")
_KEPT = ("ASCEND_ADAPT_CACHE",)


class NoSuchJob(ValueError):
    """A job that was asked for is not here; the text says which are."""


@dataclass(frozen=True)
class Model:
    """What a job trains where a tiny model would report nothing: by default GPT-2, and 30 steps."""

    layers: int = 12
    hidden: int = 768
    heads: int = 12
    length: int = 1024
    micro_batch: int = 8
    steps: int = 30


@dataclass(frozen=True)
class Place:
    """Where one run happens, and on what.

    ``folder`` is the run's own and its working directory, ``shared`` is kept for all runs (tokenized text, built
    extensions), ``checkout`` is the code base, or ``shared`` for what is installed. ``model`` replaces the job's
    own tiny one.
    """

    folder: Path
    shared: Path
    checkout: Path
    device: str
    dtype: str
    model: Model | None = None


@dataclass(frozen=True)
class UpstreamJob:
    """A job as any user of the code base would write it.

    ``command`` returns what follows ascend-run's own options, and may write files into the place first. ``release`` is
    a distribution and a version whose source archive the job has on its path. ``loss`` finds the losses in what one
    rank prints, one group each, oldest first. ``bound`` is by how much they may differ between devices in float32,
    relative. ``needs`` names packages that must be installed. The code base itself takes 16 bits on no device of
    ``float32_only``. ``resumes`` names the job that it is with an interruption: its last loss is the same.
    ``path`` returns what is first on the job's PYTHONPATH; {shared} in ``variables`` is the place's folder.
    ``inside`` is the working directory, relative to the place's folder. A job of a fixed length is ended after
    ``enough`` losses, and its exit code is not judged.
    ``words`` is the command as a table shows it. ``any_model`` is whether it trains the place's model, if that is
    given.
    """

    name: str
    command: Callable[[Place], Sequence[str]]
    code_base: str = ""
    nproc: int = 2
    devices: tuple[str, ...] = DEVICES
    dtypes: tuple[str, ...] = ("float32", "bfloat16")
    float32_only: tuple[str, ...] = ()
    loss: str = r"loss: ([0-9.]+)"
    bound: float = 1e-4
    needs: tuple[str, ...] = ()
    resumes: str = ""
    any_model: bool = False
    release: tuple[str, str] | None = None
    options: tuple[str, ...] = ()
    path: Callable[[Place], str] | None = None
    variables: Mapping[str, str] = field(default_factory=dict)
    seconds: int = 900
    inside: str = "."
    enough: int = 0
    words: tuple[str, ...] = ()

    def is_for(self, device: str, dtype: str) -> bool:
        """Return whether it runs in this dtype on this device."""
        only = device in self.float32_only and dtype != "float32"
        return device in self.devices and dtype in self.dtypes and not only

    def bound_in(self, dtype: str) -> float:
        """Return the bound for a dtype: bfloat16 has three digits."""
        return self.bound if dtype == "float32" else max(self.bound, _BFLOAT16_BOUND)

    def checkout(self, environ: Mapping[str, str]) -> Path | None:
        """Return the checkout that it needs, or None.

        Raises:
            NotHere: it needs one, or a package, that is not here.
        """
        for name in self.needs:
            if find_spec(name) is None:
                raise code_bases.NotHere(f"{name} is not installed — pip install {name}")
        if self.release is not None:
            try:
                return RELEASES.tree(*self.release)
            except ReleaseUnreachable as error:
                raise code_bases.NotHere(str(error)) from error
        return code_bases.code_base(self.code_base).checkout(environ) if self.code_base else None


@dataclass(frozen=True)
class Ended:
    """What came of a run: ``report`` is that of ``ascend-adapt status RUN_DIR --json``.

    ``times`` are the seconds at which a loss was printed, by whichever rank.
    """

    code: int
    losses: tuple[float, ...]
    output: str
    report: Mapping[str, Any]
    run_dir: Path
    times: tuple[float, ...] = ()

    @property
    def states(self) -> Counter[str]:
        """How many patches ended in which state."""
        return Counter(one["state"] for one in self.report["outcomes"])

    @property
    def problems(self) -> list[str]:
        """All that must not be in a job that ran."""
        bad = [one for one in self.report["outcomes"] if one["state"] in BAD_STATES]
        unexplained = [one for one in self.report["outcomes"] if one["state"] == "skipped" and not one["reason"]]
        return [
            *([f"exit code {self.code}: {self.last_words}"] if self.code else []),
            *([] if self.losses else ["no loss was printed"]),
            *(f"{one['plugin']}.{one['patch']} {one['state']}: {one['reason']}" for one in (*bad, *unexplained)),
            *self.report["problems"],
        ]

    @property
    def applied(self) -> list[str]:
        """The patches that were applied, as ``plugin.patch``."""
        return [f"{one['plugin']}.{one['patch']}" for one in self.report["outcomes"] if one["state"] == "applied"]

    @property
    def last_words(self) -> str:
        """The last line that looks like an error, for a table of failures."""
        lines = [line.strip() for line in self.output.splitlines() if line.strip()]
        errors = [
            line
            for line in lines
            if re.match(
                r"(\[?rank ?\d+\]?:? *)?([\w.]*(Error|Exception|Interrupt|PatchDrift)\b|ERROR:|.* failed, exiting"
                r"|[\w.]+\.py: error:)",
                line,
            )
        ]
        # What torchrun says of a rank's end, and other ranks of theirs, reports nothing of its cause.
        causes = [line for line in errors if not re.search("ChildFailedError|Connection closed by peer", line)]
        causes += re.findall(r"ascend-run: rank \d+ on \S+ failed first: (?!sys\.exit\()(.*)", self.output)
        return (causes or errors or lines or ["it said nothing"])[-1][:300]


def run(
    job: UpstreamJob,
    place: Place,
    *,
    disable: Sequence[str] = (),
    adapt: bool = True,
    plain: bool = False,
    environ: Mapping[str, str] = os.environ,
) -> Ended:
    """Run a job to its end; ``disable`` names patches that are left out, without ``adapt`` there are none.

    ``plain``: as without this project, by python, or by torchrun for several ranks.
    """
    place.folder.mkdir(parents=True, exist_ok=True)
    run_dir = place.folder / "run"
    ours = ["--device", place.device, "--nproc", str(job.nproc), "--log-dir", str(run_dir), *job.options]
    ours += [word for name in disable for word in ("--disable", name)] + ([] if adapt else ["--no-adapt"])
    words = list(job.command(place))
    ours = [sys.executable, "-m", "ascend_adapt.launch.cli", *ours]
    command = [*(_plainly(words, job.nproc) if plain else ours), *words]
    path = os.pathsep.join([str(Path(sys.executable).parent), environ.get("PATH", "")])
    kept = {name: value for name, value in environ.items() if name in _KEPT or not _LEFT_OUT.match(name)}
    extensions = {"TORCH_EXTENSIONS_DIR": str(place.shared / "torch_extensions")}
    of_job = {name: value.format(shared=place.shared) for name, value in job.variables.items()}
    variables = {**kept, "PATH": path, "OMP_NUM_THREADS": "1", **extensions, **of_job}
    if job.path is not None:
        variables["PYTHONPATH"] = python_path(environ, job.path(place))
    stop = (job.loss, job.enough) if job.enough else None
    diagnose.remember(place.folder, place.device, words, place.folder / job.inside, of_job)
    code, lines = _lines(command, place.folder / job.inside, variables, job.seconds, stop)
    output = "".join(text for _, text in lines)
    (place.folder / "output.txt").write_text(output)
    times = tuple(at for at, text in lines for _ in re.findall(job.loss, text))
    losses = _losses(job.loss, output, run_dir)[: job.enough or None]
    report = {"outcomes": [], "problems": []} if plain else report_of(run_dir, variables)
    return Ended(code, losses, output, report, run_dir, times)


def python_path(environ: Mapping[str, str], *first: str) -> str:
    """Return PYTHONPATH with ``first`` before what the environment has there."""
    return os.pathsep.join(filter(None, (*first, environ.get("PYTHONPATH"))))


def _plainly(words: Sequence[str], nproc: int) -> list[str]:
    """Return what a user without this project puts before a script or module; nothing before another command."""
    if words[0] != "-m" and not words[0].endswith(".py"):
        return []
    return [sys.executable, *(["-m", "torch.distributed.run", f"--nproc-per-node={nproc}"] if nproc > 1 else [])]


def _lines(
    command: Sequence[str],
    folder: Path,
    variables: Mapping[str, str],
    seconds: float,
    stop: tuple[str, int] | None,
) -> tuple[int, list[tuple[float, str]]]:
    """Run a command, and return its exit code and each line that it printed with the second at which it came.

    ``stop`` is a pattern and a count: after so many lines with it the command is ended, and its exit code is 0.
    """
    running = subprocess.Popen(
        command,
        cwd=folder,
        env=dict(variables),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    late = threading.Event()
    timer = threading.Timer(seconds, lambda: (late.set(), running.kill()))
    timer.start()
    try:
        lines, found = [], 0
        for line in running.stdout or ():
            lines.append((time.monotonic(), line))
            found += stop is not None and re.search(stop[0], line) is not None
            if stop is not None and found == stop[1]:
                running.terminate()
        code = running.wait()
    finally:
        timer.cancel()
        running.kill()
        running.communicate()
    if stop is not None and found >= stop[1]:
        return 0, lines
    if late.is_set():
        return 124, [*lines, (time.monotonic(), f"\nTimeoutError: it did not end in {seconds} s")]
    return code, lines


def _losses(pattern: str, output: str, run_dir: Path) -> tuple[float, ...]:
    """Return the log of the first rank with losses; under a command there are no rank logs, only one output."""
    logs = sorted(run_dir.glob("rank-*.log"), key=lambda path: int(path.stem[5:]))
    for text in (*(path.read_text(errors="replace") for path in logs), output):
        if found := re.findall(pattern, text):
            return tuple(float(one) for one in found)
    return ()


def report_of(run_dir: Path, variables: Mapping[str, str]) -> Mapping[str, Any]:
    """Return what ``ascend-adapt status RUN_DIR --json`` says."""
    command = [sys.executable, "-m", "ascend_adapt.cli", "status", str(run_dir), "--json"]
    ended = subprocess.run(command, env=dict(variables), capture_output=True, text=True)
    try:
        reported: Mapping[str, Any] = json.loads(ended.stdout)
    except ValueError:
        return {"outcomes": [], "problems": [f"no status: {ended.stderr.strip()}"]}
    return reported


def free_port() -> int:
    """A port that is free now, for what would take a fixed one: several jobs may run at a time."""
    with socket.socket() as found:
        found.bind(("localhost", 0))
        return int(found.getsockname()[1])


def apart(one: Sequence[float], other: Sequence[float]) -> float:
    """Return the largest relative difference of two runs' losses; infinity if one has more of them."""
    if len(one) != len(other) or not one:
        return float("inf")
    return max(abs(a - b) / max(abs(a), abs(b), 1e-12) for a, b in zip(one, other, strict=True))


def names() -> list[str]:
    """Return the names of all folders beside this file that hold jobs."""
    return sorted(path.parent.name for path in HERE.glob("*/jobs.py"))


def jobs(name: str) -> tuple[UpstreamJob, ...]:
    """Return the jobs of one folder."""
    found: tuple[UpstreamJob, ...] = import_module(f"{name}.jobs").JOBS
    return found


def chosen(words: Sequence[str]) -> list[tuple[str, UpstreamJob]]:
    """Return the jobs of words such as ``hugging_face`` and ``gpt_neox:v2.0-*``, each with its code base.

    Raises:
        NoSuchJob: there is no such code base, or it has no such job.
    """
    found = []
    for word in words:
        name, _, only = word.partition(":")
        if name not in names():
            raise NoSuchJob(f"{name}: is no code base here — choose from {', '.join(names())}")
        of_name = [job for job in jobs(name) if fnmatchcase(job.name, only or "*")]
        if not of_name:
            raise NoSuchJob(f"{word}: there is no such job — choose from {', '.join(job.name for job in jobs(name))}")
        found += [(name, job) for job in of_name]
    return found
