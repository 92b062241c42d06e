"""bigscience's fork on devices other than CUDA; deepspeedai's fork already uses DeepSpeed's accelerator."""

from ..code_bases import BIGSCIENCE
from ..without_cuda import without_cuda

WITHOUT_CUDA = without_cuda("megatron.initialize:initialize_megatron", host=BIGSCIENCE)
