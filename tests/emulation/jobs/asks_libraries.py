"""A script that uses CUDA, with libraries that choose the device themselves."""

import accelerate
import torch
import transformers
from deepspeed.accelerator import get_accelerator
from record import record

assert torch.cuda.is_available()
record(
    [
        accelerate.utils.is_cuda_available(),
        transformers.utils.is_torch_cuda_available(),
        get_accelerator().device_name(),
        (accelerator := accelerate.Accelerator(mixed_precision="fp16")).device.type,
        torch.ones(1).cuda().device.type,
    ]
)
model = torch.nn.Linear(2, 2)
model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), fused=True))
accelerator.backward(model(torch.ones(1, 2).cuda()).mean() / 64)
optimizer.step()
assert not accelerator.optimizer_step_was_skipped
# The compiler for this device needs Triton, which is not here: libraries that compile run eagerly.
assert eval("torch.compile(len)", vars(accelerate.accelerator)) is len
