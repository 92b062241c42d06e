"""DeepSpeed's ZeRO-1 and ZeRO-3; records accelerator and backend, then (stage, optimizer, losses)."""

import os

import deepspeed
import torch
from deepspeed.accelerator import get_accelerator
from record import record

RANK = int(os.environ["RANK"])
deepspeed.init_distributed()
record([get_accelerator().device_name(), get_accelerator().communication_backend_name()])
for stage in (1, 3):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Linear(16, 4))
    config = {
        "train_micro_batch_size_per_gpu": 2,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-2}},
        "gradient_clipping": 1.0,
        "bf16": {"enabled": True},
        "zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 0},
    }
    by_decay = [{"params": [one for one in model.parameters() if one.dim() == rank]} for rank in (1, 2)]
    engine, *_ = deepspeed.initialize(model=model, model_parameters=by_decay, config=config)
    x = (torch.arange(16.0).reshape(2, 8) / 16 + RANK).to(engine.device, torch.bfloat16)
    y = torch.tensor([RANK, 1], device=engine.device)
    losses = []
    for _ in range(3):
        loss = torch.nn.functional.cross_entropy(engine(x).float(), y)
        engine.backward(loss)
        engine.step()
        losses.append(loss.item())
    record([stage, type(engine.optimizer).__name__, losses])
