"""A script for a GPU whose arguments are its steps: "ours" enables this package, "theirs" transfer_to_npu, "train"."""

import sys

import torch
from record import record
from transformers import GPT2Config, GPT2LMHeadModel

import ascend_adapt


def train():
    torch.manual_seed(0)
    ids = {"bos_token_id": 0, "eos_token_id": 0}
    sizes = {"n_layer": 1, "n_embd": 32, "n_head": 2, "vocab_size": 64, "n_positions": 16}
    model = GPT2LMHeadModel(GPT2Config(**sizes, **ids)).eval().cuda()
    tokens = torch.arange(16).repeat(2, 1).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for _ in range(3):
        loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        yield loss.item()


for word in sys.argv[1:]:
    if word == "ours":
        ascend_adapt.enable()
    elif word == "theirs":
        from torch_npu.contrib import transfer_to_npu  # noqa: F401
    else:
        record(list(train()))
record({f"{one.plugin}.{one.patch}": one.state for one in ascend_adapt.status()})
record(list(ascend_adapt.status().beside))
