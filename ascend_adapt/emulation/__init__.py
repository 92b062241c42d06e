"""An NPU emulated on the host: the real torch_npu on CANN libraries of our own, whose device memory is host memory."""
