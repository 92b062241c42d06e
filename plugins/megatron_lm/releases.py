"""Releases and code bases that the patches of this plugin are for.

The distribution ``megatron-core`` has megatron.core only; a checkout of Megatron-LM also has megatron.training.
"""

from ascend_adapt import CodeBase

REQUIRES = "megatron-core>=0.12"
HOST = "megatron-lm"
_CORE, _FORK = "megatron/core/__init__.py", "megatron/arguments.py"
# No version is known for these packages: they belong to no distribution. pretrain_ict.py was removed with the legacy
# models.
TRAINING = CodeBase("megatron-lm-training", present=(_CORE, "megatron/training/__init__.py"), absent=(_FORK,))
LEGACY = CodeBase("megatron-lm-legacy", present=(_CORE, "pretrain_ict.py"), absent=(_FORK,))
