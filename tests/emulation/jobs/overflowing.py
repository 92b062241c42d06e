"""fp16 training whose first steps overflow; records (ZeRO stage, loss scale, skipped steps so far) of each step."""

import os

import deepspeed
import torch
from record import record

RANK = int(os.environ["RANK"])
deepspeed.init_distributed()
for stage in (1, 3):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 4))
    config = {
        "train_micro_batch_size_per_gpu": 2,
        "optimizer": {"type": "Adam", "params": {"lr": 1e-2, "torch_adam": True}},
        "fp16": {"enabled": True, "initial_scale_power": 20, "hysteresis": 1, "loss_scale_window": 1000},
        "zero_optimization": {"stage": stage},
    }
    engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)
    x = (torch.arange(16.0).reshape(2, 8) / 4 + RANK).to(engine.device, torch.half)
    y = torch.tensor([RANK, 1], device=engine.device)
    for _ in range(6):
        loss = torch.nn.functional.cross_entropy(engine(x).float(), y)
        engine.backward(loss)
        engine.step()
        record([stage, engine.optimizer.loss_scale, engine.skipped_steps])
