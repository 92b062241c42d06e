"""Train a character-level GPT on one NVIDIA GPU, or with torchrun on several. Nothing is specific to Ascend NPUs."""

import argparse
import os
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

LICENSE = Path(__file__).resolve().parents[2] / "LICENSE"
parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--text", type=Path, default=LICENSE, help="text to train on (default: this repository's LICENSE)")
parser.add_argument("--steps", type=int, default=200)
parser.add_argument("--tiny", action="store_true", help="five steps of a model of 7,000 parameters")
args = parser.parse_args()
layers, width, heads, length, batch = (1, 16, 2, 32, 4) if args.tiny else (4, 256, 4, 256, 16)
steps = 5 if args.tiny else args.steps

rank, local_rank = int(os.environ.get("RANK", 0)), int(os.environ.get("LOCAL_RANK", 0))
if "RANK" in os.environ:
    dist.init_process_group("nccl")
torch.cuda.set_device(local_rank)
torch.manual_seed(1234)

text = args.text.read_text(encoding="utf-8")
characters = {character: number for number, character in enumerate(sorted(set(text)))}
tokens = torch.tensor([characters[character] for character in text])


class GPT(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(len(characters), width)
        self.position = nn.Embedding(length, width)
        layer = nn.TransformerEncoderLayer(width, heads, 4 * width, dropout=0.0, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, len(characters))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(inputs.shape[1], device=inputs.device)
        hidden = self.embedding(inputs) + self.position.weight
        return self.head(self.layers(hidden, mask=mask, is_causal=True))


model = GPT().cuda()
if dist.is_initialized():
    model = DistributedDataParallel(model, device_ids=[local_rank])
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, fused=True)
samples = torch.Generator().manual_seed(rank)

for step in range(steps):
    starts = torch.randint(len(tokens) - length, (batch,), generator=samples)
    windows = torch.stack([tokens[start : start + length + 1] for start in starts]).cuda(non_blocking=True)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        logits = model(windows[:, :-1])
    loss = F.cross_entropy(logits.float().flatten(0, 1), windows[:, 1:].flatten())
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    if rank == 0 and (step % 10 == 0 or args.tiny):
        print(f"step {step}: loss {loss.item():.4f}", flush=True)
if dist.is_initialized():
    dist.destroy_process_group()
