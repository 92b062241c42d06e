"""A code base that says cuda, for which a plugin asks torch_npu after its modules are loaded."""

import taken_from_cuda
from tell import tell

from ascend_adapt_plugins.without_cuda import on_npu
from ascend_adapt_plugins.without_cuda.code_base import CudaCodeBase

on_npu.transfer(CudaCodeBase.around("taken_from_cuda", ("taken_from_cuda",)))
tell(taken_from_cuda.where())
tell(taken_from_cuda.profiled())
