"""Which releases the patches of this plugin are for, and whose packages they are."""

REQUIRES = "megatron-core>=0.12"
HOST = "megatron-lm"
