"""GLM on devices other than CUDA: the patch acts when a script reads its arguments, before it uses a device."""

from __future__ import annotations

from ..without_cuda import without_cuda

WITHOUT_CUDA = without_cuda("arguments:get_args", host="glm", roots=None)
