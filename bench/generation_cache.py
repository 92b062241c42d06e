"""Generation time with the key/value cache, without it, and with transformers, as ratios.

Usage: generation_cache.py [--device cpu|cuda] [--new-tokens 256] [--layers 6] [--hidden 256] [--dtype fp32]
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import torch
import transformers

from ascend_adapt.evaluation.language_model import DTYPES, LanguageModel
from ascend_adapt.native.generation.generation import Sampling, generate
from ascend_adapt.native.parallel import mesh


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--new-tokens", type=int, default=256)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--dtype", choices=DTYPES, default="fp32")
    known = parser.parse_args()
    device, prompt = torch.device(known.device), [list(range(1, 17))]
    torch.manual_seed(0)
    theirs = transformers.GPT2LMHeadModel(
        transformers.GPT2Config(
            vocab_size=8192, n_positions=1024, n_embd=known.hidden, n_layer=known.layers, n_head=known.hidden // 64
        )
    )
    with tempfile.TemporaryDirectory() as folder:
        theirs.save_pretrained(folder)
        ours = LanguageModel.load(Path(folder), mesh.single(device), known.dtype)
    theirs = theirs.to(device, DTYPES[known.dtype]).eval()
    sampling = Sampling(max_new_tokens=known.new_tokens)

    def of_transformers(**options: object) -> list[int]:
        tokens = torch.tensor(prompt, device=device)
        found = theirs.generate(
            tokens,
            attention_mask=torch.ones_like(tokens),
            max_new_tokens=known.new_tokens,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
            **options,
        )
        return found[0, len(prompt[0]) :].tolist()

    ways = {
        "cache": lambda: generate(ours, prompt, sampling)[0].tokens,
        "no cache": lambda: generate(ours, prompt, sampling, use_cache=False)[0].tokens,
        "transformers": of_transformers,
        "transformers, static cache": lambda: of_transformers(cache_implementation="static"),
    }
    seconds, tokens = {}, {}
    for name, way in ways.items():
        way()
        _wait(device)
        began = time.perf_counter()
        tokens[name] = way()
        _wait(device)
        seconds[name] = time.perf_counter() - began
    for name in ways:
        ratio, same = seconds[name] / seconds["cache"], tokens[name] == tokens["cache"]
        print(f"{name}: {seconds[name]:.2f} s, {ratio:.2f}x the time with the cache, same tokens: {same}")


def _wait(device: torch.device) -> None:
    if device.type != "cpu":
        getattr(torch, device.type).synchronize()


if __name__ == "__main__":
    main()
