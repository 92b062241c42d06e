"""Run a code base x DeepSpeed releases x ZeRO stages x recomputation, tiny, and print or write the table.

    python tests/upstream_runs/release_matrix.py 'v2.0 on 0.12.6*' --seen runs/releases.jsonl
    python tests/upstream_runs/release_matrix.py --seen runs/releases.jsonl --write docs/upstreams.md

A cell is two ranks on the CPU in fp32, two steps. Cells in the file are not run again. Exit code 1 if one failed.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

import marked_page
import records
import upstream_job
from code_bases import NotHere
from glm import jobs as glm
from gpt_neox import jobs as gpt_neox
from megatron_deepspeed import jobs as megatron_deepspeed
from records import Record
from upstream_job import RELEASES, Place, UpstreamJob

MAKER = "tests/upstream_runs/release_matrix.py"
# The environment that the tests have is the newest; older releases read settings with pydantic 1.
INSTALLED = "0.19.8"
DEEPSPEED = ("0.9.2", "0.12.6", "0.14.5", "0.16.9", INSTALLED)
PYDANTIC_1 = ("0.9.2", "0.12.6")


@dataclass(frozen=True)
class CodeBaseCells:
    """A code base, the ZeRO stages that it offers, and the command of a cell."""

    name: str
    stages: tuple[int, ...]
    job: Callable[[int, bool], UpstreamJob]


@dataclass(frozen=True)
class Cell:
    """One run of the matrix."""

    base: CodeBaseCells
    release: str
    stage: int
    recomputed: bool

    def __str__(self) -> str:
        return f"{self.base.name} on {self.release}, ZeRO {self.stage}{', recomputed' if self.recomputed else ''}"


def _neox(code_base: str) -> Callable[[int, bool], UpstreamJob]:
    def job(stage: int, recomputed: bool) -> UpstreamJob:
        zero = {"zero_optimization": {"stage": stage, "reduce_scatter": True, "contiguous_gradients": True}}
        short = {"train_iters": 2, "lr_decay_iters": 2, "eval_interval": 100, "pipe_parallel_size": 0}
        command = gpt_neox.deepy(2, **zero, **short, checkpoint_activations=recomputed)
        return UpstreamJob("cell", command, code_base, loss=gpt_neox.LOSS)

    return job


def _megatron(code_base: str, *arguments: str) -> Callable[[int, bool], UpstreamJob]:
    def job(stage: int, recomputed: bool) -> UpstreamJob:
        def command(place: Place) -> Sequence[str]:
            configuration = megatron_deepspeed.deepspeed_configuration(place, stage)
            engine = ["--deepspeed", "--zero-stage", str(stage), "--deepspeed_config", configuration]
            script = [str(place.checkout / "pretrain_gpt.py"), *megatron_deepspeed.training(place), *engine]
            recomputation = ["--checkpoint-activations"] if recomputed else []
            return [*script, *megatron_deepspeed.SAME, *arguments, *recomputation, "--train-iters", "2"]

        variables = {"CUDA_DEVICE_MAX_CONNECTIONS": "1"}
        return UpstreamJob("cell", command, code_base, loss=megatron_deepspeed.LOSS, variables=variables)

    return job


def _glm(stage: int, recomputed: bool) -> UpstreamJob:
    more = "--deepspeed-activation-checkpointing" if recomputed else ""
    command = glm.pretrain(2, 1, stage=stage, more=more, iterations=2, recomputed=recomputed)
    return UpstreamJob("cell", command, "GLM", loss=glm.LOSS, needs=glm.NEEDS)


CODE_BASES = (
    CodeBaseCells("v2.0", (0, 1, 2, 3), _neox("gpt-neox-v2.0")),
    CodeBaseCells("newest", (0, 1, 2, 3), _neox("gpt-neox")),
    CodeBaseCells("deepspeedai", (0, 1, 2, 3), _megatron("Megatron-DeepSpeed", *megatron_deepspeed.NO_PIPE)),
    # Its --deepspeed is the pipeline engine, which has no stages 2 and 3.
    CodeBaseCells("bigscience", (0, 1), _megatron("bigscience-Megatron-DeepSpeed")),
    CodeBaseCells("GLM", (0, 1, 2), _glm),
)


def cells() -> Iterator[Cell]:
    """Yield every cell."""
    for base in CODE_BASES:
        for release in DEEPSPEED:
            for stage in base.stages:
                for recomputed in (True, False):
                    yield Cell(base, release, stage, recomputed)


def run(cell: Cell, folder: Path) -> Record:
    """Run a cell."""
    job = cell.base.job(cell.stage, cell.recomputed)
    checkout = job.checkout(os.environ)
    trees = [] if cell.release == INSTALLED else [RELEASES.tree("deepspeed", cell.release)]
    trees += [RELEASES.tree("pydantic", "1.10.27")] if cell.release in PYDANTIC_1 else []
    path = upstream_job.python_path(os.environ, *map(str, trees))
    shared = folder / cell.base.name
    shared.mkdir(parents=True, exist_ok=True)
    # GLM's scripts split paths at spaces.
    place = Place(folder / re.sub(r"\W+", "-", str(cell)), shared, checkout or shared, "cpu", "float32")
    begin = time.monotonic()
    ended = upstream_job.run(job, place, environ={**os.environ, "PYTHONPATH": path})
    took = time.monotonic() - begin
    return Record.of(str(cell), place, ended, without=(), adapted=True, seconds=took)


def table(have: dict[str, Record]) -> str:
    """Return a row for each code base, stage and recomputation, a column for each release."""
    lines = [f"| code base | ZeRO | recomputed | {' | '.join(DEEPSPEED)} |\n", f"|{'---|' * (3 + len(DEEPSPEED))}\n"]
    for base in CODE_BASES:
        for stage in base.stages:
            for recomputed in (True, False):
                shown = [_shown(have.get(str(Cell(base, one, stage, recomputed)))) for one in DEEPSPEED]
                lines.append(f"| {base.name} | {stage} | {'yes' if recomputed else 'no'} | {' | '.join(shown)} |\n")
    return "".join(lines)


def _shown(record: Record | None) -> str:
    if record is None:
        return "not run"
    if not record.problems:
        return f"{record.losses[1]:.6f}"
    if needed := re.search(r"needs \w+ >= [\d.]+\d", " ".join(record.problems)):
        return f"refused: {needed[0]}"
    return f"`{record.reported.partition(' (exit code')[0][:80]}`".replace("|", r"\|")


def main() -> int:
    """Run what is asked for, and print or write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cells", nargs="*", metavar="PATTERN", help="such as 'GLM on *, ZeRO 2'; none: only the table")
    parser.add_argument("--seen", type=Path, required=True, metavar="FILE", help="records of runs, read and added to")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="keep outputs there")
    parser.add_argument("--write", type=Path, metavar="PAGE", help="put the table between the marks of this page")
    known = parser.parse_args()
    known.seen.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        for cell in cells():
            have = {record.job: record for record in records.read(known.seen)}
            if str(cell) in have or not any(fnmatchcase(str(cell), one) for one in known.cells):
                continue
            try:
                record = run(cell, (known.keep or Path(scratch)).absolute())
            except NotHere as error:
                print(f"not checked: {cell}: {error}", flush=True)
                continue
            records.append(known.seen, record)
            print(f"{cell}: {record.problems or record.losses}, {record.seconds:.0f} s", flush=True)
    have = {record.job: record for record in records.read(known.seen)}
    if known.write is None:
        print(table(have))
    else:
        marked_page.put(known.write, table(have), MAKER)
    return int(any(record.problems for record in have.values()))


if __name__ == "__main__":
    sys.exit(main())
