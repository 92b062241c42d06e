"""Code bases that share package names (``megatron``, ``mpu``), and the files that tell them apart.

Read off GPT-NeoX v2.0, Megatron-LM core_v0.9.0, deepspeedai/Megatron-DeepSpeed 4efb479d,
bigscience-workshop/Megatron-DeepSpeed 8387ae17 and THUDM/GLM 4f61ed72. A plugin may declare further ones with
``Host(...)``.
"""

from ascend_adapt.patches.declare.code_base import Host

KNOWN = {
    host.name: host
    for host in (
        Host("gpt-neox", present=("megatron/neox_arguments/__init__.py",)),
        Host("megatron-lm", present=("megatron/core/__init__.py",), absent=("megatron/arguments.py",)),
        Host("megatron-deepspeed", present=("megatron/core/__init__.py", "megatron/arguments.py")),
        Host(
            "bigscience-megatron-deepspeed",
            present=("megatron/arguments.py", "megatron/enums.py"),
            absent=("megatron/core/__init__.py",),
        ),
        Host("glm", present=("mpu/random.py", "model/modeling_glm.py", "data_utils/lazy_loader.py")),
    )
}
