"""One side of a comparison, in its own process: ``python -m bench.gpu.job SIDE ...`` prints one JSON line."""

from __future__ import annotations

import argparse
import dataclasses
import json
import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.gpu.clock import Clock
from bench.gpu.peers import hugging_face, minimal_gpt
from bench.gpu.shapes import SHAPES, write_words


def native(config: Any, clock: Clock) -> None:
    """The native trainer's own loop, with data, clipping, optimizer and log."""
    from ascend_adapt.native import loop

    with tempfile.TemporaryDirectory() as folder:
        loop.train(config, folder, clock)


def native_compiled(config: Any, clock: Clock) -> None:
    """The native trainer with ``ascend-run --compile``."""
    native(dataclasses.replace(config, compile=True), clock)


SIDES: dict[str, Callable[[Any, Clock], None]] = {
    "native": native,
    "native-compile": native_compiled,
    "minimal-gpt-compiled": minimal_gpt.train,
    "hugging-face-compiled": hugging_face.compiled,
    "hugging-face-bf16": hugging_face.pure_bf16,
    "hugging-face-bf16-compiled": hugging_face.pure_bf16_compiled,
}


def parser() -> argparse.ArgumentParser:
    """Return the options of a job."""
    made = argparse.ArgumentParser(description=__doc__)
    made.add_argument("side", choices=SIDES)
    made.add_argument("--shape", choices=SHAPES, default="345M")
    made.add_argument("--micro-batch", type=int, default=16)
    made.add_argument("--accumulation", type=int, default=1)
    made.add_argument("--steps", type=int, default=20)
    made.add_argument("--dropout", type=float, default=0.0)
    made.add_argument("--arguments", default="", help="more arguments of the native trainer")
    return made


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Train one side in this process; return medians and peak memory."""
    import torch

    from ascend_adapt.native import device as devices
    from ascend_adapt.native.config.flops import model_flops

    shape = SHAPES[options.shape]
    clock = Clock(options.steps, on_gpu=devices.of_this_rank().type == "cuda")
    samples = options.micro_batch * options.accumulation
    with tempfile.TemporaryDirectory() as folder:
        prefix = Path(folder) / "words"
        write_words(prefix, (clock.total_steps + 1) * samples * shape.length + 1, shape.vocabulary)
        config = shape.config(
            options.micro_batch, options.accumulation, clock.total_steps, options.dropout, prefix, options.arguments
        )
        SIDES[options.side](config, clock)
    middle = statistics.median(clock.seconds)
    quarter = sorted(clock.seconds)[len(clock.seconds) // 4], sorted(clock.seconds)[3 * len(clock.seconds) // 4]
    seen = torch._dynamo.utils.counters
    return {
        **vars(options),
        "card": torch.cuda.get_device_name() if clock.on_gpu else "CPU",
        "torch": torch.__version__,
        "step_ms": middle * 1e3,
        "quartiles_ms": [round(each * 1e3, 2) for each in quarter],
        "tflops": model_flops(config, samples) / middle / 1e12,
        **clock.facts,
        "graphs": seen["stats"]["unique_graphs"],
        "graph_breaks": dict(seen["graph_break"]),
        "losses": [round(loss, 4) for loss in clock.losses],
    }


if __name__ == "__main__":
    print(json.dumps(measure(parser().parse_args())))
