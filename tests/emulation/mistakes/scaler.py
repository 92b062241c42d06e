import torch

enabled = True
scaler = torch.amp.GradScaler("cuda", enabled=enabled)  # GradScaler for another device: GradScaler('cuda')
