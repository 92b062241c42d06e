"""A script for a GPU that enables this package and torch_npu's transfer_to_npu, in the order of its arguments."""

import sys

import torch
from record import record
from transformers import GPT2Config, GPT2LMHeadModel

import ascend_adapt

for who in sys.argv[1:]:
    if who == "ours":
        ascend_adapt.enable()
    else:
        from torch_npu.contrib import transfer_to_npu  # noqa: F401

torch.manual_seed(0)
ids = {"bos_token_id": 0, "eos_token_id": 0}
model = GPT2LMHeadModel(GPT2Config(n_layer=1, n_embd=32, n_head=2, vocab_size=64, n_positions=16, **ids)).eval().cuda()
tokens = torch.arange(16).repeat(2, 1).cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
losses = []
for _ in range(3):
    loss = model(input_ids=tokens, labels=tokens).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    losses.append(loss.item())
record(losses)
record({f"{one.plugin}.{one.patch}": one.state for one in ascend_adapt.status()})
record(list(ascend_adapt.status().beside))
