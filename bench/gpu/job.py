"""One side of a comparison, in its own process: ``python -m bench.gpu.job SIDE ...`` prints one JSON line."""

from __future__ import annotations

import argparse
import dataclasses
import json
import statistics
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from bench.gpu.clock import Clock
from bench.gpu.peers import deepspeed_zero1, hugging_face, megatron_core, minimal_gpt
from bench.gpu.shapes import SHAPES, write_words


def native(config: Any, clock: Clock) -> None:
    """The native trainer's own loop, with data, clipping, optimizer and log."""
    from ascend_adapt.native import loop

    with tempfile.TemporaryDirectory() as folder:
        loop.train(config, folder, clock)


def native_compiled(config: Any, clock: Clock) -> None:
    """The native trainer with ``ascend-run --compile``."""
    native(dataclasses.replace(config, compile=True), clock)


def enabled(train: Callable[[Any, Clock], None]) -> Callable[[Any, Clock], None]:
    """Return a function that runs a peer's unmodified script after ``ascend_adapt.enable()``."""

    def run(config: Any, clock: Clock) -> None:
        import ascend_adapt

        ascend_adapt.enable()
        train(config, clock)
        outcomes = ascend_adapt.status().outcomes
        clock.facts["patches"] = {one.patch: one.state for one in outcomes if one.state != "skipped"}

    return run


DEEPSPEED_COMPILED = partial(deepspeed_zero1.plain, compiled=True)
SIDES: dict[str, Callable[[Any, Clock], None]] = {
    "native": native,
    "native-compile": native_compiled,
    "minimal-gpt-compiled": minimal_gpt.train,
    "hugging-face-compiled": hugging_face.compiled,
    "hugging-face-bf16": hugging_face.pure_bf16,
    "hugging-face-bf16-enabled": enabled(hugging_face.pure_bf16),
    "hugging-face-bf16-compiled": hugging_face.pure_bf16_compiled,
    "megatron-core": megatron_core.plain,
    "megatron-core-enabled": enabled(megatron_core.plain),
    "deepspeed-zero1": deepspeed_zero1.plain,
    "deepspeed-zero1-enabled": enabled(deepspeed_zero1.plain),
    "deepspeed-zero1-compiled": DEEPSPEED_COMPILED,
    "deepspeed-zero1-compiled-enabled": enabled(DEEPSPEED_COMPILED),
}


def parser() -> argparse.ArgumentParser:
    """Return the options of a job."""
    made = argparse.ArgumentParser(description=__doc__)
    made.add_argument("side", choices=SIDES)
    made.add_argument("--shape", choices=SHAPES, default="345M")
    made.add_argument("--micro-batch", type=int, default=16)
    made.add_argument("--accumulation", type=int, default=1)
    made.add_argument("--zero", type=int, default=0, help="ZeRO stage of the native trainer")
    made.add_argument("--steps", type=int, default=20)
    made.add_argument("--warm-up", type=int, default=8, help="number of steps before the timed steps")
    made.add_argument(
        "--further", type=int, default=0, help="steps after the timed ones; the last are timed separately"
    )
    made.add_argument("--dropout", type=float, default=0.0)
    made.add_argument("--arguments", default="", help="additional arguments of the native trainer")
    made.add_argument("--tiny", action="store_true", help="three steps of the smallest shape of this kind on the CPU")
    return made


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Train one side in this process; return median times and peak memory."""
    import torch

    from ascend_adapt.config.flops import model_flops
    from ascend_adapt.native import device as devices

    if options.tiny:
        options.shape = "tiny-neox" if SHAPES[options.shape].neox else "tiny"
        options.micro_batch, options.steps, options.further = 2, 3, min(options.further, 1)
    shape = SHAPES[options.shape]
    clock = Clock(options.steps, options.warm_up, devices.of_this_rank().type, options.further)
    samples = options.micro_batch * options.accumulation
    with tempfile.TemporaryDirectory() as folder:
        prefix = Path(folder) / "words"
        write_words(prefix, (clock.total_steps + 1) * samples * shape.length + 1, shape.vocabulary)
        config = shape.config(
            options.micro_batch, options.accumulation, clock.total_steps, options.dropout, prefix, options.arguments
        )
        config = dataclasses.replace(config, parallel=dataclasses.replace(config.parallel, zero_stage=options.zero))
        clock.start()
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
        **sustained(clock, model_flops(config, samples)),
        **clock.facts,
        "graphs": seen["stats"]["unique_graphs"],
        "graph_breaks": dict(seen["graph_break"]),
        "losses": [round(loss, 4) for loss in clock.losses],
    }


def sustained(clock: Clock, flops: float) -> dict[str, float]:
    """Return the median step time in ms and the TFLOP/s of the last further steps; empty if there are none."""
    if not clock.sustained:
        return {}
    middle = statistics.median(clock.sustained)
    return {"sustained_ms": middle * 1e3, "sustained_tflops": flops / middle / 1e12}


if __name__ == "__main__":
    print(json.dumps(measure(parser().parse_args())))
