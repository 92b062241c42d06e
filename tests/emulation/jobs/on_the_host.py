"""A script that trains on the host's CPU, whatever device there is; on_the_host.py fail: and then fails."""

import sys

import torch

if __name__ == "__main__":
    model = torch.nn.Linear(2, 2).to("cpu")
    for batch in torch.utils.data.DataLoader(torch.ones(2, 2), num_workers=1):
        model(batch).sum().backward()
    if sys.argv[1:] == ["fail"]:
        raise ValueError("for another reason")
