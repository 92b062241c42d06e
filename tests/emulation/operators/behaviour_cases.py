"""Results of operators without a backward, and properties of all: seeds, memory, devices, refusals."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import torch
from emulation.operators import box_cases, convolution_cases, expert_cases
from emulation.operators.case import Check
from torch.nn import functional

CASES = [*expert_cases.CHECKS, *convolution_cases.CHECKS, *box_cases.CHECKS]


def case(function):
    CASES.append(Check(function.__name__, function))
    return function


def normal(*size, seed=0):
    return torch.randn(size, generator=torch.Generator().manual_seed(seed))


def raised(kind, call, *words):
    try:
        call()
    except kind as error:
        return [word for word in words if word not in str(error)] == []
    return False


def operator(name):
    import torch_npu

    return getattr(torch_npu, name)


def steps_of(optimizer, **options):
    """Return a parameter after three steps of a torch optimizer, and the gradients of these."""
    parameter = torch.nn.Parameter(normal(5, 4))
    chosen = optimizer([parameter], lr=0.01, betas=(0.9, 0.99), eps=1e-8, **options)
    gradients = [normal(5, 4, seed=seed) for seed in (1, 2, 3)]
    for gradient in gradients:
        parameter.grad = gradient.clone()
        chosen.step()
    return parameter.detach(), gradients


@case
def apply_adam_takes_beta_to_the_step():
    # Adam that adds epsilon before the bias correction differs from torch's only by epsilon, so that is tiny here.
    wanted, gradients = steps_of(torch.optim.Adam)
    var, m, v = normal(5, 4).npu(), torch.zeros(5, 4).npu(), torch.zeros(5, 4).npu()
    for step, gradient in enumerate(gradients, 1):
        arguments = (0.9**step, 0.99**step, 0.01, 0.9, 0.99, 1e-8, gradient.npu(), False, False)
        results = operator("npu_apply_adam")(*arguments, out=(var, m, v))
        assert results[0] is var
    torch.testing.assert_close(var.cpu(), wanted, rtol=1e-5, atol=1e-6)


@case
def layer_norm_of_two_dtypes_is_float32():
    x, y = normal(4, 8), normal(4, 8, seed=1)
    found, _, _, total = operator("npu_add_layer_norm")(
        x.half().npu(), y.npu(), torch.ones(8).npu(), torch.zeros(8).npu(), 1e-5, True
    )
    torch.testing.assert_close(total.cpu(), x.half() + y)
    torch.testing.assert_close(found.cpu(), functional.layer_norm(x.half() + y, (8,)))


@case
def apply_adam_w_takes_beta_to_the_step_before():
    wanted, gradients = steps_of(torch.optim.AdamW, weight_decay=0.1)
    var, m, v = normal(5, 4).npu(), torch.zeros(5, 4).npu(), torch.zeros(5, 4).npu()
    for step, gradient in enumerate(gradients):
        powers = (0.9**step, 0.99**step)
        arguments = (*powers, 0.01, 0.1, 0.9, 0.99, 1e-8, gradient.npu(), None, False, False)
        operator("npu_apply_adam_w")(*arguments, out=(var, m, v))
    torch.testing.assert_close(var.cpu(), wanted, rtol=1e-5, atol=1e-6)


@case
def apply_adam_w_amsgrad_and_maximize():
    wanted, gradients = steps_of(torch.optim.AdamW, weight_decay=0.1, maximize=True)
    var, m, v = normal(5, 4).npu(), torch.zeros(5, 4).npu(), torch.zeros(5, 4).npu()
    for step, gradient in enumerate(gradients):
        arguments = (0.9**step, 0.99**step, 0.01, 0.1, 0.9, 0.99, 1e-8, gradient.npu(), torch.zeros(5, 4).npu())
        operator("npu_apply_adam_w")(*arguments, True, True, out=(var, m, v))
    torch.testing.assert_close(var.cpu(), wanted, rtol=1e-5, atol=1e-6)


@case
def bert_apply_adam_clips_to_a_norm_of_1_and_decays_weights():
    var, m, v = normal(5, 4), torch.zeros(5, 4), torch.zeros(5, 4)
    out = (var.npu(), m.npu(), v.npu())
    for seed, norm in ((1, 0.5), (2, 2.5), (3, 1.0)):
        gradient = normal(5, 4, seed=seed)
        results = operator("npu_bert_apply_adam")(0.01, 0.9, 0.99, 1e-6, gradient.npu(), 1.0, norm, 0.1, out=out)
        assert results[0] is out[0]
        gradient = gradient / max(norm, 1.0)
        m, v = m.lerp(gradient, 0.1), v.lerp(gradient.square(), 0.01)
        var = var - 0.01 * (m / (v.sqrt() + 1e-6) + 0.1 * var)
    for found, wanted in zip(out, (var, m, v), strict=True):
        torch.testing.assert_close(found.cpu(), wanted, rtol=1e-5, atol=1e-6)


@case
def bert_apply_adam_of_mbart_is_adamw_with_the_bias_correction_in_the_step_size():
    wanted, gradients = steps_of(torch.optim.AdamW, weight_decay=0.1)
    out = (normal(5, 4).npu(), torch.zeros(5, 4).npu(), torch.zeros(5, 4).npu())
    for step, gradient in enumerate(gradients, 1):
        size = 0.01 * (1 - 0.99**step) ** 0.5 / (1 - 0.9**step)
        operator("npu_bert_apply_adam")(0.01, 0.9, 0.99, 1e-8, gradient.npu(), 5.0, 2.0, 0.1, size, 1, out=out)
    torch.testing.assert_close(out[0].cpu(), wanted, rtol=1e-5, atol=1e-6)


@case
def fused_adamw_of_torch_npu_steps_like_torch():
    import torch_npu

    values = [normal(4, 3), normal(7, seed=1)]
    ours = [torch.nn.Parameter(value.npu()) for value in values]
    theirs = [torch.nn.Parameter(value.clone()) for value in values]
    fused = torch_npu.optim.NpuFusedAdamW(ours, lr=0.01, weight_decay=0.1)
    plain = torch.optim.AdamW(theirs, lr=0.01, weight_decay=0.1)
    for seed in (2, 3):
        for mine, other in zip(ours, theirs, strict=True):
            other.grad = normal(*other.shape, seed=seed)
            # It keeps the gradients of its first step in one buffer, and ignores a tensor assigned as a gradient later.
            if mine.grad is None:
                mine.grad = torch.zeros_like(mine)
            mine.grad.copy_(other.grad)
        fused.step()
        plain.step()
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine.detach().cpu(), other.detach(), rtol=1e-5, atol=1e-6)


@case
def add_rms_norm_and_layer_norm():
    x, other, gamma = normal(3, 8), normal(3, 8, seed=1), normal(8, seed=2)
    y, rstd, total = operator("npu_add_rms_norm")(x.npu(), other.npu(), gamma.npu(), 1e-6)
    torch.testing.assert_close(total.cpu(), x + other)
    torch.testing.assert_close(y.cpu(), functional.rms_norm(x + other, (8,), gamma, 1e-6))
    assert list(rstd.shape) == [3, 1]
    found = operator("npu_layer_norm_eval")(x.npu(), [8], gamma.npu(), other[0].npu(), 1e-5)
    torch.testing.assert_close(found.cpu(), functional.layer_norm(x, (8,), gamma, other[0], 1e-5))


@case
def apply_rotary_pos_emb_overwrites_query_and_key():
    query, key = normal(2, 5, 3, 64), normal(2, 5, 1, 64, seed=1)
    cos, sin = normal(2, 5, 1, 64, seed=2), normal(2, 5, 1, 64, seed=3)
    on_npu = [tensor.npu() for tensor in (query, key, cos, sin)]
    results = operator("npu_apply_rotary_pos_emb")(*on_npu, layout="BSND")
    for tensor, given, result in zip((query, key), on_npu, results, strict=False):
        half = torch.cat((-tensor[..., 32:], tensor[..., :32]), -1)
        torch.testing.assert_close(given.cpu(), tensor * cos + half * sin)
        assert result is given


@case
def a_wholly_masked_row_of_the_softmax_is_uniform():
    x, mask = normal(32, 32), torch.ones(32, 32, dtype=torch.bool)
    found = operator("npu_scaled_masked_softmax")(x.npu(), mask.npu(), 1.0, False).cpu()
    torch.testing.assert_close(found, torch.full((32, 32), 1 / 32))


@case
def softmax_with_a_mask_and_a_position_bias():
    x, mask, bias = normal(1, 2, 3, 4, 4), normal(1, 2, 1, 4, 4, seed=2), normal(1, 1, 3, 4, 4, seed=3)
    found = operator("npu_masked_softmax_with_rel_pos_bias")(x.npu(), mask.npu(), bias.npu(), 0.5)
    torch.testing.assert_close(found.cpu(), (x * 0.5 + mask + bias).softmax(-1))


@case
def label_smoothing_without_a_gradient():
    x, target = normal(6, 9), torch.tensor([0, 3, 8, 3, 1, 6])
    for reduction in ("mean", "sum", "none"):
        found = operator("npu_cross_entropy_loss")(x.npu(), target.npu(), reduction=reduction, label_smoothing=0.2)
        wanted = functional.cross_entropy(x, target, reduction=reduction, label_smoothing=0.2)
        torch.testing.assert_close(found[0].cpu(), wanted.reshape(found[0].shape))
        assert [list(part.shape) for part in found[2:]] == [[0], [0]]


@case
def linear_cross_entropy_of_two_parts_of_the_vocabulary():
    x, weight, target = normal(11, 8).half(), normal(300, 8, seed=1).half() / 4, torch.arange(11) * 27 + 5
    statistics, bounds = [], ((0, 140), (140, 300))
    for start, end in bounds:
        part = weight[start:end].npu()
        statistics.append(operator("npu_fused_linear_online_max_sum")(x.npu(), part, target.npu(), start, end))
        bits = (statistics[-1][3].cpu()[:, None] >> torch.arange(8)) & 1
        assert torch.equal(bits.reshape(-1)[:11].bool(), (target < start) | (target >= end))
        assert statistics[-1][5] is None
    largest = torch.maximum(statistics[0][0], statistics[1][0])
    total = sum(part[1] * (part[0] - largest).exp() for part in statistics)
    is_first = (target < 140).npu()
    predicted = torch.where(is_first, *(part[2] + part[0] - largest for part in statistics))
    loss, _ = operator("npu_fused_cross_entropy_loss_with_max_sum")(largest, total, predicted)
    gradients = [
        operator("npu_fused_linear_cross_entropy_loss_with_max_sum_backward")(
            torch.ones(11).npu(), x.npu(), weight[start:end].npu(), part[3], part[4], 0.0, largest, total
        )
        for (start, end), part in zip(bounds, statistics, strict=True)
    ]
    exact = [x.double().requires_grad_(), weight.double().requires_grad_()]
    wanted = functional.cross_entropy(exact[0] @ exact[1].T, target, reduction="none")
    wanted.sum().backward()
    torch.testing.assert_close(loss.cpu().double(), wanted.detach(), rtol=1e-5, atol=1e-5)
    found = gradients[0][0].cpu().double() + gradients[1][0].cpu().double()
    torch.testing.assert_close(found, exact[0].grad, rtol=4 * 2**-11, atol=4 * 2**-11)
    found = torch.cat([part[1].cpu().double() for part in gradients])
    torch.testing.assert_close(found, exact[1].grad, rtol=4 * 2**-11, atol=4 * 2**-11)


@case
def dropout_with_byte_mask_keeps_scaled_values_only_in_training():
    x = torch.rand(64, 64, generator=torch.Generator().manual_seed(0)).npu() + 1
    dropped = operator("dropout_with_byte_mask")(x, 0.25, True)
    torch.testing.assert_close(dropped[dropped != 0], x[dropped != 0] / 0.75)
    assert 0.7 < (dropped != 0).float().mean() < 0.8
    assert operator("dropout_with_byte_mask")(x, 0.25, False) is x
    assert operator("dropout_with_byte_mask")(x, 1.0, True).count_nonzero() == 0


@case
def products_of_float16_are_those_of_float32_rounded_once():
    x, y = normal(16384, 24).half(), normal(16384, 40, seed=1).half()
    wanted = (x.float().t() @ y.float()).half()
    assert torch.equal((x.npu().t() @ y.npu()).cpu(), wanted)
    assert torch.equal(torch.bmm(x.npu().t()[None], y.npu()[None])[0].cpu(), wanted)
    weight = torch.zeros(40, 24).half().npu().requires_grad_()
    functional.linear(x.npu(), weight).backward(y.npu())
    assert torch.equal(weight.grad.cpu(), (y.float().t() @ x.float()).half())
    total = torch.ones(24, 40).half().npu()
    assert total.addmm_(x.npu().t(), y.npu()) is total
    assert torch.equal(total.cpu(), torch.ones(24, 40).addmm_(x.float().t(), y.float()).half())


@case
def products_of_two_dtypes_are_rejected():
    assert raised(RuntimeError, lambda: torch.ones(2, 2).half().npu() @ torch.ones(2, 2).npu(), "dtype")


@case
def one_seed_gives_one_dropout_mask():
    x = torch.ones(64, 64).npu()
    torch.npu.manual_seed(11)
    first, second = (operator("_npu_dropout")(x, 0.5)[0].cpu() for _ in range(2))
    torch.npu.manual_seed(11)
    again = operator("_npu_dropout")(x, 0.5)[0].cpu()
    assert torch.equal(first, again)
    assert not torch.equal(first, second)
    assert 0.4 < (first == 0).float().mean() < 0.6


@case
def a_device_draws_from_its_own_generator():
    torch.npu.manual_seed_all(11)
    first, second = (operator("_npu_dropout")(torch.ones(64).to(f"npu:{index}"), 0.5)[0].cpu() for index in (0, 1))
    assert torch.equal(first, second)
    assert torch.npu.current_device() == 0


@case
def attention_draws_a_new_mask_each_call_and_repeats_it_for_a_given_seed():
    q = normal(1, 2, 16, 8).npu()
    attend = operator("npu_fusion_attention")
    first, second = (attend(q, q, q, 2, "BNSD", keep_prob=0.5) for _ in range(2))
    assert first[4:6] != second[4:6]
    assert not torch.equal(first[0].cpu(), second[0].cpu())
    assert first[6] == 2 * 16 * 16
    seeded = [attend(q, q, q, 2, "BNSD", keep_prob=0.5, seed=5, offset=8)[0].cpu() for _ in range(2)]
    assert torch.equal(*seeded)


@case
def activation_checkpointing_replays_attention_dropout():
    from torch.utils.checkpoint import checkpoint

    attend = operator("npu_fusion_attention")
    gradients = []
    for again in (False, True):
        q = normal(1, 2, 16, 8).npu().requires_grad_()
        torch.npu.manual_seed(3)

        def layer(x):
            return attend(x, x, x, 2, "BNSD", keep_prob=0.5)[0]

        (checkpoint(layer, q, use_reentrant=False) if again else layer(q)).sum().backward()
        gradients.append(q.grad.cpu())
    assert torch.equal(*gradients)


@case
def statistics_of_packed_attention_lie_in_blocks():
    q = normal(5, 2, 8).npu()
    ends = {"actual_seq_qlen": [2, 5], "actual_seq_kvlen": [2, 5]}
    blocks = operator("npu_fusion_attention")(q, q, q, 2, "TND", **ends)[1].cpu()
    rows = operator("npu_fusion_attention")(q, q, q, 2, "TND", softmax_layout="TND", **ends)[1].cpu()
    assert blocks.shape == rows.shape == (5, 2, 8)
    flat = blocks.reshape(-1, 8)
    parts = [part.reshape(2, -1, 8).transpose(0, 1) for part in flat.split([4, 6])]
    torch.testing.assert_close(torch.cat(parts), rows)


@case
def a_ring_of_two_halves_of_the_keys_is_the_whole():
    attend, join = operator("npu_fusion_attention"), operator("npu_ring_attention_update")
    q, k, v = (normal(6, 2, 16, seed=seed).npu() for seed in (1, 2, 3))
    halves = [attend(q, k[part], v[part], 4, "SBH")[:3] for part in (slice(0, 2), slice(2, 6))]
    whole = attend(q, k, v, 4, "SBH")
    for found, wanted in zip(join(*halves[0], *halves[1]), whole, strict=False):
        torch.testing.assert_close(found.cpu(), wanted.cpu())
    q = normal(5, 2, 8).npu()
    ends = {"actual_seq_qlen": [2, 5], "actual_seq_kvlen": [2, 5]}
    starts = torch.tensor([0, 2, 5]).npu()
    for layout in ("", "TND"):
        parts = [attend(q, x, x, 2, "TND", softmax_layout=layout, **ends)[:3] for x in (q, q * 0.5)]
        options = {"actual_seq_qlen": starts, "input_layout": "TND", "input_softmax_layout": layout}
        found = join(*parts[0], *parts[1], **options)[0].cpu()
        wanted = []
        for own in (slice(0, 2), slice(2, 5)):
            x, both = (tensor.transpose(0, 1).cpu() for tensor in (q[own], torch.cat((q[own], q[own] * 0.5))))
            wanted.append(((x @ both.transpose(-1, -2)).softmax(-1) @ both).transpose(0, 1))
        torch.testing.assert_close(found, torch.cat(wanted), rtol=1e-4, atol=1e-5)
    # With statistics in token order the lengths are not needed: op-plugin's own test passes ends.
    assert (
        join(*parts[0], *parts[1], **{**options, "actual_seq_qlen": torch.tensor([2, 5]).npu()})[0].cpu().equal(found)
    )


@case
def a_mask_of_bytes_is_a_mask():
    q = normal(1, 2, 8, 8).npu()
    mask = torch.ones(2048, 2048).triu(1)
    attend = operator("npu_fusion_attention")
    found = [attend(q, q, q, 2, "BNSD", atten_mask=mask.to(dtype).npu(), sparse_mode=3)[0].cpu() for dtype in BYTES]
    assert torch.equal(*found)


BYTES = (torch.bool, torch.uint8)


@case
def torch_attention_goes_through_the_fused_operator():
    from ascend_adapt.emulation import report

    q, k, v = (normal(2, 4, 16, 32, seed=seed) for seed in (1, 2, 3))
    before = sum(count for name, count in report.tally.operators.items() if "npu_fusion_attention" in name)
    found = functional.scaled_dot_product_attention(q.npu(), k.npu(), v.npu(), is_causal=True)
    wanted = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    torch.testing.assert_close(found.cpu(), wanted, rtol=1e-4, atol=1e-5)
    assert sum(count for name, count in report.tally.operators.items() if "npu_fusion_attention" in name) > before


@case
def a_graph_is_captured_and_replayed():
    x, graph = torch.zeros(4).npu(), torch.npu.NPUGraph()
    with torch.npu.graph(graph):
        y = operator("fast_gelu")(x * 2 + 1)
    x.copy_(torch.arange(4.0))
    graph.replay()
    assert y.equal(operator("fast_gelu")(x * 2 + 1))
    assert raised(RuntimeError, lambda: captured(x.sum().item), "while a graph is captured")
    layer, inputs = torch.nn.Linear(4, 3).npu(), normal(2, 4).npu()
    graphed = torch.npu.make_graphed_callables(layer, (normal(2, 4).npu(),))
    graphed(inputs).sum().backward()
    assert layer.weight.grad.cpu().allclose(inputs.cpu().sum(0).expand(3, 4))


def captured(call):
    with torch.npu.graph(torch.npu.NPUGraph()):
        call()


@case
def what_is_compiled_runs_eagerly():
    from ascend_adapt.emulation import report

    x = normal(3).npu().requires_grad_()
    torch.compile(lambda x: (x * 2).sum(), mode="max-autotune")(x).backward()
    assert x.grad.tolist() == [2, 2, 2]
    assert any(kind == "not compiled" for kind, _, _ in report.tally.findings)


@case
def profilers_record_operators_with_their_shapes():
    import torch_npu

    with torch.profiler.profile(record_shapes=True) as profiler:
        normal(4, 6).npu() @ normal(6, 2).npu()
    shapes = {one.key: one.input_shapes for one in profiler.key_averages(group_by_input_shape=True)}
    assert shapes["aten::matmul"][:2] == [[4, 6], [6, 2]]
    assert torch.npu.utilization() == 0
    with tempfile.TemporaryDirectory() as folder:
        into = torch_npu.profiler.tensorboard_trace_handler(folder)
        profiler = torch_npu.profiler.profile(record_shapes=True, on_trace_ready=into)
        profiler.start()
        normal(4, 6).npu() @ normal(6, 2).npu()
        profiler.stop()
        (file,) = Path(folder).rglob("trace_view.json")
        trace = json.loads(file.read_text())
    found = [one["args"]["Input Dims"].split() for one in trace if one["name"] == "aten::matmul" and "args" in one]
    assert ["4,6;", "6,2"] in found


@case
def float16_where_the_cpu_has_no_kernel_for_it():
    x = normal(1, 2, 4, 4).half()
    wide = functional.interpolate(x.float(), size=(6, 6), mode="bicubic", antialias=True)
    found = functional.interpolate(x.npu(), size=(6, 6), mode="bicubic", antialias=True)
    assert found.cpu().equal(wide.half())
    into = x.npu()
    torch._VF._add_relu_(into, x.npu())
    assert into.cpu().equal((x + x).relu())


@case
def lengths_of_packed_sequences_are_on_the_host():
    x = normal(3, 2, 4).npu()
    packed = torch.nn.utils.rnn.pack_padded_sequence(x, torch.tensor([3, 1]))
    assert (packed.data.device.type, packed.batch_sizes.tolist()) == ("npu", [2, 1, 1])
    assert packed.data.shape == (6, 4)  # with the padding
    padded, lengths = torch.nn.utils.rnn.pad_packed_sequence(packed)
    assert padded.equal(x)
    assert lengths.tolist() == [3, 1]
    assert raised(RuntimeError, lambda: torch._VF._pack_padded_sequence(x, torch.tensor([3, 1]).npu(), False), "CPU")


@case
def a_maximum_into_another_dtype():
    one, other = torch.tensor([1, 5], dtype=torch.int32).npu(), torch.tensor([3, 2]).npu()
    into = torch.zeros(1, dtype=torch.int64).npu()
    assert torch.max(one, other, out=into).tolist() == [3, 5]


@case
def casts_formats_and_raw_copies():
    x = normal(16, 16)
    assert operator("npu_dtype_cast")(x.npu(), torch.int32).cpu().equal(x.int())
    own = x.npu()
    assert operator("npu_format_cast_")(own, 2) is own
    assert operator("npu_format_cast_")(own, 29) is own
    operator("npu_dtype_cast_")(own, (x * 2).half().npu())
    torch.testing.assert_close(own.cpu(), x * 2, rtol=1e-2, atol=1e-2)
    operator("copy_memory_")(own, x.npu())
    assert own.cpu().equal(x)
    assert operator("get_npu_format")(own) is not None
    assert operator("npu_transpose")(own, (1, 0)).cpu().equal(x.T.contiguous())
    assert raised(NotImplementedError, lambda: operator("npu_dtype_cast")(own, 290), "dtype=290")


@case
def a_cast_between_base_formats_marks_the_tensor_itself():
    x = normal(2, 2).npu()
    cast = operator("npu_format_cast")(x, 1)
    assert (operator("get_npu_format")(cast), cast.data_ptr()) == (1, x.data_ptr())
    operator("npu_format_cast_")(x, 0)
    assert operator("get_npu_format")(cast) == 0


@case
def a_cast_in_place_to_a_private_format():
    x = normal(16, 16)
    on_npu = x.npu()
    torch.npu.config.allow_internal_format = True
    try:
        operator("npu_format_cast_")(on_npu, 29)
        back = operator("npu_format_cast")(on_npu, 2)
    finally:
        torch.npu.config.allow_internal_format = False
    assert [operator("get_npu_format")(one) for one in (on_npu, back)] == [29, 2]
    assert on_npu.cpu().equal(x)
    assert back.cpu().equal(x)
    assert (on_npu + 1).cpu().equal(x + 1)


@case
def the_overflow_flag_is_read_and_cleared():
    from ascend_adapt.emulation import saturation

    words = operator("npu_alloc_float_status")(normal(2).npu())
    assert words.cpu().equal(torch.zeros(8))
    assert operator("npu_get_float_status")(words).cpu()[0] == 0
    saturation.raise_flag()
    assert operator("npu_get_float_status")(words).cpu()[0] == 1
    assert operator("npu_clear_float_status")(words).cpu().equal(torch.zeros(8))
    assert operator("npu_get_float_status")(words).cpu()[0] == 0


@case
def tensors_of_two_devices_are_refused():
    x = normal(2, 8)
    assert raised(RuntimeError, lambda: torch.ops.npu.npu_rms_norm(x.npu(), x[0]), "gamma on cpu", "same device")
    q, ends = normal(4, 2, 8).npu(), torch.tensor([4])
    options = {"actual_seq_qlen": ends.npu(), "actual_seq_kvlen": ends}
    assert raised(RuntimeError, lambda: operator("npu_fusion_attention_v3")(q, q, q, 2, "TND", **options), "on the CPU")


@case
def what_is_not_built_is_named():
    q, slopes = normal(1, 2, 8, 8).npu(), torch.ones(2).npu().requires_grad_()
    attend = operator("npu_fusion_attention_v2")
    assert raised(NotImplementedError, lambda: attend(q, q, q, 2, "BNSD", pse=slopes, pse_type=2), "requires grad")
    packed, bias = normal(4, 2, 8).npu(), torch.zeros(1, 2, 4, 4).npu()
    ends = {"actual_seq_qlen": [4], "actual_seq_kvlen": [4]}
    assert raised(NotImplementedError, lambda: attend(packed, packed, packed, 2, "TND", pse=bias, **ends), "packed")


@case
def registering_again_changes_nothing():
    from ascend_adapt.emulation import operators

    names = operators.register()
    assert names == operators.register()
    assert len(names) == len(set(names)) > 60
    assert {"npu::npu_fusion_attention", "npu::npu_apply_adam_w.out", "npu::npu_format_cast"} <= set(names)


@case
def what_is_recorded_of_the_release_is_what_it_registers():
    import importlib.metadata
    import json
    from pathlib import Path

    from ascend_adapt.kernels import schema

    facts = Path(__file__).parents[2] / "upstream" / "torch_npu.json"
    recorded = json.loads(facts.read_text())["releases"][importlib.metadata.version("torch_npu")]
    assert len(recorded) > 60
    assert [reported for text in recorded.values() if (reported := schema.gate(text))] == []
    assert schema.gate("npu_not_there(Tensor x) -> Tensor").endswith("has no such operator")
    other = recorded["npu_rms_norm"].replace("1e-06", "1e-05")
    assert schema.gate(other) == "npu_rms_norm: epsilon is 1e-06 by default, not 1e-05"
