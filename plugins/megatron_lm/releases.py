"""Releases and code bases to which the patches of this plugin apply.

The distribution ``megatron-core`` only has megatron.core; a checkout of Megatron-LM also has megatron.training.
"""

from ascend_adapt import CodeBase

REQUIRES = "megatron-core>=0.12"
HOST = "megatron-lm"
_CORE, _FORK = "megatron/core/__init__.py", "megatron/arguments.py"
# The version of these packages is unknown, because they belong to no distribution. pretrain_ict.py was removed
# together with the legacy models.
TRAINING = CodeBase("megatron-lm-training", present=(_CORE, "megatron/training/__init__.py"), absent=(_FORK,))
LEGACY = CodeBase("megatron-lm-legacy", present=(_CORE, "pretrain_ict.py"), absent=(_FORK,))
