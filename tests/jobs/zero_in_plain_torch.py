"""What tests/jobs/zero.py must compute, in plain torch: two ranks' gradients averaged, one AdamW.

Usage: zero_in_plain_torch.py plain|one_step_ahead. Older DeepSpeed makes its optimizer with one step on gradients of
zero: Adam counts it, and the master weights, not yet the model's own, decay once more.
"""

import json
import sys

import torch
from zero import LENGTH, MICRO_BATCH, VOCABULARY, Model

RANKS = 2


def main():
    torch.manual_seed(0)
    model = Model()
    parameters = list(model.parameters())
    optimizer = torch.optim.AdamW(parameters, lr=1e-2)
    seen = [parameter.detach().clone() for parameter in parameters]
    if sys.argv[1] == "one_step_ahead":
        for parameter in parameters:
            parameter.grad = torch.zeros_like(parameter)
        optimizer.step()
    masters = [parameter.detach().clone() for parameter in parameters]
    generators = [torch.Generator().manual_seed(1000 + rank) for rank in range(RANKS)]
    losses = []
    for _ in range(3):
        put(parameters, seen)
        optimizer.zero_grad()
        for rank, generator in enumerate(generators):
            loss = model(torch.randint(0, VOCABULARY, (MICRO_BATCH, LENGTH), generator=generator))
            (loss / RANKS).backward()
            if rank == 0:
                losses.append(loss.item().hex())
        put(parameters, masters)
        optimizer.step()
        seen = masters = [parameter.detach().clone() for parameter in parameters]
    print(json.dumps(losses))


def put(parameters, values):
    with torch.no_grad():
        for parameter, value in zip(parameters, values, strict=True):
            parameter.copy_(value)


if __name__ == "__main__":
    main()
