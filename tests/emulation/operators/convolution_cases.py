"""Convolutions, norms, activations and slices under torch_npu's own names."""

from __future__ import annotations

import torch
from emulation.operators.case import Check, Gradient
from torch.nn import functional

_numbers = torch.Generator().manual_seed(12)


def normal(*size, dtype=torch.float32):
    return torch.randn(size, generator=_numbers).to(dtype)


def npu():
    import torch_npu

    return torch_npu


def gradients():
    planes, kernel, bias = normal(2, 4, 5, 5), normal(6, 2, 3, 3), normal(6)
    settings = ([1, 1], [1, 1], [1, 1], 2)

    def convolved(x, weight, bias):
        return npu().npu_convolution(x, weight, bias, *settings)

    def convolved_defined(x, weight, bias):
        return functional.conv2d(x, weight, bias, *settings)

    inputs = {"x": planes, "weight": kernel, "bias": bias}
    yield Gradient("npu_convolution", convolved, convolved_defined, inputs)

    def transposed(x, weight, bias):
        return npu().npu_convolution_transpose(x, weight, bias, [1, 1], [0, 0], [1, 1], [1, 1], 2)

    def transposed_defined(x, weight, bias):
        return functional.conv_transpose2d(x, weight, bias, 1, 1, 0, 2)

    inputs = {"x": normal(2, 6, 5, 5), "weight": kernel, "bias": normal(4)}
    yield Gradient("npu_convolution_transpose", transposed, transposed_defined, inputs)

    def added_norm(x, y, gamma, beta):
        return npu().npu_add_layer_norm(x, y, gamma, beta, 1e-5)[0]

    def added_norm_defined(x, y, gamma, beta):
        return functional.layer_norm(x + y, gamma.shape, gamma, beta, 1e-5)

    of_rows = {name: normal(6, 16) for name in "xy"} | {name: normal(16) for name in ("gamma", "beta")}
    yield Gradient("npu_add_layer_norm", added_norm, added_norm_defined, of_rows)

    def deep_norm(x, y, gamma, beta):
        return npu().npu_deep_norm(x, y, beta, gamma, 0.3, 1e-6)[2]

    def deep_norm_defined(x, y, gamma, beta):
        return functional.layer_norm(0.3 * x + y, gamma.shape, gamma, beta, 1e-6)

    yield Gradient("npu_deep_norm", deep_norm, deep_norm_defined, of_rows)

    def swished(x, weight, bias):
        return npu().npu_group_norm_swish(x, 2, weight, bias, eps=1e-5, swish_scale=1.5)[0]

    def swished_defined(x, weight, bias):
        z = functional.group_norm(x, 2, weight, bias, 1e-5)
        return z * torch.sigmoid(1.5 * z)

    inputs = {"x": planes, "weight": normal(4), "bias": normal(4)}
    yield Gradient("npu_group_norm_swish", swished, swished_defined, inputs)
    for left in (False, True):

        def gated(x, left=left):
            return npu().npu_geglu(x, -1, 0, left)[0]

        def gated_defined(x, left=left):
            first, second = x.chunk(2, -1)
            return second * functional.gelu(first) if left else first * functional.gelu(second)

        yield Gradient(f"npu_geglu {left}", gated, gated_defined, {"x": normal(3, 8)})
    yield Gradient("npu_mish", lambda x: npu().npu_mish(x), lambda x: functional.mish(x), {"x": normal(3, 8)})

    def loss(x, labels):
        return npu().npu_softmax_cross_entropy_with_logits(x, labels)

    def loss_defined(x, labels):
        return -(labels * x.log_softmax(1)).sum(1)

    inputs = {"x": normal(4, 6), "labels": normal(4, 6).abs()}
    yield Gradient("npu_softmax_cross_entropy_with_logits", loss, loss_defined, inputs, constant=frozenset({"labels"}))
    for name in ("max", "min"):
        for keepdim in (False, True):

            def extreme(x, name=name, keepdim=keepdim):
                return getattr(npu(), f"npu_{name}")(x, 1, keepdim)[0]

            def extreme_defined(x, name=name, keepdim=keepdim):
                return getattr(x, name)(1, keepdim)[0]

            yield Gradient(f"npu_{name} {keepdim}", extreme, extreme_defined, {"x": normal(3, 4, 5)})


def slices_and_shapes():
    x = normal(4, 5)
    on_npu = x.npu()
    assert npu().npu_slice(on_npu, [1, 1], [2, -1]).cpu().equal(x[1:3, 1:])
    assert npu().npu_indexing(on_npu, [0, 1], [4, 5], [2, 2]).cpu().equal(x[::2, 1::2])
    assert npu().npu_indexing(on_npu, [1, 1], [2, 9], [1, 1], 2, 2, 0, 0, 1).cpu().equal(x[1])
    assert npu().npu_pad(on_npu, [1, 0, 0, 2]).cpu().equal(functional.pad(x, [0, 2, 1, 0]))
    assert npu().npu_broadcast(on_npu[:1], [3, 5]).cpu().equal(x[:1].expand(3, 5))
    assert npu().npu_reshape(on_npu, [2, 10]).cpu().equal(x.reshape(2, 10))
    assert npu().npu_sort_v2(on_npu, 1, True).cpu().equal(x.sort(1, True)[0])
    classes = torch.tensor([0, 2]).npu()
    assert npu().npu_one_hot(classes, -1, 3, 5, 1).tolist() == [[5, 1, 1], [1, 1, 5]]
    assert npu().npu_min(on_npu, 1)[1].dtype == torch.int32
    assert npu().one_(on_npu).cpu().equal(torch.ones(4, 5))
    assert npu().npu_silu_(x.npu()).cpu().allclose(functional.silu(x))


def writes_at_indices():
    cache, new = torch.zeros(2, 1, 6, 3), torch.ones(2, 1, 2, 3)
    written = npu().scatter_update(cache.npu(), torch.tensor([1, 4]).npu(), new.npu(), -2).cpu()
    assert written[0, 0, :, 0].tolist() == [0, 1, 1, 0, 0, 0]
    assert written[1, 0, :, 0].tolist() == [0, 0, 0, 0, 1, 1]
    places = torch.tensor([[0, 1], [2, 0]]).npu()
    found = npu().npu_scatter_nd_update(torch.zeros(3, 2).npu(), places, torch.tensor([5.0, 6.0]).npu())
    assert found.tolist() == [[0, 5], [0, 0], [6, 0]]


def norms_of_sums():
    a, b, gamma = normal(3, 16), normal(3, 16), normal(16)
    y, rstd, total = npu().npu_add_rms_norm(a.npu(), b.npu(), gamma.npu())
    one, other = a.npu(), b.npu()
    assert npu().npu_add_rms_norm_v2(one, other, gamma.npu()).equal(rstd)
    assert one.equal(y)
    assert other.equal(total)
    found = npu().npu_gemma_rms_norm(a.npu(), gamma.npu())[0]
    torch.testing.assert_close(found.cpu(), functional.rms_norm(a, (16,), 1 + gamma, 1e-6))
    planes = normal(2, 4, 3, 3)
    found = npu().npu_group_norm_silu(planes.npu(), None, None, 2)[0]
    torch.testing.assert_close(found.cpu(), functional.silu(functional.group_norm(planes, 2)))


def statistics_of_all_ranks():
    x = normal(4, 3, 2, 5)
    sums = npu().batch_norm_reduce(x.npu(), 1e-5)
    running = [torch.zeros(3).npu(), torch.ones(3).npu()]
    parts, counts = [one.unsqueeze(0) for one in sums], torch.tensor([40.0]).npu()
    mean, invstd = npu().batch_norm_gather_stats_update(x.npu(), *parts, *running, 0.1, 1e-5, counts)
    norm = torch.nn.BatchNorm2d(3)
    norm(x)
    torch.testing.assert_close(running[0].cpu(), norm.running_mean)
    torch.testing.assert_close(running[1].cpu(), norm.running_var)
    torch.testing.assert_close(mean.cpu(), x.mean((0, 2, 3)))
    torch.testing.assert_close(invstd.cpu(), (x.var((0, 2, 3), unbiased=False) + 1e-5).rsqrt())


GRADIENTS = [*gradients()]
CHECKS = [
    Check(one.__name__, one) for one in (slices_and_shapes, writes_at_indices, norms_of_sums, statistics_of_all_ranks)
]
