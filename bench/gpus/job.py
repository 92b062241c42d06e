"""One side of a comparison on the ranks of a host: ``python -m bench.gpus.job SIDE --ranks 2 ...`` prints a JSON line.

It writes the text, starts a process for each rank, and merges their results.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from bench.gpu import repeats
from bench.gpu.clock import PROFILED, Clock
from bench.gpu.peers import deepspeed_zero1, megatron_core, minimal_gpt
from bench.gpu.shapes import SHAPES, write_words
from bench.gpus import trace
from bench.gpus.peers import data_parallel


def native(config: Any, clock: Clock) -> None:
    """The native trainer's own loop, with data, clipping, optimizer and log."""
    from ascend_adapt.native import loop

    class Run(loop.TrainingRun):
        def to_the_end(self) -> None:
            clock.begin()
            super().to_the_end()

    with tempfile.TemporaryDirectory() as folder:
        loop.train(config, folder, clock, Run)


def native_repeats(config: Any, clock: Clock) -> None:
    """The native trainer under --deterministic, three times: ``bench.gpu.repeats``."""
    os.environ["ASCEND_ADAPT_DETERMINISTIC"] = "1"
    import torch.distributed as dist

    from ascend_adapt.native import device as devices

    clock.begin()
    # Otherwise each run would end the process group, and the next one would wait for its port.
    dist.init_process_group(devices.backend(devices.of_this_rank()))
    compared = repeats.three_runs(config, Path(config.data.train[0]).parent, clock)
    clock.facts["repeats"] = [asdict(one) for one in compared]
    dist.destroy_process_group()


SIDES: dict[str, Callable[[Any, Clock], None]] = {
    "native": native,
    "native-repeats": native_repeats,
    "minimal-gpt-compiled": minimal_gpt.train,
    "ddp-compiled": data_parallel.ddp,
    "fsdp2": data_parallel.fsdp2,
    "deepspeed-zero1": deepspeed_zero1.plain,
    "megatron-core": megatron_core.plain,
}


class TracedClock(Clock):
    """A clock that waits for its GPU before the first step, and analyses its profile for communication."""

    gate: Any = None

    def begin(self) -> None:
        """Wait until the previous row has released this GPU, while processes start and build their models."""
        if not (folder := os.environ.get("BENCH_GATES")):
            return
        card = os.environ["BENCH_CARDS"].split(",")[int(os.environ["RANK"])]
        self.gate = (Path(folder) / f"card-{card}").open("w")  # open, and locked, until the process ends
        fcntl.flock(self.gate, fcntl.LOCK_EX)
        (Path(folder) / os.environ["BENCH_ROW"]).touch()
        self.start()
        self.start()

    def _look(self, torch: Any, done: int) -> None:
        super()._look(torch, done)
        if done == self.total_steps:
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder) / "trace.json"
                self.profile.export_chrome_trace(str(path))
                self.facts["trace"] = trace.summary(json.loads(path.read_text())["traceEvents"], PROFILED)
                if kept := os.environ.get("BENCH_TRACES"):
                    name = f"{os.environ.get('BENCH_ROW', 'trace')}-{os.environ.get('RANK', '0')}.json"
                    shutil.copy(path, Path(kept) / name)


def parser() -> argparse.ArgumentParser:
    """Return the options of a job."""
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("side", choices=SIDES)
    made.add_argument("--ranks", type=int, default=1)
    made.add_argument("--shape", choices=SHAPES, default="1.3B")
    made.add_argument("--tensor", type=int, default=1, help="tensor-parallel ranks, with sequence parallelism")
    made.add_argument("--pipeline", type=int, default=1)
    made.add_argument("--zero", type=int, default=0)
    made.add_argument("--micro-batch", type=int, default=4)
    made.add_argument("--accumulation", type=int, default=1, help="micro batches per step on each data-parallel rank")
    made.add_argument("--steps", type=int, default=10)
    made.add_argument("--warm-up", type=int, default=6, help="number of steps before the timed steps")
    made.add_argument("--arguments", default="", help="additional arguments of the native trainer")
    made.add_argument("--tiny", action="store_true", help="three steps of the smallest shape on the CPU")
    made.add_argument("--words", type=Path, help=argparse.SUPPRESS)
    return made


def config_of(options: argparse.Namespace) -> Any:
    """Return the native trainer's configuration of a job."""
    words = ["--tensor-model-parallel-size", options.tensor, "--pipeline-model-parallel-size", options.pipeline]
    words += ["--sequence-parallel"] * (options.tensor > 1)
    # Without learning rate warm-up, losses jump and do not allow a comparison of layouts.
    words += ["--lr-warmup-iters", options.warm_up + options.steps]
    extra = f"{' '.join(map(str, words))} {options.arguments}"
    data = options.ranks // (options.tensor * options.pipeline)
    steps = options.warm_up + options.steps + PROFILED
    config = SHAPES[options.shape].config(
        options.micro_batch, options.accumulation, steps, 0.0, options.words, extra, ranks=options.ranks, data=data
    )
    return replace(config, parallel=replace(config.parallel, zero_stage=options.zero))


def measure_rank(options: argparse.Namespace) -> dict[str, Any]:
    """Train on this rank; return its step times and memory."""
    import torch

    from ascend_adapt.config.flops import model_flops
    from ascend_adapt.native import device as devices

    clock = TracedClock(options.steps, options.warm_up, devices.of_this_rank().type)
    config = config_of(options)
    SIDES[options.side](config, clock)
    middle = statistics.median(clock.seconds)
    return {
        "card": torch.cuda.get_device_name() if clock.on_gpu else "CPU",
        "torch": torch.__version__,
        "step_ms": middle * 1e3,
        "fastest_ms": min(clock.seconds) * 1e3,
        "tflops": model_flops(config, config.batch.total) / options.ranks / middle / 1e12,
        **clock.facts,
        "losses": [round(loss, 4) for loss in clock.losses],
    }


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Run the ranks; return the result of the slowest rank, with every rank's memory and trace.

    Raises:
        SystemExit: a rank failed.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        options.words = folder / "words"
        shape, config = SHAPES[options.shape], config_of(options)
        wanted = (config.iterations + 1) * config.batch.total * shape.length + 1
        write_words(options.words, wanted, shape.vocabulary)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        words = [sys.executable, "-m", "bench.gpus.job", *sys.argv[1:], "--words", str(options.words)]
        ranks = []
        for rank in range(options.ranks):
            place = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(options.ranks)}
            place |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "LOCAL_WORLD_SIZE": str(options.ranks)}
            place["ASCEND_ADAPT_RUN_DIR"] = name  # as under ascend-run, where ranks share the choice of kernels
            with (folder / f"errors-{rank}").open("w") as errors, (folder / f"printed-{rank}").open("w") as printed:
                ranks.append(subprocess.Popen(words, stdout=printed, stderr=errors, env={**os.environ, **place}))
        try:
            while any(rank.poll() is None for rank in ranks) and not any(rank.poll() for rank in ranks):
                time.sleep(0.1)
            failed = [number for number, rank in enumerate(ranks) if rank.poll()]
        finally:
            for rank in ranks:
                rank.kill()  # ranks that wait for a failed rank
                rank.wait()
        if failed:
            sys.exit((folder / f"errors-{failed[0]}").read_text(errors="replace")[-1500:])
        printed_lines = [(folder / f"printed-{number}").read_text().splitlines() for number in range(options.ranks)]
    results = [json.loads(next(line for line in reversed(lines) if line.startswith("{"))) for lines in printed_lines]
    slowest = max(results, key=lambda one: one["step_ms"])
    return {
        **{name: value for name, value in vars(options).items() if name != "words"},
        **slowest,
        "losses": max((one["losses"] for one in results), key=sum),  # the first pipeline stage of a peer has no loss
        "peak_gib": [round(one["peak_gib"], 2) for one in results if "peak_gib" in one],
        "traces": [one["trace"] for one in results if "trace" in one],
    }


if __name__ == "__main__":
    asked = parser().parse_args()
    if asked.tiny:
        asked.shape, asked.steps, asked.warm_up, asked.micro_batch = "tiny", 2, 1, 2
        asked.arguments = ""  # written for the layers of another shape
    print(json.dumps(measure(asked) if asked.words is None else measure_rank(asked)))
