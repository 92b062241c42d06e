"""Which releases the patches of this plugin are for, and whose packages they are.

``megatron-core`` of the package index holds megatron.core alone; a checkout of Megatron-LM has more beside it.
"""

from ascend_adapt import CodeBase

REQUIRES = "megatron-core>=0.12"
HOST = "megatron-lm"
_CORE, _FORK = "megatron/core/__init__.py", "megatron/arguments.py"
# A version cannot be asked for there: these packages belong to no distribution. pretrain_ict.py went with the legacy.
TRAINING = CodeBase("megatron-lm-training", present=(_CORE, "megatron/training/__init__.py"), absent=(_FORK,))
LEGACY = CodeBase("megatron-lm-legacy", present=(_CORE, "pretrain_ict.py"), absent=(_FORK,))
