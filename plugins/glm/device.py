"""Where GLM says torch.cuda: its scripts read their arguments before they ask for a device."""

from __future__ import annotations

from ..without_cuda import without_cuda

WITHOUT_CUDA = without_cuda("arguments:get_args", host="glm", roots=None)
