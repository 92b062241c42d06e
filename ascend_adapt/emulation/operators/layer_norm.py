"""npu_layer_norm_eval: layer norm without a backward."""

from __future__ import annotations

import torch

from ascend_adapt.emulation.operators.kernel import kernel
from ascend_adapt.emulation.operators.precision import wide
from ascend_adapt.emulation.operators.tensors import shape
from ascend_adapt.npu_limits import layer_norm as limits


@kernel("npu_layer_norm_eval")
def layer_norm_eval(
    input: torch.Tensor,
    normalized_shape: list[int],
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    eps: float,
) -> torch.Tensor:
    """Return the layer norm over the last dimensions, in the input's dtype."""
    normalised = list(normalized_shape)
    parts = {"weight": weight, "bias": bias}
    found = ", ".join(f"{name} is {shape(part)}" for name, part in parts.items() if part is not None)
    fits = list(input.shape[-len(normalised) :]) == normalised
    fits = fits and all(part is None or list(part.shape) == normalised for part in parts.values())
    limits.SHAPES.require(fits, f"normalized_shape is {normalised}, input is {shape(input)}, {found or 'no weight'}")
    asks = [name for name, part in {"input": input, **parts}.items() if part is not None and part.requires_grad]
    limits.NO_GRADIENT.require(not asks, f"{', '.join(asks)} requires grad")
    result = torch.nn.functional.layer_norm(
        wide(input),
        normalised,
        None if weight is None else weight.detach().to(wide(input).dtype),
        None if bias is None else bias.detach().to(wide(input).dtype),
        eps,
    )
    return result.to(input.dtype)
