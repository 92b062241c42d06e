import torch

stream = torch.cuda.Stream  # a name alone is no mistake
torch.cuda.current_stream()  # CUDA-only call: torch.cuda is initialized
