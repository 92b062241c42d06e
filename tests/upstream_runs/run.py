"""Run jobs of unmodified code bases and print their losses; compare devices.

    python tests/upstream_runs/run.py hugging_face                                    all its jobs, on the CPU
    python tests/upstream_runs/run.py hugging_face:gpt2-zero2 --device cpu --device npu-emulated
    python tests/upstream_runs/run.py hugging_face --device cuda --dtype bfloat16     on real GPUs
    python tests/upstream_runs/run.py hugging_face --diagnose                         doctor, explain and status on each

Exit code 1 if a job fails, a patch is failed, drifted or lost, or the losses of two devices, or the last ones of a job
that was interrupted and of the whole one, if both are run, are further apart than the job's bound; with --diagnose also
if a problem is named of a job that trained.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path

import diagnose
import records
import upstream_job
from code_bases import NotHere
from records import Record
from upstream_job import DEVICES, NoSuchJob, Place, UpstreamJob


def main() -> int:
    """Run what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("jobs", nargs="+", metavar="CODE_BASE[:JOB]", help=f"of {', '.join(upstream_job.names())}")
    parser.add_argument("--device", action="append", choices=DEVICES, help="repeatable; the first is compared with")
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16"))
    parser.add_argument("--disable", action="append", default=[], metavar="PATCH")
    parser.add_argument("--no-adapt", action="store_true", help="run without any patch")
    parser.add_argument("--plain", action="store_true", help="run without this project: python, or torchrun")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="keep outputs and run directories there")
    parser.add_argument("--diagnose", action="store_true", help="run doctor, explain and status on each finished job")
    parser.add_argument("--json", type=Path, metavar="FILE", help="append one JSON line for each run to this file")
    known = parser.parse_args()
    try:
        chosen = upstream_job.chosen(known.jobs)
    except NoSuchJob as error:
        parser.error(str(error))
    with tempfile.TemporaryDirectory() as scratch:
        known.folder, known.seen = (known.keep or Path(scratch)).absolute(), {}
        return max([run_job(name, job, known) for name, job in chosen])


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
        folder = known.folder / name / job.name / ("plain" if known.plain else f"{device}-{known.dtype}")
        place = Place(folder, shared, checkout or shared, device, known.dtype)
        begin = time.monotonic()
        adapted = not (known.no_adapt or known.plain)
        ended = upstream_job.run(job, place, disable=known.disable, adapt=adapted, plain=known.plain)
        took = time.monotonic() - begin
        record = Record.of(f"{name}:{job.name}", place, ended, without=known.disable, adapted=adapted, seconds=took)
        report(record)
        if known.json is not None:
            records.append(known.json, record)
        wrong |= bool(ended.problems)
        if known.diagnose and not ended.problems:
            found = diagnose.diagnose(folder)
            diagnose.report(f"  {name}:{job.name} {device}", found)
            wrong |= bool(found.alarms)
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
    return wrong


def report(record: Record) -> None:
    """Print what came of a run."""
    without = f" without {', '.join(record.without)}" if record.without else ""
    states = ", ".join(f"{count} {state}" for state, count in sorted(record.states.items()))
    print(f"{record.job} {record.device} {record.dtype}{without}: code {record.code}, {record.seconds:.0f} s; {states}")
    print(f"  losses {' '.join(f'{loss:.7g}' for loss in record.losses)}")
    for problem in record.problems:
        print(f"  {problem}")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
