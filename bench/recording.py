"""Overhead of --record: time of a recorded step relative to a plain one, for GPT-2 on the CPU (medians).

Usage: python bench/recording.py [HIDDEN [LAYERS [LENGTH]]]
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from pathlib import Path

import torch
from transformers import GPT2Config, GPT2LMHeadModel

from ascend_adapt.alignment.recorder import Recorder
from ascend_adapt.alignment.selection import Selection

ROUNDS, BATCH, VOCABULARY = 5, 4, 8192


def main() -> None:
    """Print the time ratio, and the size of a recorded step on disk."""
    hidden, layers, length = map(int, sys.argv[1:]) if len(sys.argv) > 3 else (512, 6, 256)
    torch.manual_seed(0)
    config = GPT2Config(vocab_size=VOCABULARY, n_embd=hidden, n_layer=layers, n_head=8, n_positions=length)
    model = GPT2LMHeadModel(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    ids = torch.randint(VOCABULARY, (BATCH, length))

    def step() -> float:
        began = time.process_time()
        model(input_ids=ids, labels=ids).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return time.process_time() - began

    step()
    plain, recorded = [], []
    with tempfile.TemporaryDirectory() as folder:
        for number in range(ROUNDS):
            plain.append(step())
            began = time.process_time()
            with Recorder(Path(folder) / str(number), Selection()):
                step()
            recorded.append(time.process_time() - began)
        size = sum(path.stat().st_size for path in (Path(folder) / "0").rglob("*") if path.is_file())
    ratio = statistics.median(recorded) / statistics.median(plain)
    million = sum(one.numel() for one in model.parameters()) / 1e6
    print(
        f"{million:.0f}M parameters, {BATCH * length} tokens: plain {statistics.median(plain):.2f} s, recorded "
        f"{statistics.median(recorded):.2f} s of CPU time, {ratio:.2f}x; {size / 1e6:.1f} MB a step"
    )


if __name__ == "__main__":
    main()
