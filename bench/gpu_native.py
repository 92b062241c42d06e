"""GPT-2 345M in bf16 on one GPU: the native trainer compared with Hugging Face's model under torch.compile.

``python bench/gpu_native.py`` trains both on the same text, one after the other, each in its own process, and prints a
table: the GPU, median step times, model TFLOP/s by one formula, memory. The native side is the loop of ``ascend-run
--native megatron``, including data and log. Hugging Face's is transformers' GPT-2 with SDPA, fully compiled under
autocast, with torch's fused AdamW, and the embedding padded as in Megatron. ``--compile`` also trains the native model
with compiled blocks, ``--tiny`` tries everything on the CPU. Needs transformers.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import re
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

VOCABULARY = 50257
WARM_UP, PROFILED = 5, 2
LR, WEIGHT_DECAY = 1.5e-4, 0.01


def write_words(prefix: Path, wanted: int) -> None:
    """Write token files from the words of the standard library; ids are by frequency, and each file ends with one."""
    from ascend_adapt.data.token_index import write_index

    texts: list[list[str]] = []
    for path in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")):
        texts.append(re.findall(r"\w+|[^\w\s]|\s+", path.read_text(encoding="utf-8", errors="replace")))
        wanted -= len(texts[-1])
        if wanted < 0:
            break
    ranked = Counter(word for text in texts for word in text).most_common(VOCABULARY - 1)
    number = {word: place for place, (word, _) in enumerate(ranked)}
    end = VOCABULARY - 1
    ids = [np.array([*(number.get(word, end) for word in text), end], np.uint16) for text in texts]
    np.concatenate(ids).tofile(prefix.with_suffix(".bin"))
    with prefix.with_suffix(".idx").open("wb") as stream:
        write_index(stream, np.dtype(np.uint16), np.array([len(each) for each in ids], np.int32))


def configuration(options: argparse.Namespace, prefix: Path) -> Any:
    """Return the configuration that both sides train, from Megatron's own arguments."""
    from ascend_adapt.recipes import dialects

    layers, hidden, heads, length = (2, 32, 4, 64) if options.tiny else (24, 1024, 16, 1024)
    given = {
        "num-layers": layers,
        "hidden-size": hidden,
        "num-attention-heads": heads,
        "seq-length": length,
        "max-position-embeddings": length,
        "micro-batch-size": options.micro_batch,
        "global-batch-size": options.micro_batch,
        "train-iters": steps_of(options),
        "lr": LR,
        "lr-decay-style": "constant",
        "weight-decay": WEIGHT_DECAY,
        "clip-grad": 1.0,
        "hidden-dropout": options.dropout,
        "attention-dropout": options.dropout,
        "vocab-size": VOCABULARY,
        "data-path": prefix,
        "split": "1,0,0",
        "eval-iters": 0,
    }
    words = [word for name, value in given.items() for word in (f"--{name}", str(value))]
    config, _ = dialects.read("megatron", [*words, "--bf16"]).build(1)
    return config


def steps_of(options: argparse.Namespace) -> int:
    """Return the number of steps of a side: warm-up, timed and profiled."""
    return WARM_UP + int(options.steps) + PROFILED


class Clock:
    """Times the steps of a side, each of which ends with ``tick``, and profiles the GPU's kernels in the last ones.

    It also replaces the log of a native run.
    """

    def __init__(self, steps: int) -> None:
        self.steps, self.on_gpu = steps, False
        self.losses: list[float] = []
        self.seconds: list[float] = []
        self.facts: dict[str, Any] = {}
        self.profile: Any = None
        self.before = self.began = time.perf_counter()

    def tick(self, loss: float) -> None:
        """End a step; synchronises with the device."""
        import torch

        if self.on_gpu:
            torch.cuda.synchronize()
        now, done = time.perf_counter(), len(self.losses)
        self.losses.append(loss)
        if WARM_UP <= done < WARM_UP + self.steps:
            self.seconds.append(now - self.before)
        if self.on_gpu:
            self._look(torch, done + 1)
        if done + 1 == WARM_UP:
            self.facts["warm_up_s"] = now - self.began
        self.before = time.perf_counter()

    def _look(self, torch: Any, done: int) -> None:
        if done == WARM_UP:
            torch.cuda.reset_peak_memory_stats()
        elif done == WARM_UP + self.steps:
            self.facts["peak_gib"] = torch.cuda.max_memory_allocated() / 2**30
            self.profile = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA])
            self.profile.start()
        elif done == WARM_UP + self.steps + PROFILED:
            self.profile.stop()
            self.facts |= kernels_of(self.profile)

    def say(self, text: str) -> None:
        """Print nothing: the table has it all."""

    def step(self, metrics: Any) -> None:
        """A native step has ended."""
        self.tick(metrics.lm_loss)

    def evaluation(self, iteration: int, part: str, loss: float) -> None:
        """Nothing is evaluated."""


def kernels_of(profile: Any, kept: int = 25) -> dict[str, Any]:
    """Return the GPU busy time of a step, and of the slowest kernels, in milliseconds per step."""
    import torch

    took: Counter[str] = Counter()
    for event in profile.events():
        if event.device_type == torch.autograd.DeviceType.CUDA:
            took[event.name[:120]] += event.time_range.end - event.time_range.start
    each = {name: round(spent / PROFILED / 1e3, 3) for name, spent in took.most_common(kept)}
    return {"busy_ms": sum(took.values()) / PROFILED / 1e3, "longest_kernels_ms": each}


def native(config: Any, clock: Clock) -> None:
    """The native trainer's own loop."""
    from ascend_adapt.native import loop

    with tempfile.TemporaryDirectory() as folder:
        loop.train(config, folder, clock)


def native_compiled(config: Any, clock: Clock) -> None:
    """The native trainer with ``ascend-run --compile``."""
    native(dataclasses.replace(config, compile=True), clock)


def hugging_face(config: Any, clock: Clock) -> None:
    """transformers' GPT-2 in its fastest usual configuration: SDPA, autocast, torch.compile, fused AdamW."""
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    from ascend_adapt.native import device as devices
    from ascend_adapt.native.parallel import mesh as meshes
    from ascend_adapt.native.samples.loader import Samples

    shape, device = config.model, devices.of_this_rank()
    settings = GPT2Config(
        vocab_size=shape.padded_vocab_size,
        n_positions=config.data.seq_length,
        n_embd=shape.hidden_size,
        n_layer=shape.num_layers,
        n_head=shape.num_heads,
        resid_pdrop=shape.hidden_dropout,
        embd_pdrop=shape.hidden_dropout,
        attn_pdrop=shape.attention_dropout,
        use_cache=False,
        attn_implementation="sdpa",
    )
    torch.manual_seed(0)
    model: Any = GPT2LMHeadModel(settings).to(device).train()
    compiled = torch.compile(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LR, weight_decay=WEIGHT_DECAY, fused=True)
    samples = Samples(config, meshes.single(device), "train")
    for _ in range(config.iterations):
        tokens = samples.next(1)["tokens"]
        with torch.autocast(device.type, torch.bfloat16):
            loss = compiled(input_ids=tokens, labels=tokens).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        clock.tick(loss.item())


SIDES = {"native": native, "native, compiled": native_compiled, "Hugging Face, compiled": hugging_face}


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Train one side in this process; return medians and peak memory."""
    from ascend_adapt.native import device as devices
    from ascend_adapt.native.config.flops import model_flops

    config, clock = configuration(options, options.words), Clock(options.steps)
    clock.on_gpu = devices.of_this_rank().type == "cuda"
    SIDES[options.side](config, clock)
    middle = statistics.median(clock.seconds)
    work = model_flops(config, options.micro_batch)
    clock.facts |= graphs()
    return {"step_ms": middle * 1e3, "tflops": work / middle / 1e12, "losses": clock.losses, **clock.facts}


def graphs() -> dict[str, Any]:
    """Return the number of graphs of torch.compile, and the reasons of graph breaks; nothing if uncompiled."""
    import torch

    seen = torch._dynamo.utils.counters
    return {"graphs": seen["stats"]["unique_graphs"], "graph_breaks": dict(seen["graph_break"])}


def child(options: argparse.Namespace, side: str, prefix: Path) -> dict[str, Any]:
    """Measure a side in its own process; its profile, and the output of TORCH_LOGS, go to standard error."""
    words = [sys.executable, __file__, "--side", side, "--words", str(prefix)]
    words += ["--micro-batch", str(options.micro_batch), "--steps", str(options.steps)]
    words += ["--dropout", str(options.dropout), *(["--tiny"] if options.tiny else [])]
    kind = {"ASCEND_ADAPT_DEVICE": "cpu"} if options.tiny else {}
    ended = subprocess.run(words, capture_output=True, text=True, env={**os.environ, **kind})
    lines = [line for line in ended.stdout.splitlines() if line.startswith("{")]
    if ended.returncode or not lines:
        sys.exit(f"{ended.stderr[-6000:]}\nbench/gpu_native.py: {side} ended with {ended.returncode}")
    if os.environ.get("TORCH_LOGS"):
        print(ended.stderr, file=sys.stderr)
    result: dict[str, Any] = json.loads(lines[-1])
    print(json.dumps({"side": side, **result}), file=sys.stderr)
    return result


def rows(result: dict[str, dict[str, Any]]) -> list[list[str]]:
    """Return the rows of the table: a name, and for each side its value with the ratio to the last side's."""
    wanted = {"tflops": "model TFLOP/s", "step_ms": "a step, ms", "busy_ms": "GPU busy, ms per step"}
    wanted |= {"peak_gib": "peak memory, GiB", "warm_up_s": f"the first {WARM_UP} steps, s"}
    *_, yardstick = result.values()
    made = [
        [what, *(f"{one[name]:.1f} ({one[name] / yardstick[name]:.2f}x)" for one in result.values())]
        for name, what in wanted.items()
        if name in yardstick
    ]
    for step in (0, len(yardstick["losses"]) - 1):
        made.append([f"loss of step {step + 1}", *(f"{one['losses'][step]:.3f}" for one in result.values())])
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--micro-batch", type=int, default=16)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--dropout", type=float, default=0.0)
    parser.add_argument("--compile", action="store_true", help="the native trainer with compiled blocks too")
    parser.add_argument("--tiny", action="store_true", help="a model of two small layers on the CPU")
    parser.add_argument("--side", choices=SIDES, help=argparse.SUPPRESS)
    parser.add_argument("--words", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.side:
        print(json.dumps(measure(options)))
        return
    import torch

    if not torch.cuda.is_available() and not options.tiny:
        sys.exit("bench/gpu_native.py: torch finds no GPU — run it on a machine with one, or with --tiny here")
    card = "CPU" if options.tiny else torch.cuda.get_device_name()
    with tempfile.TemporaryDirectory() as folder:
        prefix = Path(folder) / "words"
        write_words(prefix, (steps_of(options) + 1) * options.micro_batch * (64 if options.tiny else 1024))
        sides = [side for side in SIDES if options.compile or side != "native, compiled"]
        result = {side: child(options, side, prefix) for side in sides}
    title = f"GPT-2 {'tiny' if options.tiny else '345M'}, bf16, micro batch {options.micro_batch}, "
    table = Table(title=f"{title}dropout {options.dropout}: {card}, torch {torch.__version__}")
    for column in ("", *result):
        table.add_column(column)
    for row in rows(result):
        table.add_row(*row)
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
