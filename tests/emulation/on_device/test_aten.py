"""aten operators on npu tensors: values of the CPU, rules of torch_npu."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from error_bounds import ELEMENTARY, assert_within
from torch.nn import functional
from torch.testing._internal.two_tensor import TwoTensor

from ascend_adapt.emulation import report
from ascend_adapt.errors import OperatorMissing

NPU, CPU = torch.device("npu:0"), torch.device("cpu")


def counted(kind, call):
    """Return what a call adds to one of the counters."""
    counts = getattr(report.tally, kind)
    before = dict(counts)
    call()
    return {name: count - before.get(name, 0) for name, count in counts.items() if count != before.get(name, 0)}


def on_both(call, *shapes, dtype=torch.float32):
    """Return results and gradients of a call, on the CPU and on the device."""
    found = []
    for device in ("cpu", NPU):
        generator = torch.Generator().manual_seed(0)
        inputs = [torch.randn(shape, generator=generator).to(dtype).to(device).requires_grad_() for shape in shapes]
        result = call(*inputs)
        result.float().square().sum().backward()
        found.append([one.detach().cpu() for one in (result, *(one.grad for one in inputs))])
    return found


@pytest.mark.parametrize(
    ("call", "shapes"),
    [
        (lambda x, y: x @ y, [(3, 4), (4, 5)]),
        (lambda x, y: x @ y, [(2, 3, 4), (4, 5)]),
        (lambda x, y: x @ y, [(2, 1, 3, 4), (5, 4, 2)]),
        (lambda x, y: x @ y, [(4,), (2, 4, 3)]),
        (lambda x, y: x @ y, [(2, 3, 4), (4,)]),
        (lambda x, y: x @ y, [(4,), (4,)]),
        (lambda x, w: functional.layer_norm(x, (4,), w), [(3, 4), (4,)]),
        (lambda x: functional.gelu(x, approximate="tanh"), [(3, 4)]),
        (lambda x: x.softmax(-1).log_softmax(0), [(3, 4)]),
        (lambda x, w: functional.conv2d(x, w, groups=2), [(1, 2, 5, 5), (2, 1, 3, 3)]),
        (lambda x: x[:, [0, 2]].cumsum(0), [(3, 4)]),
        (lambda x: torch.where(x > 0, x, x * 0.1).sort(-1).values, [(3, 4)]),
        (lambda x: functional.silu(x).contiguous().permute(1, 0).clone(), [(3, 4)]),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_values_and_gradients_are_the_cpus(call, shapes, dtype):
    expected, found = on_both(call, *shapes, dtype=dtype)
    for one, other in zip(expected, found, strict=True):
        # The longest sum, in the weight gradient of a convolution, has 25 terms; the terms of a gradient partly cancel.
        assert_within(other, one, 2 * one.abs().max(), (2 * 25 + ELEMENTARY, torch.float32), (4, dtype))


@pytest.mark.parametrize("groups", [1, 3])
def test_weight_gradients_of_convolutions_are_summed_in_float32(groups):
    ones = torch.ones(4096, 3, 4, 4, dtype=torch.float16, device=NPU)
    weight = torch.ones(3, 3 // groups, 1, 1, dtype=torch.float16, device=NPU, requires_grad=True)
    functional.conv2d(ones / 4, weight, groups=groups).backward(ones)
    assert set(weight.grad.flatten().tolist()) == {4096 * 4 * 4 / 4}  # the CPU's kernel of float16 gets half of it


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64, torch.uint8, torch.float32])
def test_a_histogram_of_integers(dtype):
    # transformers' mixtures of experts count each expert's tokens in this way, on every device but the CPU.
    experts = torch.tensor([0, 3, 3, 1, 4, 3])
    found = torch.histc(experts.to(NPU, dtype), bins=4, min=0, max=3)
    assert (found.device, found.dtype, found.tolist()) == (NPU, dtype, [1, 1, 0, 3])
    out = torch.empty(0, dtype=dtype, device=NPU)
    assert torch.histc(experts.to(NPU, dtype), 4, 0, 3, out=out) is out
    assert out.tolist() == [1, 1, 0, 3]


@pytest.mark.parametrize("causal", [False, True])
def test_attention_goes_through_torch_npus_fused_operator(causal):
    found = []

    def attend(q, k, v):
        return functional.scaled_dot_product_attention(q, k, v, is_causal=causal)

    operators = counted("operators", lambda: found.extend(on_both(attend, *[(2, 3, 16, 8)] * 3)))
    assert len([name for name in operators if name.startswith("npu::npu_fusion_attention")]) == 2
    for one, other in zip(*found, strict=True):
        assert_within(other, one, 2 * one.abs().max(), (2 * (16 + 16 + 2 * ELEMENTARY), torch.float32))


def test_an_optimizer_step_equals_the_cpus():
    found = []
    for device in ("cpu", NPU):
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1)).to(device)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        data = torch.linspace(-1, 1, 12).view(3, 4).to(device)
        for _ in range(3):
            optimizer.zero_grad()
            model(data).square().mean().backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            optimizer.step()
        found.append([parameter.detach().cpu() for parameter in model.parameters()])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(other, one, rtol=1e-6, atol=1e-7)


def test_in_place_and_out():
    tensor = torch.ones(3, device=NPU)
    assert tensor.add_(1) is tensor
    out = torch.empty(0, device=NPU)
    assert torch.add(tensor, tensor, out=out) is out
    assert out.tolist() == [4.0] * 3
    view = torch.zeros(2, 3, device=NPU)
    torch.mul(tensor, 2, out=view[1])
    assert view.tolist() == [[0.0] * 3, [4.0] * 3]
    torch._foreach_add_([tensor, out], 1)
    assert (tensor.tolist(), out.tolist()) == ([3.0] * 3, [5.0] * 3)
    maximum, index = torch.max(view, 1, out=(torch.empty(0, device=NPU), torch.empty(0, device=NPU, dtype=torch.long)))
    assert (maximum.tolist(), index.tolist()) == ([0.0, 4.0], [0, 0])


def test_a_range_keeps_the_shape_of_its_output():
    for fill, last in ((torch.logspace, 8.0), (torch.linspace, 3.0)):
        block = torch.zeros(2, 3, device=NPU)
        fill(0, 3, 4, **({"base": 2} if fill is torch.logspace else {}), out=block.narrow(1, 1, 2))
        assert (block[:, 0].tolist(), block[1, 2].item()) == ([0.0, 0.0], pytest.approx(last))


def test_16_bits_are_summed_in_float32():
    def gradients(device, dtype):
        torch.manual_seed(0)
        image, vector = (torch.rand(4, 8, 6, 6, 6), torch.rand(6))
        weight, grid = torch.rand(8, 8, 3, 3, 3), torch.rand(4, 1, 1, 1, 3)
        inputs = [one.half().to(device, dtype).requires_grad_() for one in (image, vector, weight, grid)]
        image, vector, weight, grid = inputs
        total = (image @ vector).sum() + functional.conv3d(image, weight).sum()
        (total + functional.grid_sample(image, grid, align_corners=False).sum()).backward()
        return [one.grad for one in inputs]

    for found, wanted in zip(gradients(NPU, torch.float16), gradients("cpu", torch.float32), strict=True):
        # Each of the three gradients is rounded to float16, and so are their sums.
        torch.testing.assert_close(found.float().cpu(), wanted, rtol=4 * 2.0**-11, atol=2.0**-10)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_16_bit_losses_products_and_norms(dtype):
    eps, channel = torch.finfo(dtype).eps, torch.rand(3)
    scores, image = torch.randn(4000, 10).to(dtype), torch.rand(8, 3, 40, 40).to(dtype)
    target, factors = torch.randint(0, 10, (4000,)), (1 + torch.rand(16, 8) / 2).to(dtype)

    def computed(device, dtype):
        given = [one.to(device, dtype).requires_grad_() for one in (scores, image)]
        loss = functional.nll_loss(given[0], target.to(device))
        normed = functional.batch_norm(given[1], None, None, channel.to(device), channel.to(device), training=True)
        wider = functional.interpolate(given[1], scale_factor=2, mode="bilinear")
        (loss + normed.square().sum() + wider.sum()).backward()
        return [loss, wider, torch.prod(factors.to(device, dtype), 0, dtype=dtype), normed, given[0].grad]

    for found, wanted in zip(computed(NPU, dtype), computed("cpu", torch.float32), strict=True):
        torch.testing.assert_close(found.float().cpu(), wanted, rtol=eps, atol=eps)


@pytest.mark.parametrize("lengths", [[5, 3, 2], [5, 5, 5]])
@pytest.mark.parametrize(("layers", "bidirectional"), [(1, False), (1, True), (2, False)])
def test_an_lstm_over_packed_sequences(layers, bidirectional, lengths):
    torch.manual_seed(0)
    of_cpu = torch.nn.LSTM(3, 4, layers, bidirectional=bidirectional)
    of_npu = copy.deepcopy(of_cpu).to(NPU)
    sequences = torch.randn(5, 3, 3)
    found = []
    for lstm, device in ((of_cpu, "cpu"), (of_npu, NPU)):
        given = sequences.detach().to(device).requires_grad_()
        output, (hidden, cell) = lstm(torch.nn.utils.rnn.pack_padded_sequence(given, torch.tensor(lengths)))
        padded, _ = torch.nn.utils.rnn.pad_packed_sequence(output)
        (padded.square().sum() + (0 if bidirectional else hidden[-1].sum() + cell[-1].sum())).backward()
        slopes = [one.grad for one in lstm.parameters()]
        if len(set(lengths)) == 1:  # torch takes the gradient of a packed sequence, but torch_npu's has its padding
            slopes.append(given.grad)
        found.append([one.detach().cpu() for one in (padded, hidden, cell, *slopes)])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(other, one)


def test_bits_in_place_with_a_number():
    bits = torch.tensor([1, 4], device=NPU)
    bits |= 2
    bits &= 6
    bits ^= 1
    assert bits.tolist() == [3, 7]


def test_operators_that_torch_composes_have_gradients():
    matrix = torch.randn(3, 3).requires_grad_()
    found = []
    for device in ("cpu", NPU):
        moved = matrix.detach().to(device).requires_grad_()
        torch.linalg.slogdet(moved)[1].backward()
        slope = moved.grad.clone()
        (moved * 2).fill_diagonal_(5.0).sum().backward()
        grid = torch.ones(1, 2, 3, device=device).requires_grad_()
        functional.affine_grid(grid, [1, 1, 4, 4], align_corners=False).square().sum().backward()
        mean = torch.nanmean(moved.detach(), out=torch.empty((), device=device))
        found.append([one.cpu() for one in (slope, moved.grad, grid.grad, mean)])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(other, one)


def test_hardsigmoid_takes_integers():
    assert functional.hardsigmoid(torch.tensor([-9, 0, 9], dtype=torch.int32, device=NPU)).tolist() == [0, 0, 1]


def test_a_profiler_records_the_copy_that_makes_a_tensor_contiguous():
    with torch.autograd.profiler.profile(use_device="npu") as profile:
        torch.ones(2, 3, device=NPU).t().contiguous()
    assert "aclnnInplaceCopy" in {event.name for event in profile.function_events}


def test_subtraction_of_lists_rounds_as_a_device_does():
    one, other = torch.randn(2, 1000).half()
    (found,) = torch._foreach_sub([one.to(NPU)], [other.to(NPU)], alpha=5.0)
    assert found.cpu().equal(one - other * 5)
    one, other = one.bfloat16(), other.bfloat16()
    tensors = [one.to(NPU)]
    torch._foreach_sub_(tensors, [other.to(NPU)], alpha=5.0)
    assert tensors[0].cpu().equal(torch.sub(one.float(), other.float(), alpha=5.0).bfloat16())


def test_statistics_of_a_batch_norm_in_evaluation_have_a_value_for_each_channel():
    image, channel = torch.randn(3, 2, 4, device=NPU), torch.ones(2, device=NPU)
    found = torch.native_batch_norm(image, channel, channel, channel, channel, False, 0.1, 1e-5)
    assert [one.shape for one in found] == [(3, 2, 4), (2,), (2,)]


def test_replays_of_a_graph_draw_the_numbers_that_eager_code_would():
    def drawn():
        return torch.rand(8, device=NPU)

    torch.npu.manual_seed(1)
    eager = [drawn().tolist() for _ in range(2)]
    torch.npu.manual_seed(1)
    graph = torch.npu.NPUGraph()
    with torch.npu.graph(graph):
        result = drawn()
    replayed = []
    for _ in range(2):
        graph.replay()
        replayed.append(result.tolist())
    assert replayed == eager


def test_replays_follow_states_of_the_generator_that_captured_code_sets():
    def drawn():
        state = torch.npu.get_rng_state()
        first = torch.rand(8, device=NPU)
        torch.npu.set_rng_state(state)
        return first, torch.rand(8, device=NPU)

    torch.npu.manual_seed(1)
    eager = [[one.tolist() for one in drawn()] for _ in range(2)]
    torch.npu.manual_seed(1)
    graph = torch.npu.NPUGraph()
    with torch.npu.graph(graph):
        results = drawn()
    replayed = []
    for _ in range(2):
        graph.replay()
        replayed.append([one.tolist() for one in results])
    assert replayed == eager


def test_a_capture_keeps_its_seed():
    torch.npu.manual_seed(1)
    with pytest.raises(RuntimeError, match="only if new seed is the same"), torch.npu.graph(torch.npu.NPUGraph()):
        torch.npu.manual_seed(2)
    assert torch.npu.initial_seed() == 1


def test_a_list_of_out_arguments():
    outs = [torch.zeros(2, device=NPU), torch.zeros(1, device=NPU)]
    torch.split_with_sizes_copy(torch.arange(3.0, device=NPU), [2, 1], out=outs)
    assert [one.tolist() for one in outs] == [[0.0, 1.0], [2.0]]


def test_views_in_place():
    tensor = torch.arange(6.0, device=NPU).view(2, 3)
    assert (tensor.clone().transpose_(0, 1).shape, tensor.clone().unsqueeze_(0).shape) == ((3, 2), (1, 2, 3))
    assert torch.rot90(tensor).tolist() == [[2.0, 5.0], [1.0, 4.0], [0.0, 3.0]]


def test_one_hot():
    for backend in ("inductor", "aot_eager"):
        compiled = torch.compile(lambda classes: functional.one_hot(classes, 3) + 1, fullgraph=True, backend=backend)
        assert compiled(torch.tensor([0, 2], device=NPU)).tolist() == [[2, 1, 1], [1, 1, 2]]
    assert functional.one_hot(torch.tensor([0, 2], device=NPU), 3).tolist() == [[1, 0, 0], [0, 0, 1]]


def test_a_compiled_function_keeps_its_filter_of_guards():
    class Step:
        number = 1

    @torch.compile(options={"guard_filter_fn": lambda guards: [False] * len(guards)})
    def added(x):
        return x + Step.number

    assert added(torch.ones(1, device=NPU)).item() == 2
    Step.number = 5
    with torch.compiler.set_stance("fail_on_recompile"):
        assert added(torch.ones(1, device=NPU)).item() == 2


def test_division_has_a_gradient():
    """torch_npu registers a CPU kernel for true_divide, which must not be taken for the device's."""
    tensor = torch.ones(2, device=NPU, requires_grad=True)
    torch.true_divide(tensor, 2).sum().backward()
    assert tensor.grad.tolist() == [0.5, 0.5]


def test_factories_are_on_their_device():
    assert torch.arange(3, device="npu:1").device == torch.device("npu:1")
    with torch.npu.device(1):
        assert torch.ones(2, device="npu").device.index == 1
    assert torch.tensor([1, 2], device=NPU).tolist() == [1, 2]


@pytest.mark.parametrize("stranger", ["cpu", "npu:1"])
def test_tensors_on_two_devices_are_refused_as_on_a_device(stranger):
    with pytest.raises(RuntimeError, match=f"at least two devices, npu:0 and {stranger}!"):
        torch.ones(2, device=NPU) + torch.ones(2, device=stranger)


def test_what_a_device_reads_from_host_memory():
    tensor = torch.arange(4.0, device=NPU)
    assert (tensor * torch.tensor(2.0)).tolist() == [0.0, 2.0, 4.0, 6.0]
    assert tensor[torch.tensor([1, 3])].tolist() == [1.0, 3.0]
    assert tensor.to("npu:1").cpu().to(NPU).equal(tensor)


def test_a_cast_to_float64_gives_float32_as_in_torch_npu():
    assert torch.ones(2, device=NPU).double().dtype == torch.float32


def test_waits_of_the_host_are_counted():
    tensor = torch.arange(4.0, device=NPU)
    assert counted("synchronisations", lambda: tensor + 1) == {}
    assert counted("synchronisations", lambda: tensor.sum().item()) == {"aten::_local_scalar_dense": 1}
    assert counted("synchronisations", lambda: tensor.nonzero()) == {"aten::nonzero": 1}
    assert counted("synchronisations", lambda: tensor.cpu()) == {"copy to the host": 1}


def test_operators_that_torch_npu_runs_on_the_host_are_counted_separately():
    square = torch.eye(3, device=NPU)
    assert counted("on_the_host", lambda: torch.linalg.eigvals(square)) != {}
    assert counted("on_the_host", lambda: functional.gelu(square)) == {}


def test_an_operator_without_a_kernel_fails_at_once_by_name():
    boxes = torch.ones(1, 4, 4, device=NPU)
    with pytest.raises(OperatorMissing, match=r"npu::npu_nms_rotated"):
        torch.ops.npu.npu_nms_rotated(boxes[0], boxes[0, 0], 0.5)
    assert report.tally.missing["npu::npu_nms_rotated"] == 1


@pytest.mark.parametrize(
    ("call", "name", "kind"),
    [
        (lambda x: x.to_sparse_csr(), "aten::_to_sparse_csr", "sparse_csr"),
        (lambda x: torch.quantize_per_tensor(x, 0.1, 0, torch.qint8), "aten::quantize_per_tensor", "quantized"),
    ],
)
def test_a_result_that_is_not_dense_is_refused_by_name(call, name, kind):
    def refused():
        with pytest.raises(
            OperatorMissing, match=f"^{name}: its result is {kind}, expected a dense or sparse_coo tensor"
        ):
            call(torch.ones(2, 2, device=NPU))

    assert counted("missing", refused) == {name: 1}


def test_a_convolution_writes_its_result_in_the_order_of_an_npu():
    """The gelu of a channels-last tensor is refused by torch_npu; that of a convolution, as in ConvNeXt, is not."""
    permuted = torch.randn(1, 2, 2, 4, device=NPU).permute(0, 3, 1, 2)
    with pytest.raises(RuntimeError, match="Only c10::MemoryFormat::Contiguous"):
        functional.gelu(permuted)
    result = functional.conv2d(permuted, torch.ones(4, 4, 1, 1, device=NPU))
    assert result.is_contiguous()
    assert functional.gelu(result).shape == permuted.shape


def test_random_numbers_follow_the_devices_generator():
    torch.npu.manual_seed(3)
    first = torch.rand(4, device=NPU)
    state = torch.npu.get_rng_state()
    second = functional.dropout(torch.ones(64, device=NPU), 0.5)
    torch.npu.set_rng_state(state)
    assert functional.dropout(torch.ones(64, device=NPU), 0.5).equal(second)
    torch.npu.manual_seed(3)
    assert torch.rand(4, device=NPU).equal(first)
    assert not torch.rand(4, device=NPU).equal(first)


def test_the_hosts_random_numbers_are_left_alone():
    torch.manual_seed(0)
    expected = torch.rand(2)
    torch.manual_seed(0)
    torch.rand(5, device=NPU)
    assert torch.rand(2).equal(expected)


def test_a_generator_of_the_host_is_refused():
    with pytest.raises(RuntimeError, match="Expected a 'npu' device type for generator but found 'cpu'"):
        torch.empty(2, device=NPU).normal_(generator=torch.Generator())


@pytest.mark.parametrize("order", [1, 2, 3])
def test_a_norm_is_rounded_once(order):
    x = torch.randn(65536, generator=torch.Generator().manual_seed(0))
    expected = torch.linalg.vector_norm(x.double(), order).float().expand(4)
    on_device = x.to(NPU)
    out = torch.empty((), device=NPU)
    torch.linalg.vector_norm(on_device, order, out=out)
    one, other = torch._foreach_norm([on_device, on_device.view(256, 256)], order)
    found = torch.stack((torch.linalg.vector_norm(on_device, order), out, one, other)).cpu()
    assert found.equal(expected)


def test_operators_of_torch_npus_autograd_accept_subclasses():
    classes = torch.tensor([2, 0], device=NPU)
    hot = functional.one_hot(TwoTensor(classes, classes), 3)
    assert hot.a.tolist() == hot.b.tolist() == [[0, 0, 1], [1, 0, 0]]


def test_normal_numbers_fill_integers():
    x = torch.zeros(64, dtype=torch.int32, device=NPU).normal_(100, 3)
    assert x.unique().numel() > 4
    assert (x - 100).abs().max() < 30
    out = torch.empty(64, device=NPU)
    torch.normal(x.float(), 0.5, out=out)
    assert (out - x).abs().max() < 5


def test_softmax_from_float16_to_float32():
    x = torch.randn(3, 4, generator=torch.Generator().manual_seed(0)).half()
    for function in (torch._softmax, torch._log_softmax):
        expected, found = x.float().requires_grad_(), x.to(NPU).requires_grad_()
        results = function(expected, -1, False), function(found, -1, True)
        for result in results:
            result.square().sum().backward()
        assert results[1].cpu().equal(results[0])
        assert found.grad.cpu().equal(expected.grad.half())


def test_a_power_with_a_list_of_exponents():
    found = torch._foreach_pow(2.0, [torch.arange(2.0, device=NPU), torch.ones(1, device=NPU)])
    assert [one.tolist() for one in found] == [[1, 2], [2]]


def test_scalars_of_a_foreach_operator_may_be_on_the_host():
    ones = [torch.ones(2, device=NPU) for _ in range(2)]
    found = torch._foreach_addcmul(ones, ones, ones, torch.tensor([2.0, 3.0]))
    assert [one.tolist() for one in found] == [[3, 3], [4, 4]]


def test_entries_of_a_list_may_be_on_several_devices():
    mixed = [torch.tensor([-2.0, 3.0], device=NPU), torch.tensor([-4.0])]
    assert [(one.device, one.tolist()) for one in torch._foreach_sign(mixed)] == [(NPU, [-1, 1]), (CPU, [-1])]
    torch._foreach_addcmul_(mixed, mixed, mixed, torch.tensor([1.0, 2.0]))
    assert [(one.device, one.tolist()) for one in mixed] == [(NPU, [2, 12]), (CPU, [28])]
    with pytest.raises(RuntimeError, match="at least two devices, npu:0 and cpu!"):
        torch._foreach_add(mixed, mixed[::-1])


def test_lists_are_copied_between_devices():
    copies = [torch.zeros(2, device=NPU), torch.zeros(1), torch.zeros(1)]
    torch._foreach_copy_(copies, [torch.ones(2), torch.ones(1), torch.ones(1, device=NPU)])
    assert [(one.device, one.tolist()) for one in copies] == [(NPU, [1, 1]), (CPU, [1]), (CPU, [1])]


@pytest.mark.parametrize("place", ["", "_"])
def test_float16_terms_of_a_list_are_rounded_at_every_step(place):
    one, other, divisor = torch.randn(3, 1000, generator=torch.Generator().manual_seed(0)).half()
    for name, term in (("addcmul", other * divisor), ("addcdiv", other / divisor)):
        for scalars in ([3.3], torch.tensor([3.3]).half()):
            tensors = [one.to(NPU)]
            function = getattr(torch, f"_foreach_{name}{place}")
            found = function(tensors, [other.to(NPU)], [divisor.to(NPU)], scalars) or tensors
            assert found[0].cpu().equal(one + term * (3.3 if isinstance(scalars, list) else scalars.item()))


def test_adaptive_average_of_all_elements():
    image = torch.randn(1, 2, 1, 3, 4, generator=torch.Generator().manual_seed(0))
    on_device = image.to(NPU).requires_grad_()
    found = functional.adaptive_avg_pool2d(on_device, 1)
    found.backward(torch.tensor([6.0, 12.0], device=NPU).view(1, 2, 1, 1, 1))
    assert found.cpu().equal(image.mean((-1, -2), keepdim=True))
    assert on_device.grad.cpu().equal(torch.tensor([0.5, 1.0]).view(1, 2, 1, 1, 1).expand_as(image))
    for size, message in ((-1, "must be greater than or equal to 0 but received {-1, -1}"), ((2, 2, 2), "must be 2")):
        with pytest.raises(RuntimeError, match=message):
            functional.adaptive_avg_pool2d(on_device[0], size)


def test_a_sparse_gradient_of_gather():
    index = torch.tensor([[1, 0, 1]], device=NPU)
    x = torch.ones(2, 3, device=NPU, requires_grad=True)
    torch.gather(x, 0, index, sparse_grad=True).sum().backward()
    assert x.grad.is_sparse
    assert x.grad.to_dense().tolist() == [[0, 1, 0], [1, 0, 1]]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("of_weight", [torch.float32, torch.float16])
def test_statistics_and_sums_of_a_layer_norm_are_float32(dtype, of_weight):
    x = (torch.rand(1624, 28, generator=torch.Generator().manual_seed(0)) * 99 + 1).to(dtype)
    weight, wide, ones = torch.ones(28), x.double(), torch.ones(1624, 28)
    given = x.to(NPU), [28], weight.to(NPU, of_weight), weight.to(NPU, of_weight)
    result, *statistics = torch.native_layer_norm(*given, 1e-5)
    assert [one.dtype for one in (result, *statistics)] == [dtype, torch.float32, torch.float32]
    backward, mask = torch.ops.aten.native_layer_norm_backward, [True] * 3
    _, found, _ = backward(ones.to(NPU, dtype), given[0], [28], *statistics, *given[2:], mask)
    assert found.dtype == of_weight
    normalized = torch.nn.functional.layer_norm(wide, [28])
    largest = normalized.abs().sum(0).max()
    assert_within(found.double().cpu(), normalized.sum(0), largest, (1624 + ELEMENTARY, torch.float32), (1, of_weight))


def test_targets_of_a_multilabel_loss_are_int32():
    scores, target = torch.tensor([[0.1, 0.2, 0.4, 0.8]]), torch.tensor([[3, 0, -1, 1]])
    on_device = scores.to(NPU).requires_grad_()
    found = functional.multilabel_margin_loss(on_device, target.to(NPU, torch.int32))
    found.backward()
    assert found.cpu().equal(functional.multilabel_margin_loss(scores, target))
    assert on_device.grad.abs().sum() > 0
    out = torch.empty(0, device=NPU)
    torch._C._nn.multilabel_margin_loss(scores.to(NPU), target.to(NPU, torch.int32), out=out)
    assert out.item() == found.item()


def test_the_largest_of_16_bit_differences():
    x, y = torch.tensor([[1.0, 0.3]]).half(), torch.tensor([[-0.0004, 0.0]]).half()  # 1.0004 is rounded to 1
    on_device = x.to(NPU).requires_grad_()
    torch.cdist(on_device, y.to(NPU), math.inf).backward()
    assert on_device.grad.tolist() == [[1, 0]]


def test_a_number_is_an_operand_with_an_output():
    out = torch.empty(0, dtype=torch.int32, device=NPU)
    torch.bitwise_and(torch.tensor([6, 3], dtype=torch.int32, device=NPU), 2, out=out)
    assert out.tolist() == [2, 2]


def test_an_index_of_put_is_int32():
    x = torch.zeros(3, dtype=torch.int32, device=NPU)
    x.put_(torch.tensor([2, 0], dtype=torch.int32, device=NPU), torch.tensor([5, 6], dtype=torch.int32, device=NPU))
    assert x.tolist() == [6, 0, 5]


def test_an_inverse_of_float16():
    matrix = torch.tensor([[2.0, 0.0], [1.0, 4.0]]).half().to(NPU)
    expected = [[0.5, 0.0], [-0.125, 0.25]]
    assert torch.inverse(matrix).tolist() == expected
    assert torch.inverse(matrix, out=torch.empty_like(matrix)).tolist() == expected
