"""50 steps of unmodified code bases and of `ascend-run --native`, with the same arguments and weights, on the CPU.

    make native-equal                                           all of them that ASCEND_ADAPT_UPSTREAMS has
    python tests/native/whole_runs_beside_upstream.py NAME      write both columns to upstream_losses.json, too

The native run comes first; the weights that it starts from are put into upstream's model before its first forward pass
(upstream_from_weights.py). The ids of the first micro batches must be the same numbers, and then the losses of every
step, but for rounding. Optimizers of upstream's that need a GPU are what the plugins put in their place, as in any job.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

if __name__ == "__main__":
    sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[1] / "upstream_runs")]

import pytest
import torch
import upstream_job
import yaml
from code_bases import NotHere, code_base
from native import fixed_text, training_bounds
from native.whole_runs import RUNS, STEPS, WholeRun
from upstream_job import Place, UpstreamJob

from ascend_adapt.config.yaml_file import from_dict
from ascend_adapt.native.parallel import mesh as meshes
from ascend_adapt.native.samples.loader import Samples
from ascend_adapt.native.step.trainer import Trainer

HERE = Path(__file__).parent
LOSSES = HERE / "upstream_losses.json"


@dataclass(frozen=True)
class Beside:
    """Losses of all steps, and the ids of the first micro batches, as both saw them."""

    upstream: tuple[float, ...]
    native: tuple[float, ...]
    upstream_ids: list[torch.Tensor]
    native_ids: list[torch.Tensor]
    bound: float
    """How far apart rounding may take the losses, relative."""

    @property
    def apart(self) -> float:
        """The largest relative difference of two losses of one step."""
        return upstream_job.apart(self.upstream, self.native)


def compare(run: WholeRun, folder: Path) -> Beside:
    """Train both in a folder.

    Raises:
        NotHere: the code base is not here as it was published.
        RuntimeError: one of them did not end well.
    """
    checkout = code_base(run.code_base).checkout(os.environ)
    place = Place(folder / "work", folder / "shared", checkout, "cpu", "float32")
    text = fixed_text.write(place.shared)
    place.folder.mkdir(parents=True)
    arguments = run.arguments(place.folder, text)
    native = _native(run, place, [*arguments, "--upstream-version", run.line])
    config = from_dict(yaml.safe_load((native / "config.yaml").read_text()))
    parameters = Trainer(config, meshes.single(torch.device("cpu"))).parameters
    torch.save({one.name: one.local for one in parameters}, place.folder / "weights.pt")
    rows = [json.loads(row)["lm_loss"] for row in (native / "metrics.jsonl").read_text().splitlines()]

    losses = _upstream(run, place, arguments)
    seen = torch.load(place.folder / "seen-0.pt", weights_only=True)
    samples = Samples(config, meshes.single(torch.device("cpu")), "train")
    ours = [samples.next(1)["tokens"] for _ in seen]
    bound = training_bounds.apart(config.model, config.data.seq_length, run.growth)
    return Beside(losses, tuple(rows), seen, ours, bound)


def _native(run: WholeRun, place: Place, arguments: list[str]) -> Path:
    """Train natively; return the run directory."""
    folder = place.folder / "native"
    options = ["--device", "cpu", "--nproc", str(run.ranks), "--log-dir", str(folder)]
    command = [sys.executable, "-m", "ascend_adapt.launch.cli", *options, "--native", run.dialect, *arguments]
    _run(command, place.folder)
    return folder


def _upstream(run: WholeRun, place: Place, arguments: list[str]) -> tuple[float, ...]:
    """Train by upstream's own script; return its losses."""
    script, ours = place.checkout / run.script, str(HERE / "upstream_from_weights.py")
    variables = {"UPSTREAM_GIVEN": str(place.folder), "CUDA_DEVICE_MAX_CONNECTIONS": "1"}
    if run.dialect == "neox":
        variables["UPSTREAM_SCRIPT"] = str(script)
        command = [str(place.checkout / "deepy.py"), ours, *arguments]
    else:
        command = [ours, str(script), *arguments]
    job = UpstreamJob(run.name, lambda _: command, run.code_base, run.ranks, loss=run.loss, variables=variables)
    ended = upstream_job.run(job, place)
    if ended.problems:
        raise RuntimeError(f"{run.name}: {ended.problems}\n{ended.output[-4000:]}")
    return run.losses(ended.losses)


def _run(command: list[str], folder: Path) -> None:
    ended = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=600)
    if ended.returncode:
        raise RuntimeError(f"{shlex.join(command)}: {ended.stderr[-4000:]}")


@pytest.mark.parametrize("run", RUNS, ids=lambda run: run.name)
def test_50_steps(run: WholeRun, tmp_path: Path) -> None:
    try:
        compared = compare(run, tmp_path)
    except NotHere as error:
        pytest.skip(f"not checked: {run.name}: {error}")
    assert len(compared.upstream) == STEPS
    assert compared.upstream[-1] < 0.7 * compared.upstream[0]
    for upstream, native in zip(compared.upstream_ids, compared.native_ids, strict=True):
        assert torch.equal(upstream, native)
    assert compared.native == pytest.approx(compared.upstream, rel=compared.bound)
    recorded = json.loads(LOSSES.read_text())[run.name]["upstream"]
    assert compared.upstream == pytest.approx(recorded, rel=compared.bound)


def main() -> int:
    """Compare the named runs, print the results, and record the losses of both."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help=f"default: all of {', '.join(run.name for run in RUNS)}")
    parser.add_argument("--keep", type=Path, help="leave what was run there")
    known = parser.parse_args()
    for run in RUNS:
        if known.names and run.name not in known.names:
            continue
        with tempfile.TemporaryDirectory() as scratch:
            folder = (known.keep or Path(scratch)) / run.name.replace(" ", "-").replace(",", "")
            compared = compare(run, folder.absolute())
        same = sum(map(torch.equal, compared.upstream_ids, compared.native_ids))
        ends = " ".join(f"{losses[0]:.6f} -> {losses[-1]:.6f}" for losses in (compared.upstream, compared.native))
        print(
            f"{run.name}: {same} of {len(compared.upstream_ids)} micro batches, {compared.apart:.1e} apart, {ends}",
            flush=True,
        )
        if compared.apart > 1e-4:
            for step, (one, other) in enumerate(zip(compared.upstream, compared.native, strict=False)):
                print(f"    {step} {one:.6f} {other:.6f}")
            continue
        recorded = json.loads(LOSSES.read_text()) if LOSSES.exists() else {}
        both = {"upstream": compared.upstream, "native": [round(loss, 6) for loss in compared.native]}
        recorded[run.name] = {"commit": code_base(run.code_base).commit, **both}
        lines = [f"{json.dumps(name)}: {json.dumps(recorded[name])}" for name in sorted(recorded)]
        LOSSES.write_text("{\n" + ",\n".join(lines) + "\n}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
