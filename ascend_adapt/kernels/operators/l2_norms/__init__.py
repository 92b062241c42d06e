"""L2 norm of each of many tensors, such as of all gradients before clipping."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from ascend_adapt.errors import KernelArgumentError
from ascend_adapt.kernels import small_tensors
from ascend_adapt.kernels.arguments import check_float, check_together, is_tensor
from ascend_adapt.kernels.dispatch import Kernel
from ascend_adapt.kernels.operation import KernelCall


@dataclass(eq=False)
class L2NormsCall(KernelCall):
    """The arguments of l2_norms."""

    tensors: tuple[Any, ...]

    def tensor(self) -> Any:
        """Return the first tensor."""
        return self.tensors[0]

    def signature(self) -> tuple[Any, ...]:
        """Return the type, dtype and device, and whether all tensors are contiguous.

        Sizes are left out, because there may be thousands of tensors.
        """
        first = self.tensors[0]
        return type(first), first.dtype, first.device, all(each.is_contiguous() for each in self.tensors)

    def small(self) -> L2NormsCall:
        """Return a small call with two tensors."""
        alike = small_tensors.maker()
        of = self.tensors[0].detach()
        return replace(self, tensors=(alike(of, small_tensors.ROWS, 3), alike(of, small_tensors.ROWS)))


def l2_norms(tensors: Sequence[Any]) -> Any:
    """Return the L2 norm of each tensor, computed in fp32 (fp64 tensors in fp64) and detached from autograd.

    Args:
        tensors: float tensors of one dtype on one device, of any shapes.

    Returns:
        [number of tensors], fp32 (fp64 for fp64 tensors). The norm is NaN or Inf if the tensor has such an element, and
        Inf if its sum of squares overflows.

    Raises:
        KernelArgumentError: the list is empty, or its tensors differ in dtype or device.
        BackendUnavailable: the requested backend does not support the call.
    """
    import torch

    if not tensors:
        raise KernelArgumentError("tensors: the list is empty, expected at least one tensor — pass gradients")
    first = tensors[0]
    for index, each in enumerate(tensors):
        if not is_tensor(each) or each.dtype != first.dtype or each.device != first.device:
            check_float(f"tensors[{index}]", each, shape="of any shape")
            check_together("tensors[0]", first, **{f"tensors[{index}]": each})
            raise KernelArgumentError(
                f"tensors[{index}]: is {each.dtype}, expected {first.dtype}, the dtype of tensors[0] — call l2_norms "
                "once for each dtype"
            )
    check_float("tensors[0]", first, shape="of any shape")
    with torch.no_grad():
        return KERNEL(L2NormsCall(tuple(tensors)))


KERNEL = Kernel("l2_norms")
