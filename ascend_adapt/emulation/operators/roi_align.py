"""npu_roi_align: pools the features of image regions to a common size.

The bilinear weight of a sample is the product of a row weight and a column weight. So the result of a region is
``rows @ features @ columns``, where the matrices hold the mean weights of each cell's samples.

Source: op-plugin@517f2e7 docs torch_npu-npu_roi_align.md, test/test_base_ops/test_roi_align.py. The meaning of
roi_end_mode is from the tests of cann/ops-cv objdetect/roi_align_grad.
"""

from __future__ import annotations

import torch

from ascend_adapt.emulation.operators.kernel import kernel
from ascend_adapt.emulation.operators.precision import wide

_END_IS_INCLUDED, _ALIGNED, _ALIGNED_AT_LEAST_ONE = 1, 2, 3
"""Values of roi_end_mode; 0 is neither of them."""


@kernel("npu_roi_align")
def roi_align(
    self: torch.Tensor,
    rois: torch.Tensor,
    spatial_scale: float,
    pooled_height: int,
    pooled_width: int,
    sample_num: int,
    roi_end_mode: int,
) -> torch.Tensor:
    """Return [R, C, pooled_height, pooled_width] of features [N, C, H, W] at rois [R, 5]: image, x0, y0, x1, y1."""
    if rois.is_meta:
        return self.new_empty(rois.shape[0], self.shape[1], pooled_height, pooled_width)
    sizes, pooled = self.shape[2:], (pooled_height, pooled_width)
    rows, columns = _weights(rois, sizes, pooled, spatial_scale, sample_num, roi_end_mode)
    features = wide(self)[rois[:, 0].long()].to(rows.dtype)
    return torch.einsum("rph,rchw,rqw->rcpq", rows, features, columns).to(self.dtype)


@kernel("npu_roi_alignbk")
def roi_align_backward(
    self: torch.Tensor,
    rois: torch.Tensor,
    xdiff_shape: list[int],
    pooled_width: int,
    pooled_height: int,
    spatial_scale: float,
    sample_num: int,
    roi_end_mode: int | None,
) -> torch.Tensor:
    """Return the gradient of the features, of shape ``xdiff_shape``."""
    if rois.is_meta:
        return self.new_empty(xdiff_shape)
    mode = _END_IS_INCLUDED if roi_end_mode is None else roi_end_mode
    pooled = (pooled_height, pooled_width)
    rows, columns = _weights(rois, torch.Size(xdiff_shape[2:]), pooled, spatial_scale, sample_num, mode)
    of_regions = torch.einsum("rph,rcpq,rqw->rchw", rows, wide(self).to(rows.dtype), columns)
    total = of_regions.new_zeros(xdiff_shape).index_add(0, rois[:, 0].long(), of_regions)
    return total.to(self.dtype)


def _weights(
    rois: torch.Tensor, sizes: torch.Size, pooled: tuple[int, int], scale: float, samples: int, mode: int
) -> list[torch.Tensor]:
    """Return the row weights [R, pooled height, H] and column weights [R, pooled width, W] in float64."""
    corners = rois.detach()[:, 1:].double() * scale
    x0, y0, x1, y1 = (corners - (0.5 if mode in (_ALIGNED, _ALIGNED_AT_LEAST_ONE) else 0)).unbind(1)
    found = []
    for start, end, size, cells in ((y0, y1, sizes[0], pooled[0]), (x0, x1, sizes[1], pooled[1])):
        length = end - start + (scale if mode == _END_IS_INCLUDED else 0)
        of_cell = (length if mode == _ALIGNED else length.clamp(min=1)).reshape(-1, 1, 1) / cells
        count = torch.full_like(of_cell, samples) if samples > 0 else of_cell.ceil().clamp(min=1)
        sample = torch.arange(int(count.max()) if count.numel() else 1)
        cell = torch.arange(cells).reshape(-1, 1)
        at = start.reshape(-1, 1, 1) + of_cell * (cell + (sample + 0.5) / count)
        counts = (sample < count) & (at >= -1) & (at <= size)  # Other samples are 0.
        distance = (at.clamp(0, size - 1).unsqueeze(-1) - torch.arange(size)).abs()
        found.append(((1 - distance).clamp(min=0) * counts.unsqueeze(-1)).sum(2) / count)
    return found
