"""Libraries that choose their device themselves, with the devices that they support; "cuda" is not mapped for them.

Every other package means "the accelerator" by "cuda". Lightning, for example, supports the CPU but no NPU: on
a CPU it sees that there is no CUDA, and on an NPU "cuda" is the NPU for it, as for a script.
"""

from __future__ import annotations

CPU, BOTH = ("cpu",), ("cpu", "npu")

KNOWS: dict[str, tuple[str, ...]] = {
    # They use torch_npu, or DeepSpeed's accelerator.
    **dict.fromkeys(("accelerate", "deepspeed", "diffusers", "peft", "transformers", "trl"), BOTH),
    **dict.fromkeys(("axolotl", "llamafactory", "mindspeed", "mindspeed_llm", "openmind", "swift", "verl"), BOTH),
    # DeepSpeed's source archive has these next to the package.
    **dict.fromkeys(("accelerator", "op_builder"), BOTH),
    # They run compiled kernels, for CUDA only or for torch's real devices.
    **dict.fromkeys(("apex", "bitsandbytes", "cupy", "flash_attn", "liger_kernel", "numba", "tensordict"), BOTH),
    **dict.fromkeys(("transformer_engine", "triton", "vllm", "xformers"), BOTH),
    **dict.fromkeys(("torchao", "torchaudio", "torchcodec", "torchdata", "torchtext", "torchvision"), BOTH),
    # They do not use a device themselves.
    **dict.fromkeys(
        ("datasets", "huggingface_hub", "numpy", "pandas", "safetensors", "scipy", "sklearn", "tensorboard", "wandb"),
        BOTH,
    ),
    # They support CUDA and the CPU.
    **dict.fromkeys(("lightning", "lightning_fabric", "lightning_utilities", "pytorch_lightning", "torchmetrics"), CPU),
    **dict.fromkeys(("evaluate", "lm_eval", "sentence_transformers"), CPU),
}
# Torch itself, its parts, and this package: they see the real torch.
INTERNAL = frozenset(("ascend_adapt", "ascend_adapt_plugins", "functorch", "torch", "torch_npu", "torchair", "wrapt"))
