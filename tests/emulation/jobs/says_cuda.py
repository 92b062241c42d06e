"""A code base that uses cuda, for which a plugin enables transfer_to_npu after its modules are loaded."""

import taken_from_cuda
from record import record

from ascend_adapt_plugins.without_cuda import programs
from ascend_adapt_plugins.without_cuda.code_base import CudaCodeBase

programs.adopt("npu", CudaCodeBase.around("taken_from_cuda", ("taken_from_cuda",)))
record(taken_from_cuda.where())
record(taken_from_cuda.profiled())
