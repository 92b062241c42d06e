"""Overlaps and encodings of boxes, for object detection.

Source: op-plugin@517f2e7 docs (beta)torch_npu-npu_diou.md and the pages of the other operators; test/test_base_ops.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

from ascend_adapt.emulation.operators.kernel import kernel
from ascend_adapt.emulation.operators.precision import wide
from ascend_adapt.npu_limits import boxes as limits

_DIOU_EPSILON = 1e-9
_GIOU_EPSILON = 1e-16

Corners = tuple[torch.Tensor, torch.Tensor]
"""Two corners of each box: the smallest x and y [2, N], and the largest x and y [2, N]."""


@kernel("npu_diou")
def diou(self: torch.Tensor, gtboxes: torch.Tensor, trans: bool) -> torch.Tensor:
    """Return the IoU minus the squared distance of the centres / the squared diagonal of the enclosing box, [1, N]."""
    return _diou(_corners(wide(self), trans), _corners(wide(gtboxes), trans)).unsqueeze(0).to(self.dtype)


@kernel("npu_diou_backward")
def diou_backward(
    grad: torch.Tensor, bboxes: torch.Tensor, gtboxes: torch.Tensor, trans: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the gradients of both sets of boxes, [4, N]."""
    limits.DIOU_BACKWARD.require(trans, f"trans is {trans}")
    return _gradients(_diou, grad.reshape(-1), bboxes, gtboxes)


@kernel("npu_giou")
def giou(self: torch.Tensor, gtboxes: torch.Tensor, trans: bool, is_cross: bool, mode: int) -> torch.Tensor:
    """Return the IoU minus the share of the enclosing box that neither box covers, [N, 1]; boxes are xywh."""
    found = f"trans is {trans}, is_cross is {is_cross}, mode is {mode}"
    limits.GIOU.require(trans and not is_cross and mode == 0, found)
    return _giou(_corners(wide(self)), _corners(wide(gtboxes))).unsqueeze(1).to(self.dtype)


@kernel("npu_giou_backward")
def giou_backward(
    grad: torch.Tensor, bboxes: torch.Tensor, gtboxes: torch.Tensor, trans: bool, is_cross: bool, mode: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the gradients of both sets of boxes, [4, N]."""
    found = f"trans is {trans}, is_cross is {is_cross}, mode is {mode}"
    limits.GIOU.require(trans and not is_cross and mode == 0, found)
    return _gradients(_giou, grad.reshape(-1), bboxes, gtboxes)


@kernel("npu_bounding_box_encode")
def bounding_box_encode(
    anchor_box: torch.Tensor,
    ground_truth_box: torch.Tensor,
    means0: float,
    means1: float,
    means2: float,
    means3: float,
    stds0: float,
    stds1: float,
    stds2: float,
    stds3: float,
) -> torch.Tensor:
    """Return the offsets [N, 4] from anchors to boxes, both x0, y0, x1, y1 with x1 and y1 included.

    The documented results for float32 have the rounding of float16.
    """
    anchor, box = anchor_box.detach().half(), ground_truth_box.detach().half()
    sizes = [one[:, 2:] - one[:, :2] + 1 for one in (anchor, box)]
    centres = [(one[:, :2] + one[:, 2:]) * 0.5 for one in (anchor, box)]
    offsets = torch.cat(((centres[1] - centres[0]) / sizes[0], (sizes[1] / sizes[0]).log()), 1)
    means = offsets.new_tensor((means0, means1, means2, means3))
    inverses = offsets.new_tensor((1 / stds0, 1 / stds1, 1 / stds2, 1 / stds3))
    return ((offsets - means) * inverses).to(anchor_box.dtype)


@kernel("npu_bounding_box_decode")
def bounding_box_decode(
    rois: torch.Tensor,
    deltas: torch.Tensor,
    means0: float,
    means1: float,
    means2: float,
    means3: float,
    stds0: float,
    stds1: float,
    stds2: float,
    stds3: float,
    max_shape: list[int],
    wh_ratio_clip: float,
) -> torch.Tensor:
    """Return the boxes [N, 4] at these offsets from rois, inside an image of ``max_shape`` (H, W).

    Sides grow or shrink at most by the factor ``wh_ratio_clip``.
    """
    means, stds = (
        wide(deltas).new_tensor(one) for one in ((means0, means1, means2, means3), (stds0, stds1, stds2, stds3))
    )
    offsets, anchor = wide(deltas) * stds + means, wide(rois)
    sizes = anchor[:, 2:] - anchor[:, :2] + 1
    centres = (anchor[:, :2] + anchor[:, 2:]) * 0.5 + sizes * offsets[:, :2]
    limit = abs(math.log(wh_ratio_clip))
    halves = sizes * offsets[:, 2:].clamp(-limit, limit).exp() * 0.5 - 0.5
    corners = torch.cat((centres - halves, centres + halves), 1).clamp(min=0)
    height, width = max_shape
    return corners.minimum(corners.new_tensor((width, height, width, height)) - 1).to(rois.dtype)


@kernel("npu_anchor_response_flags")
def anchor_response_flags(
    self: torch.Tensor, featmap_size: list[int], stride: list[int], num_base_anchors: int
) -> torch.Tensor:
    """Return uint8 [H * W * A], which is 1 for the anchors of each cell that contains the centre of a box."""
    height, width = featmap_size
    centre_x, centre_y = ((self[:, :2] + self[:, 2:]).float() * 0.5).unbind(1)
    column = (centre_x / stride[0]).floor().long().clamp(0, width - 1)
    row = (centre_y / stride[1]).floor().long().clamp(0, height - 1)
    flags = torch.zeros(height * width, dtype=torch.uint8)
    flags.index_fill_(0, row * width + column, 1)
    return flags.repeat_interleave(num_base_anchors)


def _corners(boxes: torch.Tensor, is_xywh: bool = True) -> Corners:
    first, second = boxes[:2], boxes[2:]
    return (first - second / 2, first + second / 2) if is_xywh else (first, second)


def _area(sides: torch.Tensor) -> torch.Tensor:
    return sides[0] * sides[1]


def _overlap(one: Corners, other: Corners) -> torch.Tensor:
    return _area((torch.minimum(one[1], other[1]) - torch.maximum(one[0], other[0])).clamp(min=0))


def _enclosing(one: Corners, other: Corners) -> torch.Tensor:
    """Return the width and height of the smallest box that encloses both boxes."""
    return torch.maximum(one[1], other[1]) - torch.minimum(one[0], other[0])


def _diou(one: Corners, other: Corners) -> torch.Tensor:
    overlap = _overlap(one, other)
    sides = [(box[1] - box[0]) + torch.tensor([[0.0], [_DIOU_EPSILON]]).to(box[0]) for box in (one, other)]
    union = _area(sides[0]) + _area(sides[1]) - overlap + _DIOU_EPSILON
    centres_apart = (other[0] + other[1] - one[0] - one[1]).square().sum(0) / 4
    return overlap / union - centres_apart / (_enclosing(one, other).square().sum(0) + _DIOU_EPSILON)


def _giou(one: Corners, other: Corners) -> torch.Tensor:
    overlap = _overlap(one, other)
    union = _area(one[1] - one[0]) + _area(other[1] - other[0]) - overlap + _GIOU_EPSILON
    enclosing = _area(_enclosing(one, other))
    return overlap / union - (enclosing - union) / enclosing


def _gradients(
    measure: Callable[[Corners, Corners], torch.Tensor], grad: torch.Tensor, *boxes: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the gradients of a measure [N] with respect to two sets of boxes in xywh form."""
    leaves = [wide(one).requires_grad_() for one in boxes]
    with torch.enable_grad():
        result = measure(_corners(leaves[0]), _corners(leaves[1]))
        first, second = torch.autograd.grad(result, leaves, grad.to(result.dtype))
    return first.to(boxes[0].dtype), second.to(boxes[1].dtype)
