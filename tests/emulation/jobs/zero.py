"""A model under DeepSpeed's ZeRO; tells accelerator and backend, then the losses. Arguments: stage, type."""

import os
import sys

import deepspeed
import torch
from deepspeed.accelerator import get_accelerator
from tell import tell

STAGE, TYPE, RANK = int(sys.argv[1]), sys.argv[2], int(os.environ["RANK"])
CONFIG = {
    "train_micro_batch_size_per_gpu": 2,
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-2}},
    "gradient_clipping": 1.0,
    "bf16": {"enabled": TYPE == "bf16"},
    "fp16": {"enabled": TYPE == "fp16", "initial_scale_power": 8},
    "zero_optimization": {"stage": STAGE, "stage3_param_persistence_threshold": 0},
}
deepspeed.init_distributed()
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Linear(16, 4))
engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=CONFIG)
tell([get_accelerator().device_name(), get_accelerator().communication_backend_name(), type(engine.optimizer).__name__])
x = (torch.arange(16.0).reshape(2, 8) / 16 + RANK).to(engine.device, {"bf16": torch.bfloat16, "fp16": torch.half}[TYPE])
y = torch.tensor([RANK, 1], device=engine.device)
for _ in range(4):
    loss = torch.nn.functional.cross_entropy(engine(x).float(), y)
    engine.backward(loss)
    engine.step()
    tell(loss.item())
