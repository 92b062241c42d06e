"""An NPU emulated on the host: the real torch_npu on CANN libraries of our own, whose device memory is host memory."""

# What aclrtGetSocName says of the chips that can be emulated, by what users call them.
SOCS = {"910A": "Ascend910A", "910B": "Ascend910B2"}
# As in cann/emulated.h.
MAX_DEVICES = 64
