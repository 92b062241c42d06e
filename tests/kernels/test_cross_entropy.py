"""cross_entropy and linear_cross_entropy compared with a float64 oracle, and on two ranks with one."""

from __future__ import annotations

import weakref

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from error_bounds import COMPUTED_IN, ELEMENTARY, assert_within, of_exponent
from kernels import oracle
from torch.utils._python_dispatch import TorchDispatchMode

from ascend_adapt.errors import KernelArgumentError, KernelError
from ascend_adapt.kernels import cross_entropy, linear_cross_entropy, requests
from ascend_adapt.kernels.operators.cross_entropy import _reference
from ascend_adapt.kernels.operators.linear_cross_entropy import LinearCrossEntropyCall, _chunks

LABELS = [3, 0, -100, 10, 5, -100, 7]
COLUMNS = 11
FP64 = torch.float64


def labels():
    return torch.tensor(LABELS)


def reduced(losses, grads, reduction, weights):
    """Return the oracle's loss, and its gradient under the gradient ``weights`` of the loss."""
    counted = sum(label != -100 for label in LABELS)
    if reduction == "none":
        return losses, grads * weights[:, None]
    share = 1 / counted if reduction == "mean" else 1.0
    return losses.sum() * share, grads * share * weights


@pytest.mark.parametrize("backend", ["reference", "torch"])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("dtype", [FP64, torch.float32, torch.bfloat16])
def test_it_satisfies_the_contract(dtype, smoothing, reduction, backend):
    if (dtype, backend) == (torch.bfloat16, "torch"):
        backend = "reference"  # the other refuses it
    requests.state({"cross_entropy": backend})
    rng = np.random.default_rng(0)
    logits = torch.from_numpy(rng.standard_normal((7, COLUMNS)) * 5).to(dtype).requires_grad_()
    weights = torch.from_numpy(rng.standard_normal(7)) if reduction == "none" else torch.tensor(0.7).double()
    loss = cross_entropy(logits, labels(), label_smoothing=smoothing, reduction=reduction)
    loss.backward(weights.to(loss.dtype))
    assert loss.dtype == (dtype if dtype == torch.float64 else torch.float32)
    given = logits.detach().double().numpy(), LABELS
    right, grad = reduced(*oracle.cross_entropy(*given, label_smoothing=smoothing), reduction, weights.numpy())
    terms = oracle.cross_entropy_terms(*given, label_smoothing=smoothing)
    loss_terms, grad_terms = reduced(*terms, reduction, np.abs(weights.numpy()))
    computed = (COLUMNS + of_exponent(given[0]) + 2 * ELEMENTARY, COMPUTED_IN[dtype])
    assert_within(loss, right, loss_terms, computed, (len(LABELS), loss.dtype))
    # The incoming gradient is in the dtype of the loss.
    assert_within(logits.grad, grad, grad_terms, computed, (1, loss.dtype), (1, dtype))


@pytest.mark.parametrize(("tokens", "sizes"), [(1000, [512, 488]), (896, [896]), (0, [])])
def test_chunks_are_of_nearly_one_size(tokens, sizes, monkeypatch):
    """A short last chunk would not fill a device. At most 1000 tokens here, rounded down to tiles of 128."""
    monkeypatch.setattr(_chunks, "_CHUNK_BYTES", 1000 * 4 * COLUMNS)
    call = LinearCrossEntropyCall(
        torch.zeros(tokens, 2), torch.zeros(COLUMNS, 2), torch.zeros(tokens, dtype=torch.long)
    )
    found = _chunks._chunks(call)
    assert [chunk.rows.stop - chunk.rows.start for chunk in found] == sizes


@pytest.mark.parametrize("chunk", [1, 3, 100])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_the_linear_form_equals_cross_entropy_of_the_logits(smoothing, reduction, chunk, monkeypatch):
    monkeypatch.setattr(_chunks, "_CHUNK_BYTES", chunk * 4 * COLUMNS)
    rng = np.random.default_rng(1)
    hidden, weight, bias = (
        torch.from_numpy(rng.standard_normal(shape)).requires_grad_() for shape in ((7, 4), (COLUMNS, 4), (COLUMNS,))
    )
    weights = torch.from_numpy(rng.standard_normal(7)) if reduction == "none" else torch.tensor(0.7).double()
    loss = linear_cross_entropy(hidden, weight, labels(), bias=bias, label_smoothing=smoothing, reduction=reduction)
    loss.backward(weights)
    h, w, b = (each.detach().numpy() for each in (hidden, weight, bias))
    given = h @ w.T + b, LABELS
    right, grad = reduced(*oracle.cross_entropy(*given, label_smoothing=smoothing), reduction, weights.numpy())
    terms = oracle.cross_entropy_terms(*given, label_smoothing=smoothing)
    loss_terms, grad_terms = reduced(*terms, reduction, np.abs(weights.numpy()))
    sizes = np.abs(h) @ np.abs(w).T + np.abs(b)
    # The logits are sums themselves, whose error exp magnifies in the gradient.
    computed = (COLUMNS + 4 * of_exponent(sizes) + 2 * ELEMENTARY, FP64)
    assert_within(loss, right, loss_terms + sizes.sum(), computed, (len(LABELS), FP64))
    for mine, true, size in (
        (hidden.grad, grad @ w, grad_terms @ np.abs(w)),
        (weight.grad, grad.T @ h, grad_terms.T @ np.abs(h)),
        (bias.grad, grad.sum(0), grad_terms.sum(0)),
    ):
        assert_within(mine, true, size, computed, (COLUMNS, FP64))


@pytest.mark.parametrize("form", ["logits", "linear"])
def test_the_reference_holds_few_logits_in_fp32(form, monkeypatch):
    """Results do not depend on the rows computed at a time; of 16-bit logits only these rows are converted."""
    targets, logits = torch.randint(50, (40,)), torch.randn(40, 50).bfloat16()
    hidden, weight = torch.randn(40, 8).bfloat16(), torch.randn(50, 8).bfloat16()
    found = []
    for rows in (40, 3):
        monkeypatch.setattr(_reference, "_PIECE", 50 * rows)
        inputs = [each.clone().requires_grad_() for each in ([logits] if form == "logits" else [hidden, weight])]
        with _Sizes() as wide:
            loss = (cross_entropy if form == "logits" else linear_cross_entropy)(*inputs, targets)
            loss.backward()
        assert wide.most == max(50 * rows, weight.numel() if form == "linear" else 0)
        found.append((loss, *(each.grad for each in inputs)))
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))


class _Sizes(TorchDispatchMode):
    """The number of elements of the largest fp32 tensor that an operator returns."""

    most = 0

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        result = operator(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor) and result.dtype == torch.float32:
            self.most = max(self.most, result.numel())
        return result


@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_a_loss_scale_reaches_the_linear_form_in_fp16(reduction):
    # Divided by the number of tokens, the probabilities of all but ten words underflow in fp16.
    torch.manual_seed(0)
    targets, scale = torch.randint(10, (512,)), 2.0**10
    hidden, weight = torch.randn(512, 8).half(), (torch.randn(2000, 8) / 4).half()
    bias = torch.where(torch.arange(2000) < 10, 0.0, -9.0).half()
    found = [each.clone().requires_grad_() for each in (hidden, weight, bias)]
    (linear_cross_entropy(*found[:2], targets, bias=found[2], reduction=reduction).mean() * scale).backward()
    right = [each.double().requires_grad_() for each in (hidden, weight, bias)]
    (torch.nn.functional.cross_entropy(right[0] @ right[1].T + right[2], targets) * scale).backward()
    for mine, true in ((one.grad.double(), other.grad) for one, other in zip(found, right, strict=True)):
        assert (mine - true).norm() < 5e-3 * true.norm()
    others = right[1].grad[10:]
    assert (found[1].grad.double()[10:] - others).norm() < 5e-2 * others.norm()


def test_the_linear_form_never_has_all_logits(monkeypatch):
    monkeypatch.setattr(_chunks, "_CHUNK_BYTES", 4 * 50 * 8)
    seen = []
    real = _chunks._logits
    monkeypatch.setattr(_chunks, "_logits", lambda *given: seen.append(real(*given)) or seen[-1])
    hidden = torch.randn(100, 16, requires_grad=True)
    linear_cross_entropy(hidden, torch.randn(50, 16), torch.randint(50, (100,))).backward()
    assert len(seen) == 13
    assert max(len(logits) for logits in seen) == 8


def test_the_linear_form_may_be_run_backward_twice():
    hidden, weight = torch.randn(5, 4, requires_grad=True), torch.randn(9, 4, requires_grad=True)
    loss = linear_cross_entropy(hidden, weight, torch.tensor([0, 1, 2, 3, 8]))
    loss.backward(retain_graph=True)
    once = hidden.grad.clone()
    loss.backward()
    torch.testing.assert_close(hidden.grad, 2 * once)


def test_the_linear_form_computes_no_gradient_under_no_grad(monkeypatch):
    asked = []
    monkeypatch.setattr(_chunks._Gradients, "add", lambda *_: asked.append(1))
    hidden, weight = torch.randn(3, 4, requires_grad=True), torch.randn(5, 4, requires_grad=True)
    with torch.no_grad():
        linear_cross_entropy(hidden, weight, torch.tensor([0, 1, 2]))
    assert not asked
    linear_cross_entropy(hidden, weight, torch.tensor([0, 1, 2]))
    assert asked


@pytest.mark.parametrize("reduction", ["mean", "none"])
@pytest.mark.parametrize("form", ["logits", "linear"])
def test_double_backward_is_refused(form, reduction):
    """A gradient penalty that is added to the loss would silently have no effect."""
    requests.state({"cross_entropy": "reference"})
    x, weight, labels = torch.randn(3, 4, requires_grad=True), torch.randn(5, 4), torch.tensor([0, 1, 2])
    if form == "linear":
        loss = linear_cross_entropy(x, weight, labels, reduction=reduction).sum()
    else:
        loss = cross_entropy(x @ weight.t(), labels, reduction=reduction).sum()
    (of_x,) = torch.autograd.grad(loss, x, create_graph=True)
    with pytest.raises(KernelError, match="its gradient was differentiated"):
        (loss + of_x.square().sum()).backward()


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # torch's compiler does
def test_compiled_code_has_the_same_gradient():
    """Its backward is traced, including its decorators."""
    logits, labels = torch.randn(3, 5).bfloat16(), torch.tensor([0, 1, 4])
    compiled = torch.compile(lambda x: cross_entropy(x, labels), backend="aot_eager", fullgraph=True)
    grads = []
    for run in (lambda x: cross_entropy(x, labels), compiled):
        leaf = logits.clone().requires_grad_()
        run(leaf).backward()
        grads.append(leaf.grad)
    torch.testing.assert_close(*grads)


def test_with_all_tokens_ignored_the_mean_is_nan_and_its_gradient_zero():
    logits = torch.randn(2, 5, requires_grad=True)
    for loss in (
        cross_entropy(logits, torch.tensor([-100, -100])),
        linear_cross_entropy(logits, torch.randn(7, 5), torch.tensor([-100, -100])),
    ):
        assert loss.isnan()
        loss.backward()
        assert logits.grad.eq(0).all()
    assert cross_entropy(logits, torch.tensor([-100, -100]), reduction="sum") == 0


def test_batches_keep_their_shape():
    logits, targets = torch.randn(2, 3, 5), torch.randint(5, (2, 3))
    assert cross_entropy(logits, targets, reduction="none").shape == (2, 3)
    assert linear_cross_entropy(logits, torch.randn(9, 5), targets, reduction="none").shape == (2, 3)


def _rank(rank, path, results, all_received):
    dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=2)
    torch.manual_seed(0)
    hidden, weight = torch.randn(7, 4, dtype=torch.float64), torch.randn(12, 4, dtype=torch.float64)
    hidden.requires_grad_()
    mine = weight[rank * 6 : rank * 6 + 6].clone().requires_grad_()
    loss = linear_cross_entropy(hidden, mine, labels(), label_smoothing=0.1, group=dist.group.WORLD)
    loss.backward()
    logits = (hidden.detach() @ mine.detach().T).requires_grad_()
    plain = cross_entropy(logits, labels(), label_smoothing=0.1, group=dist.group.WORLD, reduction="none")
    plain.sum().backward()
    results.put((rank, *(each.detach().numpy() for each in (loss, hidden.grad, mine.grad, plain, logits.grad))))
    all_received.wait(60)  # a rank that ends early breaks the connection that the other still uses
    dist.destroy_process_group()


def test_a_vocabulary_split_over_two_ranks_gives_the_same_results(tmp_path):
    context = mp.get_context("spawn")
    results, all_received = context.Queue(), context.Event()
    arguments = (str(tmp_path / "store"), results, all_received)
    ranks = mp.start_processes(_rank, arguments, 2, join=False, start_method="spawn")
    received = sorted((results.get(timeout=120) for _ in range(2)), key=lambda one: one[0])
    all_received.set()
    while not ranks.join():
        pass
    torch.manual_seed(0)
    hidden, weight = (torch.randn(size, 4, dtype=torch.float64).requires_grad_() for size in (7, 12))
    loss = torch.nn.functional.cross_entropy(hidden @ weight.T, labels(), label_smoothing=0.1)
    loss.backward()
    logits = (hidden @ weight.T).detach().requires_grad_()
    plain = torch.nn.functional.cross_entropy(logits, labels(), label_smoothing=0.1, reduction="none")
    plain.sum().backward()
    for rank, *found in received:
        mine = slice(rank * 6, rank * 6 + 6)
        for value, right in zip(
            found, (loss.detach(), hidden.grad, weight.grad[mine], plain.detach(), logits.grad[:, mine]), strict=True
        ):
            np.testing.assert_allclose(value, right.numpy(), atol=1e-12)


@pytest.mark.parametrize(
    ("targets", "given", "words"),
    [
        (torch.tensor([1, 2, 3]), {}, "labels: has shape [3], logits [2, 5] requires [2]"),
        (torch.tensor([1.0, 2.0]), {}, "labels: is torch.float32 [2], expected int64 [2]"),
        (torch.tensor([1, 5]), {}, "labels: hold 5, expected 0 to 4, or -100 to ignore a token"),
        (torch.tensor([1, -1]), {}, "labels: hold -1"),
        (torch.tensor([1, 2]), {"reduction": "average"}, "reduction='average': expected mean, sum, none"),
        (torch.tensor([1, 2]), {"label_smoothing": 2.0}, "label_smoothing=2.0: expected 0 to 1"),
        (np.array([1, 2]), {}, "labels: is ndarray, expected int64 [2]"),
        (torch.tensor([1, 2]), {"label_smoothing": "a"}, "label_smoothing: is 'a', expected a number"),
        (torch.tensor([1, 2]), {"ignore_index": 1.5}, "ignore_index=1.5: expected an int"),
        (torch.tensor([1, 2]), {"vocab_range": 5}, "vocab_range=5: expected"),
        (torch.tensor([1, 2]), {"vocab_range": (5, 10)}, "vocab_range=(5, 10): given without a group, expected None"),
    ],
)
def test_wrong_arguments_are_refused(targets, given, words):
    with pytest.raises(KernelArgumentError) as caught:
        cross_entropy(torch.randn(2, 5), targets, **given)
    assert words in str(caught.value)


def test_no_vocabulary_and_no_axis_are_refused():
    with pytest.raises(KernelArgumentError, match=r"logits \[2, 0\]: a vocabulary of 0"):
        cross_entropy(torch.randn(2, 0), torch.tensor([-100, -100]))
    with pytest.raises(KernelArgumentError, match=r"logits: has shape \[\], expected \[\.\.\., V\]"):
        cross_entropy(torch.tensor(1.0), torch.tensor(0))


def test_the_linear_form_refuses_a_transposed_weight():
    with pytest.raises(KernelArgumentError, match=r"hidden \[2, 5\], weight \[5, 9\]: expected \[\.\.\., H\]"):
        linear_cross_entropy(torch.randn(2, 5), torch.randn(5, 9), torch.tensor([1, 2]))


def test_the_logits_of_a_chunk_are_freed_before_those_of_the_next(monkeypatch):
    monkeypatch.setattr(_chunks, "_CHUNK_BYTES", 4 * COLUMNS)  # one token
    alive, most = weakref.WeakSet(), []
    logits_of = _chunks._logits

    def counted(*inputs):
        most.append(len(alive))
        logits = logits_of(*inputs)
        alive.add(logits)
        return logits

    monkeypatch.setattr(_chunks, "_logits", counted)
    hidden, weight = torch.randn(len(LABELS), 8, requires_grad=True), torch.randn(COLUMNS, 8, requires_grad=True)
    for reduction in ("mean", "none"):
        linear_cross_entropy(hidden, weight, labels(), reduction=reduction).sum().backward()
    assert len(most) == 3 * len(LABELS)  # of "none" backward computes them again
    assert max(most) == 0
