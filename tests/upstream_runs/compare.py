"""Jobs of unmodified code bases as they are and with the patches, by turns: losses, time of a step, peak of memory.

    python tests/upstream_runs/compare.py hugging_face:gpt2-zero2 megatron_core:0.16.1-tp2 --keep FOLDER

It is for GPUs, in bf16, with a GPT-2 of usual size (--model changes it). Plain is ascend-run --no-adapt. A code base
that does not run so is reported with its error, and compared with itself without the patches that are for speed alone.
Where the losses are further apart than bf16 is from step to step, plain runs once more in fp32, and what it is away
from that is the noise of bf16 in this job. Exit code 1 if adapted does not run, or is further away than the noise.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path

import upstream_job
from code_bases import NotHere
from upstream_job import DEVICES, Ended, Model, NoSuchJob, Place, UpstreamJob

from ascend_adapt.runtime.plugin_manager import PluginManager

HERE = Path(__file__).parent
# The first steps choose kernels, compile, and fill the allocator.
WARM_UP = 5
# How many times plain's distance from fp32 adapted may have. Where losses jump, both are thrown about: at one step
# either may be near by luck, at the median of all it is not.
NOISE_AT_MEDIAN, NOISE_AT_WORST = 1.5, 3.0


@dataclass
class Side:
    """The runs of one side: the first one's losses, milliseconds a step of all, bytes of the fullest rank."""

    losses: tuple[float, ...] = ()
    milliseconds: list[float] = field(default_factory=list)
    peaks: list[int] = field(default_factory=list)
    cards: set[str] = field(default_factory=set)

    @property
    def step(self) -> float:
        """The median time of a step in milliseconds, nan if none could be reported."""
        return statistics.median(self.milliseconds) if self.milliseconds else float("nan")

    @property
    def peak(self) -> float:
        """The largest memory of a rank in bytes, nan if none reported."""
        return max(self.peaks, default=float("nan"))


def steps_ms(times: Sequence[float], count: int) -> list[float]:
    """Return milliseconds of each step but the first ones, from when its loss was printed.

    Several ranks may print each of ``count`` losses; then the last of them ends the step.
    """
    if not count or len(times) % count:
        return []
    ends = list(times)[len(times) // count - 1 :: len(times) // count]
    return [(after - before) * 1e3 for before, after in zip(ends[WARM_UP:], ends[WARM_UP + 1 :], strict=False)]


def run(job: UpstreamJob, place: Place, side: Side, *, disable: Sequence[str] = (), adapt: bool = True) -> Ended:
    """Run a job once, and add what was seen to its side."""
    peaks = place.folder / "peaks"
    peaks.mkdir(parents=True, exist_ok=True)
    path = os.pathsep.join([str(HERE / "measuring"), *([job.path(place)] if job.path else [])])
    variables = {**job.variables, "PYTHONUNBUFFERED": "1", "UPSTREAM_RUNS_PEAKS": str(peaks)}
    measured = replace(job, variables=variables, path=lambda place: path)
    ended = upstream_job.run(measured, place, disable=disable, adapt=adapt)
    if ended.code == 0 and ended.losses:
        side.losses = side.losses or ended.losses
        side.milliseconds += steps_ms(ended.times, len(ended.losses))
        for file in peaks.glob("*.json"):
            reported = json.loads(file.read_text())
            side.peaks.append(reported["allocated"])
            side.cards.add(reported["card"])
    return ended


def compare(name: str, job: UpstreamJob, known: argparse.Namespace, folder: Path, speed_only: Sequence[str]) -> int:
    """Run both sides by turns, and print what came of it."""
    shared = folder / name / "shared"
    shared.mkdir(parents=True, exist_ok=True)
    try:
        checkout = job.checkout(os.environ) or shared
    except NotHere as error:
        print(f"not checked: {name}:{job.name}: {error}", flush=True)
        return 0
    sides = {"plain": Side(), "adapted": Side()}
    how = {"plain": {"adapt": False}, "adapted": {}}
    print(f"{name}:{job.name} {known.device} {known.dtype}, {known.model}", flush=True)
    for turn in range(known.rounds):
        for side in ("plain", "adapted"):
            place = Place(
                folder / name / job.name / f"{side}-{turn}", shared, checkout, known.device, known.dtype, known.model
            )
            ended = run(job, place, sides[side], **how[side])
            if ended.code and side == "plain" and "adapt" in how[side]:
                print(f"  plain does not run: {ended.last_words}; in its place: no patch for speed", flush=True)
                how[side] = {"disable": speed_only}
                place = replace(place, folder=place.folder.with_name(f"needed-{turn}"))
                ended = run(job, place, sides[side], **how[side])
            if ended.code or not ended.losses:
                print(f"  {side} does not run: {ended.last_words}", flush=True)
                return 1
            if side == "adapted" and ended.problems:
                print(f"  adapted: {'; '.join(ended.problems)}", flush=True)
    close = report(job, sides, known)
    if not close and known.dtype == "bfloat16":
        exact = Side()
        place = Place(folder / name / job.name / "float32", shared, checkout, known.device, "float32", known.model)
        ended = run(job, place, exact, **how["plain"])
        if ended.code or not ended.losses:
            print(f"  plain in float32 does not run: {ended.last_words}", flush=True)
            return 1
        close = within_noise(exact.losses, sides["plain"].losses, sides["adapted"].losses)
    return int(not close)


def within_noise(exact: Sequence[float], plain: Sequence[float], adapted: Sequence[float]) -> bool:
    """Print how far both are from float32, and return whether adapted is about as near to it as plain is."""
    print(f"  plain in float32: losses {' '.join(f'{loss:.6g}' for loss in exact)}", flush=True)
    if not len(exact) == len(plain) == len(adapted):
        print(f"  {len(exact)}, {len(plain)} and {len(adapted)} losses", flush=True)
        return False
    far = {}
    for word, losses in (("plain", plain), ("adapted", adapted)):
        steps = [upstream_job.apart([a], [b]) for a, b in zip(exact, losses, strict=True)]
        far[word] = statistics.median(steps), max(steps)
        print(f"  {word} from float32: at most {max(steps):.1e}{_where(exact, losses)}", flush=True)
    at_median, at_worst = (
        ours <= times * theirs
        for ours, theirs, times in zip(far["adapted"], far["plain"], (NOISE_AT_MEDIAN, NOISE_AT_WORST), strict=True)
    )
    return at_median and at_worst


def report(job: UpstreamJob, sides: dict[str, Side], known: argparse.Namespace) -> bool:
    """Print both sides and their ratios; return whether the losses are within the job's bound."""
    plain, adapted = sides["plain"], sides["adapted"]
    for word, side in sides.items():
        print(f"  {word}: losses {' '.join(f'{loss:.6g}' for loss in side.losses)}")
        print(f"  {word}: {side.step:.1f} ms a step, median of {len(side.milliseconds)}, {side.peak / 2**30:.2f} GiB")
    far, bound = upstream_job.apart(plain.losses, adapted.losses), job.bound_in(known.dtype)
    cards = ", ".join(sorted(plain.cards | adapted.cards)) or "no GPU"
    print(
        f"  adapted on {cards}: {plain.step / adapted.step:.2f}x the speed, {adapted.peak / plain.peak:.2f}x the memory"
    )
    print(f"  losses at most {far:.1e} apart, of {bound:.0e}{_where(plain.losses, adapted.losses)}", flush=True)
    if known.json is not None:
        reported = {word: {**asdict(side), "cards": sorted(side.cards)} for word, side in sides.items()}
        with known.json.open("a") as file:
            file.write(json.dumps({"job": job.name, "model": asdict(known.model), "apart": far, **reported}) + "\n")
    return far <= bound


def _where(one: Sequence[float], other: Sequence[float]) -> str:
    """Return where two runs are furthest apart, with both losses, and by how much they are at the median step."""
    if len(one) != len(other):
        return f": {len(one)} losses and {len(other)}"
    apart = [upstream_job.apart([a], [b]) for a, b in zip(one, other, strict=True)]
    step = apart.index(max(apart))
    median = statistics.median(apart)
    return f", at step {step + 1} ({one[step]:.6g} and {other[step]:.6g}); at the median step {median:.1e}"


def model(text: str) -> Model:
    """Return the model of a text such as ``layers=24,hidden=1024``; the rest is GPT-2's."""
    names = [one.name for one in fields(Model)]
    reported = {}
    for part in filter(None, text.split(",")):
        name, _, number = part.partition("=")
        if name not in names or not number.isdecimal():
            raise argparse.ArgumentTypeError(f"{part}: expected NAME=NUMBER with a name of {', '.join(names)}")
        reported[name] = int(number)
    return Model(**reported)


def main() -> int:
    """Compare what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("jobs", nargs="+", metavar="CODE_BASE[:JOB]", help=f"of {', '.join(upstream_job.names())}")
    parser.add_argument("--device", default="cuda", choices=DEVICES)
    parser.add_argument("--dtype", default="bfloat16", choices=("float32", "bfloat16"))
    parser.add_argument("--model", type=model, default=Model(), metavar="NAME=NUMBER,...", help="default: %(default)s")
    parser.add_argument("--rounds", type=int, default=2, help="how often both run, by turns")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="keep outputs and run directories there")
    parser.add_argument("--json", type=Path, metavar="FILE", help="append one JSON line for each job to this file")
    known = parser.parse_args()
    try:
        chosen = [(name, job) for name, job in upstream_job.chosen(known.jobs) if job.any_model]
    except NoSuchJob as error:
        parser.error(str(error))
    if not chosen:
        parser.error(f"{' '.join(known.jobs)}: none of them takes another model than its own — choose others")
    patches = PluginManager().patches()
    speed_only = [f"{one.plugin}.{one.patch.name}" for one in patches if one.patch.without == "slower"]
    with tempfile.TemporaryDirectory() as scratch:
        folder = (known.keep or Path(scratch)).absolute()
        return max([compare(name, job, known, folder, speed_only) for name, job in chosen])


if __name__ == "__main__":
    sys.exit(main())
