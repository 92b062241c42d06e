"""The fused Triton kernels against their references; test_triton.py runs this file in Triton's interpreter.

On a machine with a GPU: ``python -m pytest tests/kernels/triton_fused_cases.py`` runs it compiled.
"""

from __future__ import annotations

import math
import weakref

import pytest
import torch
from covering import every_pair

from ascend_adapt.kernels import tensor_lists
from ascend_adapt.kernels.comparison import compare
from ascend_adapt.kernels.dispatch import kernels
from ascend_adapt.kernels.operators.adamw import AdamwCall
from ascend_adapt.kernels.operators.adamw import _triton as adamw
from ascend_adapt.kernels.operators.add_norm import AddNormCall
from ascend_adapt.kernels.operators.add_norm import _triton as add_norm
from ascend_adapt.kernels.operators.bias_dropout_add import BiasDropoutAddCall
from ascend_adapt.kernels.operators.bias_dropout_add import _triton as bias_dropout_add
from ascend_adapt.kernels.operators.gelu import GeluCall
from ascend_adapt.kernels.operators.gelu import _triton as gelu
from ascend_adapt.kernels.operators.l2_norms import L2NormsCall
from ascend_adapt.kernels.operators.l2_norms import _triton as l2_norms
from ascend_adapt.kernels.operators.split_qkv import SplitQkvCall
from ascend_adapt.kernels.partial_sums import sum_over_programs

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
DTYPES = (torch.float32, torch.float16, torch.bfloat16)
SHAPES = [(1, 2), (3, 5, 66), (70, 34), (2, 1030)]


def random(*shape, dtype=torch.float32, grad=True):
    return torch.randn(*shape, device=DEVICE).to(dtype).requires_grad_(grad)


def check(name, call):
    call.check()
    compared = compare(kernels()[name], "triton", call)
    assert compared.agrees, str(compared)


@pytest.mark.parametrize(("dtype", "shape", "approximate"), every_pair(DTYPES, SHAPES, ["none", "tanh"]))
def test_gelu_of_a_sum_with_a_bias(dtype, shape, approximate):
    torch.manual_seed(0)
    check("gelu", GeluCall(random(*shape, dtype=dtype), random(shape[-1], dtype=dtype), approximate))


@pytest.mark.parametrize(
    ("dtype", "shape", "rms", "branch_bias"), every_pair(DTYPES, SHAPES, [False, True], [False, True])
)
def test_add_norm(dtype, shape, rms, branch_bias):
    torch.manual_seed(0)
    x, branch = random(*shape, dtype=dtype), random(*shape, dtype=dtype)
    of_branch, weight, bias = (random(shape[-1], dtype=dtype) for _ in range(3))
    check(
        "add_norm", AddNormCall(x, branch, of_branch if branch_bias else None, weight, None if rms else bias, rms=rms)
    )


def test_add_norm_whose_sum_nobody_uses():
    """The final norm of a model: no gradient of the sum arrives."""
    x, branch, weight = random(6, 40), random(6, 40), random(40)
    call = AddNormCall(x, branch, None, weight, random(40))
    found = torch.autograd.grad(add_norm.run(call)[1].sum(), (x, branch, weight))
    reference = kernels()["add_norm"].backend("reference").implementation()
    right = torch.autograd.grad(reference.run(call)[1].sum(), (x, branch, weight))
    for mine, true in zip(found, right, strict=True):
        torch.testing.assert_close(mine, true)


@pytest.mark.parametrize(("dtype", "shape", "bias"), every_pair(DTYPES, [*SHAPES, (5, 2060)], [False, True]))
def test_bias_dropout_add(dtype, shape, bias):
    torch.manual_seed(0)
    x, branch, of_branch = random(*shape, dtype=dtype), random(*shape, dtype=dtype), random(shape[-1], dtype=dtype)
    check("bias_dropout_add", BiasDropoutAddCall(x, branch, of_branch if bias else None))


def sum_of_add_norm(branch, dropout_p, seed):
    zeros, weight = torch.zeros_like(branch), torch.ones(branch.shape[-1], device=DEVICE)
    return add_norm.run(AddNormCall(zeros, branch, None, weight, dropout_p=dropout_p, seed=seed))[0]


def sum_of_bias_dropout_add(branch, dropout_p, seed):
    return bias_dropout_add.run(BiasDropoutAddCall(torch.zeros_like(branch), branch, None, dropout_p, seed))


SUMS = [sum_of_add_norm, sum_of_bias_dropout_add]


@pytest.mark.parametrize("sum_of", SUMS)
@pytest.mark.parametrize("dropout_p", [0.1, 0.25, 0.9])
def test_dropout(sum_of, dropout_p):
    """Forward and backward drop the same elements, at about the given rate. Another seed drops others."""
    dropped = round(dropout_p * 65536) / 65536
    branch = torch.ones(64, 512, device=DEVICE, requires_grad=True)
    masks = []
    for seed in (5, 6):
        total = sum_of(branch, dropout_p, torch.tensor([seed], device=DEVICE))
        (gradient,) = torch.autograd.grad(total.sum(), branch)
        assert torch.equal(gradient, total.detach())
        assert total.unique().tolist() == [0.0, pytest.approx(1 / (1 - dropped))]
        masks.append(total.detach() == 0)
    assert not torch.equal(*masks)
    assert not torch.equal(*masks[0].chunk(2, 1))
    # A call of Philox draws eight neighbours: each is dropped as often as asked, and each pair as often as by chance.
    eight = torch.cat(masks).reshape(-1, 8).double()
    pairs = eight.T @ eight / len(eight)
    expected = torch.full((8, 8), dropped**2, dtype=torch.float64).fill_diagonal_(dropped)
    deviations = (pairs - expected).abs() / (expected * (1 - expected) / len(eight)).sqrt()
    assert deviations.max() < 5


@pytest.mark.parametrize("sum_of", SUMS)
@pytest.mark.parametrize("width", [2, 5, 66])
def test_dropout_of_rows_whose_width_is_not_a_multiple_of_8(sum_of, width):
    branch = torch.ones(32, width, device=DEVICE, requires_grad=True)
    total = sum_of(branch, 0.5, torch.tensor([3], device=DEVICE))
    (gradient,) = torch.autograd.grad(total.sum(), branch)
    assert torch.equal(gradient, total.detach())
    assert total.unique().tolist() == [0.0, 2.0]
    assert len({tuple(row) for row in total.tolist()}) > 1


@pytest.mark.parametrize("sum_of", SUMS)
def test_dropout_of_nearly_all_elements(sum_of):
    """Rounded to a multiple of 2**-16, the probability stays below 1."""
    total = sum_of(torch.ones(4, 64, device=DEVICE), 1 - 2**-20, torch.tensor([1], device=DEVICE))
    assert total.count_nonzero() == 0


@pytest.mark.parametrize("width", [40, 700])
def test_both_kernels_with_dropout_drop_the_same_elements(width):
    """A mask depends on the seed and the index of an element, not on the tiles of a kernel."""
    branch, seed = torch.ones(70, width, device=DEVICE), torch.tensor([9], device=DEVICE)
    assert torch.equal(*(sum_of(branch, 0.25, seed) for sum_of in SUMS))


def test_the_bias_is_dropped_with_its_branch():
    """The gradient of the bias in x + dropout(branch + bias) is the sum over the kept elements."""
    torch.manual_seed(0)
    x, branch, bias, weights = random(70, 300), random(70, 300), random(300), random(70, 300, grad=False)
    call = BiasDropoutAddCall(x, branch, bias, 0.25, torch.tensor([4], device=DEVICE))
    total = bias_dropout_add.run(call)
    scale = (sum_of_bias_dropout_add(torch.ones_like(branch), 0.25, call.seed)).detach()
    torch.testing.assert_close(total, x + scale * (branch + bias))
    of_x, of_branch, of_bias = torch.autograd.grad((total * weights).sum(), (x, branch, bias))
    assert torch.equal(of_x, weights)
    torch.testing.assert_close(of_branch, scale * weights)
    torch.testing.assert_close(of_bias, (scale * weights).sum(0))


@pytest.mark.parametrize(
    ("dtype", "sizes", "bias"),
    every_pair(DTYPES, [(2, 9, 3, 1, 16), (1, 5, 2, 4, 8), (3, 70, 2, 2, 20)], [True, False]),
)
def test_split_qkv(dtype, sizes, bias):
    torch.manual_seed(0)
    batch, length, groups, shared, wide = sizes
    columns = groups * (shared + 2) * wide
    fused = random(batch, length, columns, dtype=dtype)
    check("split_qkv", SplitQkvCall(fused, groups * shared, groups, random(columns, dtype=dtype) if bias else None))


@pytest.mark.parametrize(
    ("gradient", "copy", "shapes", "rate"),
    every_pair(
        DTYPES,
        [None, torch.bfloat16],
        [[(37, 129), (5,), (9000,), (3, 7, 11)], [(64, 128), (16,)]],
        ["float", "tensor"],
    ),
)
def test_adamw(gradient, copy, shapes, rate):
    torch.manual_seed(0)

    def each(dtype=torch.float32):
        return tuple(random(*shape, dtype=dtype, grad=False) for shape in shapes)

    squares = tuple(one.square() for one in each())
    steps = tuple(torch.tensor(float(count), device=DEVICE) for count in range(len(shapes)))
    lr = 0.01 if rate == "float" else torch.tensor(0.01, device=DEVICE)
    factor = torch.tensor(0.37, device=DEVICE)
    copies = () if copy is None else each(copy)
    call = AdamwCall(each(), each(gradient), each(), squares, steps, lr, 0.9, 0.999, 1e-8, 0.1, False, factor, copies)
    check("adamw", call)


@pytest.mark.parametrize(
    ("gradient", "copy", "shapes"),
    every_pair(DTYPES, [None, torch.bfloat16], [[(37, 129), (5,), (9000,), (3, 7, 11)], [(64, 128), (16,)]]),
)
def test_adamw_that_found_inf_changes_nothing(gradient, copy, shapes):
    def called(found_inf, factor):
        torch.manual_seed(0)
        params, means, squares = (tuple(random(*shape, grad=False) for shape in shapes) for _ in range(3))
        grads = tuple(torch.full_like(one, 2.0).to(gradient) for one in params)
        steps = tuple(torch.tensor(float(count), device=DEVICE) for count in range(len(shapes)))
        copies = () if copy is None else tuple(torch.zeros_like(one, dtype=copy) for one in params)
        squares = tuple(one.square() for one in squares)
        given = (params, grads, means, squares, steps, 0.01, 0.9, 0.999, 1e-8, 0.1, False)
        mark = None if found_inf is None else torch.tensor(found_inf, device=DEVICE)
        call = AdamwCall(*given, torch.tensor(factor, device=DEVICE), copies, mark)
        before = [one.clone() for one in (*params, *means, *squares, *steps, *copies)]
        adamw.run(call)
        return before, [*params, *means, *squares, *steps, *copies]

    def equal(these, those):
        return [torch.equal(one, other) for one, other in zip(these, those, strict=True)]

    for factor in (0.5, float("nan")):
        assert all(equal(*called(1.0, factor)))
    (before, marked), (_, plain) = called(0.0, 0.5), called(None, 0.5)
    assert all(equal(marked, plain))
    assert not any(equal(before, marked))


def test_adamw_finds_gradients_that_have_moved():
    """It keeps the addresses of a call's tensors; gradients are new in each step."""
    param, mean, square = (torch.zeros(40, device=DEVICE) for _ in range(3))
    step = torch.zeros((), device=DEVICE)
    kept = []
    for sign in (1.0, -1.0):
        kept.append(torch.full((40,), sign, device=DEVICE))
        adamw.run(AdamwCall((param,), (kept[-1],), (mean,), (square,), (step,), 0.1, 0.0, 0.0, 1e-8, 0.0))
        assert torch.allclose(
            param, torch.full_like(param, -0.1 if sign > 0 else 0.0), atol=torch.finfo(torch.float32).eps
        )


def test_adamw_keeps_the_addresses_that_a_graph_reads_at_each_replay(monkeypatch):
    """Steps of another shape have gradients elsewhere; their addresses must not replace those of a captured step."""
    param, mean, square = (torch.zeros(40, device=DEVICE) for _ in range(3))
    step = torch.zeros((), device=DEVICE)
    read = []
    monkeypatch.setattr(adamw, "_launch", lambda programs, *given, warps: read.append(weakref.ref(given[0])))
    kept = [torch.ones(40, device=DEVICE) for _ in range(2 * tensor_lists._KEPT)]
    for number, gradient in enumerate(kept):
        monkeypatch.setattr(tensor_lists, "_is_captured", lambda device, number=number: number == 0)
        adamw.run(AdamwCall((param,), (gradient,), (mean,), (square,), (step,), 0.1, 0.0, 0.0, 1e-8, 0.0))
    captured, eager = read[0](), read[1]()
    assert captured.tolist()[1] == kept[0].data_ptr()
    assert eager is None


@pytest.mark.parametrize("shape", [(1, 1, 1), (3, 528, 70), (2, 17, 1030)], ids=str)
def test_partial_sums_are_added_for_each_kind(shape):
    torch.manual_seed(0)
    sums = torch.randn(shape, device=DEVICE)
    for dtypes in ([torch.float32] * shape[0], [torch.bfloat16] * shape[0], [torch.float32, *DTYPES][: shape[0]]):
        found, exact = sum_over_programs(sums, dtypes), sums.double().sum(1)
        assert [each.dtype for each in found] == dtypes
        for each, right in zip(found, exact, strict=True):
            torch.testing.assert_close(each, right.to(each.dtype))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("sizes", [[1], [64, 128], [70_001, 3, 200_000, 0, 65_536]], ids=str)
def test_l2_norms(dtype, sizes):
    torch.manual_seed(0)
    check("l2_norms", L2NormsCall(tuple(random(size, dtype=dtype, grad=False) for size in sizes)))


def test_l2_norms_of_one_element_that_is_not_finite():
    tensors = [random(70_000, grad=False) for _ in range(4)]
    tensors[1][69_999], tensors[2][0] = float("nan"), float("-inf")
    found = l2_norms.run(L2NormsCall(tuple(tensors))).tolist()
    assert [math.isfinite(each) for each in found] == [True, False, False, True]
    assert math.isnan(found[1])
    assert math.isinf(found[2])


def test_what_they_do_not_take():
    assert "without a bias" in gelu.supports(GeluCall(torch.zeros(2, 2)))
    double = torch.zeros(2, 2, dtype=torch.float64)
    assert "float64" in gelu.supports(GeluCall(double, double[0]))
    assert "float64" in add_norm.supports(AddNormCall(double, double, None, double[0]))
    assert "float64" in bias_dropout_add.supports(BiasDropoutAddCall(double, double))
    assert "empty" in bias_dropout_add.supports(BiasDropoutAddCall(torch.zeros(0, 2), torch.zeros(0, 2)))
    assert "float64" in l2_norms.supports(L2NormsCall((double,)))
    assert "contiguous" in l2_norms.supports(L2NormsCall((torch.zeros(2, 3).T,)))
    assert "no rows" in add_norm.supports(AddNormCall(torch.zeros(0, 2), torch.zeros(0, 2), None, torch.zeros(2)))
