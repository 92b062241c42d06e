"""Libraries that choose their device themselves, with the devices that they support. "cuda" is not mapped for them.

In every other package, "cuda" is taken to mean "the accelerator". Lightning, for example, supports the CPU but no NPU:
on a CPU, it sees that CUDA is not available; on an NPU, "cuda" is mapped to the NPU, as in a script.
"""

from __future__ import annotations

CPU, BOTH = ("cpu",), ("cpu", "npu")

KNOWS: dict[str, tuple[str, ...]] = {
    # These libraries use torch_npu or DeepSpeed's accelerator.
    **dict.fromkeys(("accelerate", "deepspeed", "diffusers", "peft", "transformers", "trl"), BOTH),
    **dict.fromkeys(("axolotl", "llamafactory", "mindspeed", "mindspeed_llm", "openmind", "swift", "verl"), BOTH),
    # Packages next to DeepSpeed in its source archive.
    **dict.fromkeys(("accelerator", "op_builder"), BOTH),
    # These libraries run compiled kernels, either only for CUDA or for torch's real devices.
    **dict.fromkeys(("apex", "bitsandbytes", "cupy", "flash_attn", "liger_kernel", "numba", "tensordict"), BOTH),
    **dict.fromkeys(("transformer_engine", "triton", "vllm", "xformers"), BOTH),
    **dict.fromkeys(("torchao", "torchaudio", "torchcodec", "torchdata", "torchtext", "torchvision"), BOTH),
    # These libraries do not use a device themselves.
    **dict.fromkeys(
        ("datasets", "huggingface_hub", "numpy", "pandas", "safetensors", "scipy", "sklearn", "tensorboard", "wandb"),
        BOTH,
    ),
    # These libraries support CUDA and the CPU.
    **dict.fromkeys(("lightning", "lightning_fabric", "lightning_utilities", "pytorch_lightning", "torchmetrics"), CPU),
    **dict.fromkeys(("evaluate", "lm_eval", "sentence_transformers"), CPU),
}
# torch, its parts, and this package see the real torch.
INTERNAL = frozenset(("ascend_adapt", "ascend_adapt_plugins", "functorch", "torch", "torch_npu", "torchair", "wrapt"))
