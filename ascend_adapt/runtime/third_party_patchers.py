"""Known third-party patchers: packages that change training code at run time and may run together with ours.

Source: MindSpeed 028de58, Ascend/DeepSpeed c134c39, torch_npu 2.13.0 and Liger-Kernel 0.8.5.
"""

from __future__ import annotations

import sys

from ascend_adapt.patches.apply.third_party import ThirdPartyPatcher

KNOWN = (
    ThirdPartyPatcher(
        "MindSpeed", ("mindspeed", "mindspeed_llm", "mindspeed_mm"), "disable the MindSpeed feature that changes it"
    ),
    ThirdPartyPatcher("deepspeed_npu", ("deepspeed_npu",), "remove `import deepspeed_npu`"),
    ThirdPartyPatcher(
        "transfer_to_npu",
        ("torch_npu.contrib.transfer_to_npu",),
        "remove `from torch_npu.contrib import transfer_to_npu` and TORCH_TRANSFER_TO_NPU",
    ),
    ThirdPartyPatcher(
        "Liger", ("liger_kernel",), "remove apply_liger_kernel_to_...(), or use_liger_kernel of the Trainer"
    ),
)


def active() -> tuple[str, ...]:
    """Return the names of the patchers that this process has loaded."""
    return tuple(other.name for other in KNOWN if any(module in sys.modules for module in other.modules))
