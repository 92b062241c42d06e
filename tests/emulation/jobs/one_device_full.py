"""A broadcast within one process to a device without memory for a communicator; prints the error."""

import torch
from torch.cuda import comm

used = torch.empty(2**30, dtype=torch.uint8, device="cuda:1")
try:
    comm.broadcast(torch.ones(4, device="cuda"), [0, 1])
except RuntimeError as error:
    print(error)
