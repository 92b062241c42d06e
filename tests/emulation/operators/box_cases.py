"""Operators of object detection: gradients against definitions in float64, and results that documents state."""

from __future__ import annotations

import torch
from emulation.operators.case import Check, Gradient
from torch.nn import functional

_numbers = torch.Generator().manual_seed(13)


def npu():
    import torch_npu

    return torch_npu


def some_boxes(count, dtype=torch.float32):
    """Return boxes [4, count], xywh, of which neighbours overlap in part."""
    return (torch.rand(4, count, generator=_numbers) + torch.tensor([[0.0], [0], [1], [1]])).to(dtype)


def overlaps(one, other):
    """Return intersection over union, and the sides and centres of each box and of the one around both."""
    low, high = ([box[:2] + sign * box[2:] / 2 for box in (one, other)] for sign in (-1, 1))
    inside = (torch.min(*high) - torch.max(*low)).clamp(min=0).prod(0)
    union = one[2:].prod(0) + other[2:].prod(0) - inside
    return inside / union, union, torch.max(*high) - torch.min(*low)


def diou(one, other):
    iou, _, around = overlaps(one, other)
    return (iou - (one[:2] - other[:2]).square().sum(0) / around.square().sum(0)).unsqueeze(0)


def giou(one, other):
    iou, union, around = overlaps(one, other)
    return (iou - 1 + union / around.prod(0)).unsqueeze(1)


def gradients():
    for dtype in (torch.float32, torch.float16):
        boxes = {"one": some_boxes(6, dtype), "other": some_boxes(6, dtype)}
        yield Gradient(f"diou {dtype}", lambda one, other: npu().npu_diou(one, other, True), diou, boxes)
        yield Gradient(f"giou {dtype}", lambda one, other: npu().npu_giou(one, other, True), giou, boxes)
    for shape, options in (
        ((24,), {}),
        ((2, 24), {"hop_length": 3, "win_length": 5, "window": torch.hann_window(5)}),
        ((2, 24), {"onesided": False, "normalized": True}),
    ):

        def spectrum(x, options=options):
            given = {name: one.to(x) if isinstance(one, torch.Tensor) else one for name, one in options.items()}
            return torch.view_as_real(torch.stft(x, 8, center=False, return_complex=True, **given))

        signal = {"x": torch.randn(shape, generator=_numbers)}
        yield Gradient(f"stft {list(shape)} {list(options)}", spectrum, spectrum, signal)


def resampled(features, region, cells, samples):
    """Return the mean of ``samples`` squared bilinear samples of each cell of a region inside the image."""
    x0, y0, x1, y1 = region
    grids = [
        start + (end - start) * (torch.arange(cells * samples) + 0.5) / (cells * samples)
        for start, end in ((x0, x1), (y0, y1))
    ]
    scales = [2 / (size - 1) for size in (features.shape[3], features.shape[2])]
    y, x = torch.meshgrid(grids[1] * scales[1] - 1, grids[0] * scales[0] - 1, indexing="ij")
    grid = torch.stack((x, y), -1).unsqueeze(0)
    return functional.avg_pool2d(functional.grid_sample(features, grid, align_corners=True), samples)


def regions_of_features():
    features = torch.randn(2, 3, 9, 7, generator=_numbers)
    rois = torch.tensor([[1, 2.0, 4, 10, 12], [0, 4, 2, 8, 14.0]])
    # Each mode: what it adds to the corners of a region at the scale of the features.
    for mode, first, last in ((0, 0, 0), (1, 0, 0.5), (2, -0.5, -0.5), (3, -0.5, -0.5)):
        for samples in (2, 0):
            found = npu().npu_roi_align(features.npu(), rois.npu(), 0.5, 2, 2, samples, mode)
            leaf = features.clone().requires_grad_()
            wanted = []
            for image, *corners in rois.tolist():
                region = [corner * 0.5 + (first if at < 2 else last) for at, corner in enumerate(corners)]
                sides = (region[2] - region[0], region[3] - region[1])
                if samples == 0 and (int(-(-sides[0] // 2)) != int(-(-sides[1] // 2))):
                    continue  # its cells have other numbers of samples across and down
                number = samples or int(-(-sides[0] // 2))
                wanted.append((len(wanted), resampled(leaf[int(image)].unsqueeze(0), region, 2, number)[0]))
            for at, one in wanted:
                torch.testing.assert_close(found[at].cpu(), one.detach(), msg=f"mode {mode}, {samples} samples")
            if samples:
                torch.stack([one for _, one in wanted]).backward(found.cpu())
                back = npu().npu_roi_alignbk(found, rois.npu(), features.shape, 2, 2, 0.5, samples, mode)
                torch.testing.assert_close(back.cpu(), leaf.grad, msg=f"the gradient of mode {mode}")


def small_and_outer_regions():
    features = torch.ones(1, 1, 4, 4).npu()
    rois = torch.tensor([[0, 1.0, 1, 1, 1], [0, 2, 2, 12, 12], [0, 3.5, 3.5, 4.5, 4.5]]).npu()
    found = npu().npu_roi_align(features, rois, 1.0, 1, 1, 2, 0).flatten().tolist()
    # Samples at 4.5 and 9.5: beyond the size of 4; the last one's at 3.75 and 4.25.
    assert found == [1.0, 0.0, 0.25], found


def boxes_and_offsets():
    # The documented examples; float32 has the rounding of float16 there.
    anchors = torch.tensor([[1.0, 2, 3, 4], [3, 4, 5, 6]]).npu()
    others = torch.tensor([[5.0, 6, 7, 8], [7, 8, 9, 6]]).npu()
    found = npu().npu_bounding_box_encode(anchors, others, 0, 0, 0, 0, 0.1, 0.1, 0.2, 0.2).cpu()
    wanted = torch.tensor([[13.328125, 13.328125, 0, 0], [13.328125, 6.6640625, 0, float("nan")]])
    torch.testing.assert_close(found, wanted, rtol=0, atol=0, equal_nan=True)
    found = npu().npu_bounding_box_decode(anchors, others, 0, 0, 0, 0, 1, 1, 1, 1, (10, 10), 0.1)
    torch.testing.assert_close(found.cpu(), torch.tensor([[2.5, 6.5, 9, 9], [9, 9, 9, 9]]))
    flags = npu().npu_anchor_response_flags(anchors, (2, 3), (2, 2), 2)
    assert flags.tolist() == [0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1]


GRADIENTS = [*gradients()]
CHECKS = [Check(one.__name__, one) for one in (regions_of_features, small_and_outer_regions, boxes_and_offsets)]
