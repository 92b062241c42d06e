"""Record torch_npu's compile mode before the first tensor and after it, here and in a child process."""

import subprocess
import sys

import torch
import torch_npu
from record import record

ASK = "import torch_npu; print('mode', torch_npu._C._npu_getOption('jitCompile').decode())"


def mode():
    return torch_npu._C._npu_getOption("jitCompile").decode()


before = mode()
torch.ones(1, device="npu")
child = subprocess.run([sys.executable, "-c", ASK], capture_output=True, text=True, check=True).stdout
record([before, mode(), *child.split()[1:]])
