import torch

shape = (2, 2)
x = torch.zeros(shape, device="cuda")  # CUDA-only call: torch.cuda is initialized
