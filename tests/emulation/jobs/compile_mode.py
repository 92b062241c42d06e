"""Record torch_npu's compile mode before the first tensor, after it, in a child process, and set to binary."""

import subprocess
import sys

import torch
import torch_npu
from record import record

from ascend_adapt.launch.in_process import compile_mode

ASK = "import torch_npu; print('mode', torch_npu._C._npu_getOption('jitCompile').decode())"


def mode():
    return torch_npu._C._npu_getOption("jitCompile").decode()


before = mode()
torch.ones(1, device="npu")
after = mode()
child = subprocess.run([sys.executable, "-c", ASK], capture_output=True, text=True, check=True).stdout
compile_mode.watch("binary")  # at once, for torch_npu is imported
record([before, after, *child.split()[1:], mode()])
