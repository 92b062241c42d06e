"""The real Liger beside the patches of plugin hf, in a process of its own with the packages of ``.triton``.

Liger's kernels take numbers that Triton's interpreter does not, so none is run: who is called is what is shown.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGES = Path(__file__).parents[2] / ".triton"
CODE = """
import json, sys
import torch
import ascend_adapt

def ours():
    ascend_adapt.enable(device="cpu")

def liger():
    from liger_kernel.transformers import apply_liger_kernel_to_llama
    apply_liger_kernel_to_llama(cross_entropy=True, fused_linear_cross_entropy=False)

for who in sys.argv[1:]:
    {"ours": ours, "liger": liger}[who]()

from transformers.loss.loss_utils import LOSS_MAPPING
from transformers.models.llama.modeling_llama import LlamaRMSNorm

called = []
theirs = torch.nn.functional.cross_entropy

def noting(*args, **kwargs):
    called.append(theirs.__module__)
    return torch.zeros(())

noting.__module__ = theirs.__module__
torch.nn.functional.cross_entropy = noting
LOSS_MAPPING["ForCausalLM"](torch.randn(1, 4, 8), torch.zeros(1, 4, dtype=torch.long), vocab_size=8)
status = ascend_adapt.status()
states = {one.patch: one.state for one in status if one.plugin == "hf"}
print(json.dumps([called, LlamaRMSNorm.__name__, states, status.beside]))
"""


@pytest.mark.parametrize(
    "order", [pytest.param(("ours", "liger"), marks=pytest.mark.every_case), ("liger", "ours", "ours")]
)
def test_liger_keeps_what_it_has_put_in_place(order):
    assert (PACKAGES / "liger_kernel").is_dir(), f"{PACKAGES}: no Liger in it — run make {PACKAGES.name}/.installed"
    kept = {name: value for name, value in os.environ.items() if not name.startswith("ASCEND_")}
    environ = {**kept, "PYTHONPATH": str(PACKAGES), "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-W", "ignore", "-c", CODE, *order]
    ended = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=280)
    assert ended.returncode == 0, ended.stderr[-3000:]
    called, norm, states, beside = json.loads(ended.stdout.splitlines()[-1])
    assert (called, norm, beside) == (["liger_kernel.transformers.functional"], "LigerRMSNorm", ["Liger"])
    assert {states[name] for name in ("fused_new_gelu", "fused_attention", "loss_without_fp32_copy")} == {"applied"}
