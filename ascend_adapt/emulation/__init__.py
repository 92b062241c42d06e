"""Emulated NPU on the host: the real torch_npu on CANN libraries of this project that use host memory."""

# The result of aclrtGetSocName for each chip that can be emulated, by the chip's usual name.
SOCS = {"910A": "Ascend910A", "910B": "Ascend910B2"}
# As in cann/emulated.h.
MAX_DEVICES = 64
