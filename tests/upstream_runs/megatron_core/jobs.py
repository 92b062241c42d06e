"""Megatron-core from the package index, four releases of it, below a script of our own on its public names."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import tokens
from upstream_job import RELEASES, Place, UpstreamJob

HERE = Path(__file__).parent
# Source archives: newer ones install on Python 3.12 only.
VERSIONS = ("0.12.0", "0.14.0", "0.16.1", "0.19.2")
LAYOUTS = {"tp2": (2, 1), "pp2": (1, 2), "tp2-pp2": (2, 2)}


def command(place: Place, version: str, layout: str) -> Sequence[str]:
    """Return the script, with the release on the path by way of PYTHONPATH."""
    tensor, pipeline = LAYOUTS[layout]
    flags = ["--tensor-parallel", str(tensor), "--pipeline-parallel", str(pipeline)]
    data = ["--data", str(tokens.python_library(place.shared))]
    if (model := place.model) is not None:
        sizes = {"layers": model.layers, "hidden": model.hidden, "heads": model.heads, "sequence": model.length}
        run = {"micro-batch": model.micro_batch, "micro-batches": 1, "steps": model.steps}
        flags += [word for name, number in {**sizes, **run}.items() for word in (f"--{name}", str(number))]
    return [str(HERE / "train.py"), *data, *flags, *(["--bf16"] if place.dtype == "bfloat16" else [])]


def job(version: str, layout: str) -> UpstreamJob:
    """Return one release in one layout of ranks."""
    tensor, pipeline = LAYOUTS[layout]
    return UpstreamJob(
        f"{version}-{layout}",
        lambda place: command(place, version, layout),
        release=("megatron-core", version),
        nproc=tensor * pipeline,
        path=lambda place: str(RELEASES.cache / f"megatron-core-{version}"),
        variables={"CUDA_DEVICE_MAX_CONNECTIONS": "1"},
        bound=1e-5,
        any_model=True,
    )


JOBS = (
    *(job(version, layout) for version in VERSIONS for layout in ("tp2", "pp2")),
    job(VERSIONS[-1], "tp2-pp2"),
)
