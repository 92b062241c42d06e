"""Libraries that choose their device themselves, with the devices that they support: for them "cuda" is not mapped.

Every other package means "the accelerator" when it says "cuda". Lightning, for example, supports the CPU but no NPU: on
a CPU it sees that there is no CUDA, and on an NPU "cuda" is the NPU for it, as for a script.
"""

from __future__ import annotations

CPU, BOTH = ("cpu",), ("cpu", "npu")

KNOWS: dict[str, tuple[str, ...]] = {
    # They use torch_npu, or DeepSpeed's accelerator.
    **dict.fromkeys(("accelerate", "deepspeed", "diffusers", "peft", "transformers", "trl"), BOTH),
    **dict.fromkeys(("axolotl", "llamafactory", "mindspeed", "mindspeed_llm", "openmind", "swift", "verl"), BOTH),
    # DeepSpeed's source archive has these beside the package.
    **dict.fromkeys(("accelerator", "op_builder"), BOTH),
    # They run compiled kernels, for CUDA alone or for what torch really has.
    **dict.fromkeys(("apex", "bitsandbytes", "cupy", "flash_attn", "liger_kernel", "numba", "tensordict"), BOTH),
    **dict.fromkeys(("transformer_engine", "triton", "vllm", "xformers"), BOTH),
    **dict.fromkeys(("torchao", "torchaudio", "torchcodec", "torchdata", "torchtext", "torchvision"), BOTH),
    # They use no device of their own.
    **dict.fromkeys(
        ("datasets", "huggingface_hub", "numpy", "pandas", "safetensors", "scipy", "sklearn", "tensorboard", "wandb"),
        BOTH,
    ),
    # They support CUDA and the CPU.
    **dict.fromkeys(("lightning", "lightning_fabric", "lightning_utilities", "pytorch_lightning", "torchmetrics"), CPU),
    **dict.fromkeys(("evaluate", "lm_eval", "sentence_transformers"), CPU),
}
# Torch itself, its parts, and this package: they see torch as it is.
INTERNAL = frozenset(("ascend_adapt", "ascend_adapt_plugins", "functorch", "torch", "torch_npu", "torchair", "wrapt"))
