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
        accelerate.Accelerator().device.type,
        torch.ones(1).cuda().device.type,
    ]
)
# The compiler for this device needs Triton, which is not here: libraries that compile run eagerly.
assert eval("torch.compile(len)", vars(accelerate.accelerator)) is len
