"""bigscience's Megatron-DeepSpeed says torch.cuda everywhere; deepspeedai's asks DeepSpeed's accelerator."""

from ..code_bases import BIGSCIENCE
from ..without_cuda import without_cuda

WITHOUT_CUDA = without_cuda("megatron.initialize:initialize_megatron", host=BIGSCIENCE)
