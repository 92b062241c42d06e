"""Support for accelerate in a multi-rank job on CPUs.

accelerate only creates a process group for accelerators, unless the script passes cpu=True, which disables DeepSpeed.
Releases before 0.29 request a CUDA device for DeepSpeed. Source: accelerate 0.27.2, 0.28.0, 0.29.3 and 1.15.
"""

from __future__ import annotations

import os
from typing import Any

from ascend_adapt import Call, Symptom, rewrite, wrap
from ascend_adapt.whole_numbers import of_variable


@wrap(
    "accelerate.state:PartialState._prepare_backend",
    requires="accelerate>=0.29",
    devices="cpu",
    why="without an accelerator, each rank assumes it is the only process and trains alone; with DeepSpeed, it crashes",
    until="accelerate creates a gloo group if LOCAL_RANK is set and there is no accelerator",
    without="wrong numbers",
    symptom=Symptom("distributed_type = DistributedType.NO"),
)
def cpu_process_group(call: Call) -> Any:
    """Return gloo and MULTI_CPU if a rank would get no process group."""
    from accelerate.utils import DistributedType

    backend, kind = call.proceed()
    if kind == DistributedType.NO and of_variable(os.environ, "WORLD_SIZE", 1) > 1 and "LOCAL_RANK" in os.environ:
        return backend or "gloo", DistributedType.MULTI_CPU
    return backend, kind


deepspeed_of_accelerate_on_cpu = rewrite(
    "accelerate.state:PartialState.__init__",
    old="""if is_xpu_available():
    self.device = torch.device("xpu", self.local_process_index)
    if self.device is not None:
        torch.xpu.set_device(self.device)
elif is_npu_available():
    self.device = torch.device("npu", self.local_process_index)
    if self.device is not None:
        torch.npu.set_device(self.device)
else:
    self.device = torch.device("cuda", self.local_process_index)
    if self.device is not None:
        torch.cuda.set_device(self.device)""",
    # Unlike the function's other assignment, so that this one is not taken for the patched text.
    new="self.device = torch.device(type='cpu')",
    name="deepspeed_of_accelerate_on_cpu",
    requires="accelerate>=0.27,<0.29",
    devices="cpu",
    why="with DeepSpeed, it requests a CUDA device, also if torch does not support CUDA",
    until="accelerate 0.29, which uses gloo and the CPU if there is no accelerator",
    without="crash",
)
