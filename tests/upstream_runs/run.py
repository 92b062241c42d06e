"""Run jobs of unmodified code bases and print their losses; compare devices, and see what each patch is for.

    python tests/upstream_runs/run.py hugging_face                                    all its jobs, on the CPU
    python tests/upstream_runs/run.py hugging_face:gpt2-zero2 --device cpu --device npu-emulated
    python tests/upstream_runs/run.py hugging_face --device cuda --dtype bfloat16     on real GPUs
    python tests/upstream_runs/run.py hugging_face:gpt2-zero2 --each-removed          once more without each patch

Exit code 1 if a job fails, a patch is failed, drifted or lost, or the losses of two devices, or the last ones of a job
that was interrupted and of the whole one, if both are run, are further apart than the job's bound.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import upstream_job
from code_bases import NotHere
from upstream_job import DEVICES, Ended, Place, UpstreamJob


def main() -> int:
    """Run what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("jobs", nargs="+", metavar="CODE_BASE[:JOB]", help=f"of {', '.join(upstream_job.names())}")
    parser.add_argument("--device", action="append", choices=DEVICES, help="repeatable; the first is compared with")
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16"))
    parser.add_argument("--disable", action="append", default=[], metavar="PATCH")
    parser.add_argument("--no-adapt", action="store_true", help="run without any patch")
    parser.add_argument("--each-removed", action="store_true", help="then run once without each applied patch")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="keep outputs and run directories there")
    parser.add_argument("--json", type=Path, metavar="FILE", help="append one JSON line for each run to this file")
    known = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        known.folder, known.seen = (known.keep or Path(scratch)).absolute(), {}
        return max([run_job(name, job, known) for name, job in wanted(known.jobs, parser)])


def wanted(words: list[str], parser: argparse.ArgumentParser) -> Iterator[tuple[str, UpstreamJob]]:
    for word in words:
        name, _, only = word.partition(":")
        if name not in upstream_job.names():
            parser.error(f"{name}: is no code base here — choose from {', '.join(upstream_job.names())}")
        found = [job for job in upstream_job.jobs(name) if only in ("", job.name)]
        if not found:
            known = ", ".join(job.name for job in upstream_job.jobs(name))
            parser.error(f"{word}: there is no such job — choose from {known}")
        yield from ((name, job) for job in found)


def run_job(name: str, job: UpstreamJob, known: argparse.Namespace) -> int:
    try:
        checkout = job.checkout(os.environ)
    except NotHere as error:
        print(f"not checked: {name}:{job.name}: {error}", flush=True)
        return 0
    shared = known.folder / name / "shared"
    shared.mkdir(parents=True, exist_ok=True)
    wrong, first = 0, ()
    for device in known.device or ["cpu"]:
        if not job.is_for(device, known.dtype):
            print(f"not checked: {name}:{job.name}: is not for {known.dtype} on {device}", flush=True)
            continue

        def once(label: str, disable: list[str], device: str = device) -> Ended:
            folder = known.folder / name / job.name / f"{device}-{known.dtype}{label}"
            place = Place(folder, shared, checkout or shared, device, known.dtype)
            begin = time.monotonic()
            ended = upstream_job.run(job, place, disable=disable, adapt=not known.no_adapt)
            tell(name, job, place, disable, ended, time.monotonic() - begin, known.json)
            return ended

        ended = once("", known.disable)
        wrong |= bool(ended.problems)
        bound = job.bound_in(known.dtype)
        if first and (far := upstream_job.apart(first, ended.losses)) > bound:
            print(f"  losses are {far:.1e} apart from the first device's, expected at most {bound:.1e}", flush=True)
            wrong = 1
        known.seen[name, job.name, device] = ended.losses
        whole = known.seen.get((name, job.resumes, device), ())
        # The last: Megatron-LM 0.19 prints as the second loss of a run the mean of the first two.
        if whole and (far := upstream_job.apart(whole[-1:], ended.losses[-1:])) > bound:
            print(f"  the last loss is {far:.1e} apart from that of {job.resumes}, uninterrupted", flush=True)
            wrong = 1
        first = first or ended.losses
        for patch in ended.applied if known.each_removed else ():
            once(f"-without-{patch}", [*known.disable, patch])
    return wrong


def tell(name: str, job: UpstreamJob, place: Place, disable: list[str], ended: Ended, took: float, to: Path | None):
    without = f" without {', '.join(disable)}" if disable else ""
    states = ", ".join(f"{count} {state}" for state, count in sorted(ended.states.items()))
    losses = " ".join(f"{loss:.7g}" for loss in ended.losses)
    print(f"{name}:{job.name} {place.device} {place.dtype}{without}: code {ended.code}, {took:.0f} s; {states}")
    print(f"  losses {losses}")
    for problem in ended.problems:
        print(f"  {problem}")
    sys.stdout.flush()
    if to is not None:
        facts = {"device": place.device, "dtype": place.dtype, "without": disable, "seconds": round(took)}
        told = {"losses": ended.losses, "states": ended.states, "applied": ended.applied, "problems": ended.problems}
        with to.open("a") as file:
            file.write(json.dumps({"job": f"{name}:{job.name}", **facts, **told}) + "\n")


if __name__ == "__main__":
    sys.exit(main())
