import torch

enabled = True
scaler = torch.amp.GradScaler("cuda", enabled=enabled)  # scaler of another device: GradScaler('cuda')
