"""Generation on one GPU compared with transformers' static cache: ``python bench/generation_gpu.py [--tiny]``.

Both continue the same random prompts greedily with the same random weights: GPT-2 345M and a Llama of 1.1 billion
parameters in bf16, one and eight prompts of 128 tokens, 256 new tokens. transformers compiles its step, which is its
default with a static cache; ours is ``generate`` as the command calls it. The time is the median of five calls. In
fp32, with two layers of each model and prompts of different lengths, the tokens must be equal. ``--tiny`` runs
everything on the CPU, where transformers does not compile.
"""

from __future__ import annotations

import argparse
import functools
import logging
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
import transformers
from rich.console import Console
from rich.table import Table

from ascend_adapt.evaluation.language_model import LanguageModel
from ascend_adapt.kernels import dispatch
from ascend_adapt.native.generation.generation import Sampling, generate
from ascend_adapt.native.parallel import mesh

PROMPT, NEW, BATCHES, REPEATS, WARM_UP = 128, 256, (1, 8), 5, 2
SECONDS = 130
"""Seconds after which no further comparison starts."""


def config_of(model: str, *, tiny: bool, layers: int | None = None) -> transformers.PretrainedConfig:
    """Return the configuration of a model, with a small width if ``tiny``."""
    if model == "gpt2":
        width, depth, heads = (64, 2, 4) if tiny else (1024, 24, 16)
        return transformers.GPT2Config(n_embd=width, n_layer=layers or depth, n_head=heads, n_positions=1024)
    width, depth, heads = (64, 2, 4) if tiny else (2048, 22, 32)
    return transformers.LlamaConfig(
        hidden_size=width,
        intermediate_size=11 * width // 4,
        num_hidden_layers=layers or depth,
        num_attention_heads=heads,
        num_key_value_heads=heads // 4 if tiny else 4,
        vocab_size=32000,
        max_position_embeddings=2048,
    )


class Sides:
    """Both models, transformers' and ours, with the same weights."""

    def __init__(self, config: transformers.PretrainedConfig, device: torch.device, dtype: torch.dtype) -> None:
        torch.manual_seed(0)
        with device:
            theirs = transformers.AutoModelForCausalLM.from_config(config, dtype=dtype).eval()
        scratch = "/dev/shm" if os.path.isdir("/dev/shm") else None
        with tempfile.TemporaryDirectory(dir=scratch) as folder:
            theirs.save_pretrained(folder)
            self.ours = LanguageModel.load(Path(folder), mesh.single(device))
        self.theirs, self.device = theirs, device

    def generated(self, prompts: list[list[int]], new: int) -> list[list[int]]:
        """Return the tokens that our model generates."""
        return [one.tokens for one in generate(self.ours, prompts, Sampling(max_new_tokens=new))]

    def generated_by_transformers(self, prompts: list[list[int]], new: int, **options: object) -> list[list[int]]:
        """Return the tokens that transformers generates from left-padded prompts."""
        width = max(map(len, prompts))
        tokens = torch.tensor([[0] * (width - len(one)) + one for one in prompts], device=self.device)
        mask = torch.tensor([[0] * (width - len(one)) + [1] * len(one) for one in prompts], device=self.device)
        found = self.theirs.generate(
            tokens,
            attention_mask=mask,
            max_new_tokens=new,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
            cache_implementation="static",
            **options,
        )
        return [row[width:] for row in found.tolist()]


def prompts_of(count: int, ragged: bool = False) -> list[list[int]]:
    """Return random prompts."""
    draws = torch.Generator().manual_seed(1)
    lengths = [PROMPT - 9 * place if ragged else PROMPT for place in range(count)]
    return [torch.randint(1, 30000, (length,), generator=draws).tolist() for length in lengths]


def median(run: Callable[[], object], device: torch.device, repeats: int) -> tuple[float, float]:
    """Return the median seconds of ``repeats`` calls, and the seconds of the warm-up call."""
    seconds = []
    began = time.perf_counter()
    for turn in range(WARM_UP + repeats):
        if turn == WARM_UP:
            warm_up = time.perf_counter() - began
        wait(device)
        start = time.perf_counter()
        run()
        wait(device)
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds[WARM_UP:]), warm_up


def wait(device: torch.device) -> None:
    """Synchronize with the device."""
    if device.type == "cuda":
        torch.cuda.synchronize()


def busy(run: Callable[[], object], tokens: int, console: Console, name: str) -> None:
    """Print the GPU's busy time per token and its longest kernels."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        run()
        torch.cuda.synchronize()
    rows = sorted(profile.key_averages(), key=lambda one: -one.self_device_time_total)
    total, count = sum(one.self_device_time_total for one in rows), sum(one.count for one in rows)
    console.print(f"{name}: the GPU is busy {total / tokens:.0f} us a token, {count / tokens:.0f} kernels")
    for one in rows[:14]:
        console.print(
            f"    {one.self_device_time_total / tokens:7.1f} us {one.count / tokens:6.1f}x {one.key[:100]}",
            markup=False,
        )


def main() -> None:
    """Print the comparisons."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tiny", action="store_true", help="small models on the CPU")
    parser.add_argument("--profile", action="store_true", help="also print the longest kernels")
    known = parser.parse_args()
    began, console = time.monotonic(), Console(width=140, highlight=False)
    device = torch.device("cpu" if known.tiny else "cuda")
    repeats, new = (1, 24) if known.tiny else (REPEATS, NEW)
    transformers.logging.set_verbosity_error()
    logging.getLogger("ascend_adapt").setLevel(logging.WARNING)
    name = "CPU" if known.tiny else torch.cuda.get_device_name()
    console.print(f"{name}, torch {torch.__version__}, transformers {transformers.__version__}")

    for model in ("gpt2", "llama"):
        sides = Sides(config_of(model, tiny=known.tiny, layers=2), device, torch.float32)
        for ragged in (False, True):
            prompts = prompts_of(8, ragged)
            mine = sides.generated(prompts, 64)
            theirs = sides.generated_by_transformers(prompts, 64, disable_compile=True)
            kind = "of different lengths" if ragged else "of equal length"
            console.print(f"{model}, 2 layers, fp32, 8 prompts {kind}, 64 tokens: the same tokens: {mine == theirs}")
            assert mine == theirs, [
                next((place for place, pair in enumerate(zip(*rows, strict=True)) if pair[0] != pair[1]), None)
                for rows in zip(mine, theirs, strict=True)
            ]

    table = Table(
        "model", "prompts", "ours, tokens/s", "transformers", "ratio", "warm-up, ours", "theirs", "same tokens"
    )
    for model in ("gpt2", "llama"):
        sides = Sides(config_of(model, tiny=known.tiny), device, torch.bfloat16)
        for batch in BATCHES:
            if time.monotonic() - began > SECONDS:
                console.print(f"{model}, {batch} prompts: not run, because {SECONDS} s have passed")
                continue
            prompts = prompts_of(batch)
            ours = functools.partial(sides.generated, prompts, new)
            theirs = functools.partial(sides.generated_by_transformers, prompts, new)
            our_seconds, our_warm_up = median(ours, device, repeats)
            their_seconds, their_warm_up = median(theirs, device, repeats)
            console.print(f"{model}, {batch}: {our_seconds:.3f} s, transformers {their_seconds:.3f} s")
            pairs = zip(ours(), theirs(), strict=True)
            same = sum(a == b for mine, other in pairs for a, b in zip(mine, other, strict=True)) / (batch * new)
            row = [model, str(batch), *(f"{batch * new / seconds:.0f}" for seconds in (our_seconds, their_seconds))]
            row += [f"{their_seconds / our_seconds:.2f}", f"{our_warm_up:.1f} s", f"{their_warm_up:.1f} s"]
            row.append(f"{same:.0%}")
            console.print(" | ".join(row))
            table.add_row(*row)
            if known.profile and device.type == "cuda":
                busy(ours, new, console, f"{model}, {batch}, ours")
                if batch == 1:
                    busy(theirs, new, console, f"{model}, {batch}, transformers")
        torch.compiler.reset()
    console.print(table)
    chosen = {(one.kernel, one.backend, one.reason) for one in dispatch.choices() if one.kernel == "attention"}
    for one in sorted(chosen):
        console.print(*one, markup=False)


if __name__ == "__main__":
    main()
