"""GLM on devices other than CUDA: patched where its scripts read their arguments, before any device is used."""

from __future__ import annotations

from ..without_cuda import without_cuda

WITHOUT_CUDA = without_cuda("arguments:get_args", host="glm", roots=None)
