"""Memory and speed of converting a checkpoint with GPT-NeoX-20B's shapes, compared with a plain copy.

    python bench/convert.py FOLDER --to hf                            44 layers: 41 GB in FOLDER
    python bench/convert.py FOLDER --to hf --emptied                  each shard is emptied after it is written to disk
    python bench/convert.py FOLDER --to neox --pp 0 --layers 12       sequential
    python bench/convert.py FOLDER --to megatron --layers 12          the same sizes without parallel residual

The source has the files of one block, hard-linked for every other block: files of real shapes in 2 GB of disk space.
``--emptied`` is for a disk that cannot hold the output; it omits the checksums and thus their time.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import threading
import time
from dataclasses import replace
from pathlib import Path

import safetensors.torch
import torch

from ascend_adapt.checkpoint.canonical import parameters
from ascend_adapt.checkpoint.dialects import deepspeed_writing
from ascend_adapt.checkpoint.writing import Output
from ascend_adapt.config.model_config import Model
from ascend_adapt.convert.conversion import Request, convert

NEOX_20B = Model(
    vocab_size=50277,
    padded_vocab_size=50432,
    hidden_size=6144,
    num_layers=44,
    num_heads=64,
    num_query_groups=64,
    head_dim=96,
    ffn_hidden_size=24576,
    max_positions=2048,
    positions="rotary",
    rotary_fraction=0.25,
    parallel_residual=True,
    tied_embeddings=False,
)
GIB, COPIED = 2**30, 4


def main() -> None:
    """Write the source, convert it, and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--to", default="hf")
    parser.add_argument("--layers", type=int, default=NEOX_20B.num_layers)
    parser.add_argument("--tp", type=int, default=1)
    parser.add_argument("--pp", type=int, default=1)
    parser.add_argument("--emptied", action="store_true")
    known = parser.parse_args()
    source, output = known.folder / "source", known.folder / "output"
    model = replace(NEOX_20B, num_layers=known.layers)
    if known.to.startswith("megatron"):
        model = replace(model, parallel_residual=False)
    write_source(model, source)
    copied = copy_speed(source, known.folder / "copy")
    if known.emptied:
        empty_each_shard()
    peak = Peak()
    began = time.monotonic()
    convert(
        Request(source, output, known.to, tensor=known.tp, pipeline=known.pp, verified=False, dtype="fp16"),
    )
    took = time.monotonic() - began
    peak.stop()
    size = 2 * sum(torch.Size(one.shape).numel() for one in parameters(model))
    shutil.rmtree(known.folder)
    print(f"{known.layers} layers, {size / 1e9:.1f} GB, to {known.to}, tensor {known.tp}, pipeline {known.pp}", end="")
    print(f"{', emptied' if known.emptied else ''}: {took:.0f} s, {size / 1e6 / took:.0f} MB/s", end="")
    print(f" (plain copy {copied:.0f} MB/s); peak {peak.own / GIB:.2f} GiB private", end="")
    print(f", {peak.resident / GIB:.2f} GiB resident with mapped files")


def write_source(model: Model, folder: Path) -> None:
    """Write two tensor-parallel ranks of one block, and hard-link its files for the other blocks."""
    folder.mkdir(parents=True)
    shapes = {one.name: one.shape for one in parameters(replace(model, num_layers=1))}
    some = torch.randn(1 << 20).half() * 0.02

    def read(name: str) -> torch.Tensor:
        count = torch.Size(shapes[name]).numel()
        return some.repeat(-(-count // some.numel()))[:count].view(shapes[name])

    output = Output(replace(model, num_layers=1), read, lambda amount: None, torch.float16, tensor=2)
    deepspeed_writing.write_neox(output, folder)
    (step,) = folder.glob("global_step*")
    for rank in range(2):
        for number in (5, 4):  # the head and the final norm move after the last block
            moved = number + model.num_layers - 1
            _file(step, number, rank).rename(_file(step, moved, rank))
        for number in range(3, model.num_layers + 2):
            os.link(_file(step, 2, rank), _file(step, number, rank))
    settings = step / "configs" / "model.yml"
    settings.write_text(re.sub(r'"num_layers": 1\b', f'"num_layers": {model.num_layers}', settings.read_text()))
    for path in step.glob("mp_rank_*"):
        state = torch.load(path)
        state["ascend_adapt_model"]["num_layers"] = model.num_layers
        torch.save(state, path)


def _file(step: Path, number: int, rank: int) -> Path:
    return step / f"layer_{number:02d}-model_{rank:02d}-model_states.pt"


def copy_speed(source: Path, target: Path) -> float:
    """Return the speed of copying and syncing a file, in MB/s."""
    (block,) = source.glob("global_step*/layer_02-model_00*")
    began = time.monotonic()
    for _ in range(COPIED):
        shutil.copyfile(block, target)
        with target.open("rb") as stream:
            os.fsync(stream.fileno())
    speed = COPIED * block.stat().st_size / 1e6 / (time.monotonic() - began)
    target.unlink()
    return speed


def empty_each_shard() -> None:
    """Write and sync each safetensors file, then empty it."""
    real = safetensors.torch.save_file

    def save_file(tensors: dict[str, torch.Tensor], path: Path, **more: object) -> None:
        real(tensors, path, **more)  # type: ignore[arg-type]
        with Path(path).open("r+b") as stream:
            os.fsync(stream.fileno())
            stream.truncate(0)

    safetensors.torch.save_file = save_file  # type: ignore[assignment]


class Peak:
    """Peak memory of this process: private, and resident including mapped files."""

    def __init__(self) -> None:
        self.own = self.resident = 0
        self._ends = threading.Event()
        threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self) -> None:
        while not self._ends.wait(0.05):
            lines = (line.split(":") for line in Path("/proc/self/status").read_text().splitlines())
            values = {name: value for name, value in lines if name in ("RssAnon", "VmRSS")}
            self.own = max(self.own, int(values["RssAnon"].split()[0]) * 1024)
            self.resident = max(self.resident, int(values["VmRSS"].split()[0]) * 1024)

    def stop(self) -> None:
        """Stop sampling."""
        self._ends.set()


if __name__ == "__main__":
    main()
