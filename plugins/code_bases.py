"""The code bases that these plugins support, named as in ``ascend_adapt.runtime.code_bases``."""

from __future__ import annotations

GPT_NEOX = "gpt-neox"  # EleutherAI/gpt-neox, v2.0 (9610391a) and newer
MEGATRON_LM = "megatron-lm"  # NVIDIA/Megatron-LM from core_v0.9.0 on, and the megatron-core distribution
MEGATRON_DEEPSPEED = "megatron-deepspeed"  # deepspeedai/Megatron-DeepSpeed 4efb479d
BIGSCIENCE = "bigscience-megatron-deepspeed"  # bigscience-workshop/Megatron-DeepSpeed 8387ae17
GLM = "glm"  # THUDM/GLM 4f61ed72
