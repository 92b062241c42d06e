"""Emulated NPU: the real torch_npu runs on this project's CANN libraries, which use host memory."""

# Maps the usual name of each chip that can be emulated to its result of aclrtGetSocName.
SOCS = {"910A": "Ascend910A", "910B": "Ascend910B2"}
# The same value as in cann/emulated.h.
MAX_DEVICES = 64
