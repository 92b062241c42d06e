"""What a report at full size must find, one planted case each; the test looks for the lines with these comments."""

import contextlib
import resource

import torch
import torch_npu
from record import record
from torch.utils.checkpoint import checkpoint

from ascend_adapt.errors import OperatorLimit
from ascend_adapt.kernels import gelu

BATCH, HEADS, LENGTH, WIDTH, HIDDEN = 2, 8, 4096, 64, 8192


def attention(x):
    return torch_npu.npu_fusion_attention(x, x, x, HEADS, "BNSD", scale=0.1)[0]


before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
torch.empty(1 << 30).bfloat16().clone()  # on the host
record((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) << 10)

weights = torch.nn.Linear(HIDDEN, HIDDEN, bias=False, device="npu", dtype=torch.bfloat16)
optimizer = torch.optim.SGD(weights.parameters(), 1e-3)
kept = [torch.empty(20 << 30, dtype=torch.uint8, device="npu")]
kept.append(torch.empty(20 << 30, dtype=torch.uint8, device="npu"))  # beyond 32 GiB
indices = torch.empty(1 << 31, dtype=torch.bool, device="npu")  # 2^31 elements

many = torch.empty(1, 300, 8192, 128, device="npu", dtype=torch.bfloat16)
with contextlib.suppress(OperatorLimit):
    torch_npu.npu_fusion_attention(many, many, many, 300, "BNSD", scale=0.1)  # 300 heads
del many

mask = torch.zeros(1 << 20, device="npu")
record([mask[5].item(), mask[:4].tolist(), bool((mask[:4] == 0).any())])  # stand-ins: no kernel wrote them

x = torch.empty(BATCH, HEADS, LENGTH, WIDTH, device="npu", dtype=torch.bfloat16, requires_grad=True)
rows = torch.empty(1024, HIDDEN, device="npu", dtype=torch.bfloat16)
for _ in range(2):
    attended = attention(x)
    hidden = checkpoint(lambda rows: gelu(weights(rows)), rows, use_reentrant=False)
    (attended.float().sum() + hidden.float().sum()).backward()
    optimizer.step()
