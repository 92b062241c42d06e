"""Known code bases that share package names (``megatron``, ``mpu``), with the files that identify them.

Source: GPT-NeoX v2.0, Megatron-LM core_v0.9.0, deepspeedai/Megatron-DeepSpeed 4efb479d,
bigscience-workshop/Megatron-DeepSpeed 8387ae17 and THUDM/GLM 4f61ed72. Plugins declare further code bases with
``CodeBase(...)``.
"""

from ascend_adapt.patches.declare.code_base import CodeBase

KNOWN = {
    code_base.name: code_base
    for code_base in (
        CodeBase("gpt-neox", present=("megatron/neox_arguments/__init__.py",)),
        CodeBase("megatron-lm", present=("megatron/core/__init__.py",), absent=("megatron/arguments.py",)),
        CodeBase("megatron-deepspeed", present=("megatron/core/__init__.py", "megatron/arguments.py")),
        CodeBase(
            "bigscience-megatron-deepspeed",
            present=("megatron/arguments.py", "megatron/enums.py"),
            absent=("megatron/core/__init__.py",),
        ),
        CodeBase("glm", present=("mpu/random.py", "model/modeling_glm.py", "data_utils/lazy_loader.py")),
    )
}
