"""Operators of mixtures of experts: gradients against definitions in float64, and results without a gradient."""

from __future__ import annotations

import torch
from emulation.operators.case import Check, Gradient

_numbers = torch.Generator().manual_seed(11)
TOKENS, EXPERTS, CHOICES, WIDTH = 6, 4, 2, 8


def normal(*size, dtype=torch.float32):
    return torch.randn(size, generator=_numbers).to(dtype)


def npu():
    import torch_npu

    return torch_npu


def choices():
    return torch.stack([torch.randperm(EXPERTS, generator=_numbers)[:CHOICES] for _ in range(TOKENS)])


def gradients():
    chosen = choices()

    def there_and_back(x, probs):
        rows, places = npu().npu_moe_token_permute(x, chosen.npu())
        return npu().npu_moe_token_unpermute(rows * rows, places, probs=probs)

    def weighted_squares(x, probs):
        return x.square() * probs.sum(1, keepdim=True)

    for dtype in (torch.float32, torch.bfloat16):
        inputs = {"x": normal(TOKENS, WIDTH, dtype=dtype), "probs": normal(TOKENS, CHOICES, dtype=dtype).abs()}
        yield Gradient(f"tokens to experts and back {dtype}", there_and_back, weighted_squares, inputs)

    def first_rows(x):
        return npu().npu_moe_token_permute(x, chosen.npu(), num_out_tokens=5)[0]

    def first_by_expert(x):
        return x[torch.argsort(chosen.reshape(-1), stable=True)[:5] // CHOICES]

    yield Gradient("tokens beyond num_out_tokens", first_rows, first_by_expert, {"x": normal(TOKENS, WIDTH)})
    routed = torch.zeros(TOKENS, EXPERTS, dtype=torch.bool).scatter_(1, chosen, True)

    def by_map(x, probs):
        count = TOKENS * CHOICES
        rows, _, places = npu().npu_moe_token_permute_with_routing_map(x, routed.npu(), num_out_tokens=count)
        restored = {"restore_shape": [TOKENS, WIDTH], "probs": probs, "routing_map": routed.npu()}
        return npu().npu_moe_token_unpermute_with_routing_map(rows * rows, places, **restored)

    def by_map_defined(x, probs):
        return x.square() * (probs * routed).sum(1, keepdim=True)

    inputs = {"x": normal(TOKENS, WIDTH), "probs": normal(TOKENS, EXPERTS).abs()}
    yield Gradient("tokens by a map and back", by_map, by_map_defined, inputs)
    full = torch.ones(TOKENS, EXPERTS, dtype=torch.bool)

    def padded(x, probs):
        rows, weights, _ = npu().npu_moe_token_permute_with_routing_map(
            x, full.npu(), probs=probs, num_out_tokens=TOKENS * EXPERTS, drop_and_pad=True
        )
        return rows * weights.unsqueeze(-1)

    def padded_defined(x, probs):
        return (x * probs.t().unsqueeze(-1)).flatten(0, 1)

    yield Gradient("a map with padding", padded, padded_defined, inputs)

    def padded_back(x, probs):
        places = torch.arange(TOKENS, dtype=torch.int32).repeat(EXPERTS).npu()
        restored = {"restore_shape": [TOKENS, WIDTH], "probs": probs, "routing_map": full.npu(), "drop_and_pad": True}
        return npu().npu_moe_token_unpermute_with_routing_map(x, places, **restored)

    def padded_back_defined(x, probs):
        return (x.reshape(EXPERTS, TOKENS, WIDTH) * probs.t().unsqueeze(-1)).sum(0)

    inputs = {"x": normal(TOKENS * EXPERTS, WIDTH), "probs": normal(TOKENS, EXPERTS)}
    yield Gradient("a map with padding, back", padded_back, padded_back_defined, inputs)
    for norm_type, normalised in ((0, lambda x: x.softmax(-1)), (1, torch.sigmoid)):

        def chosen_weights(x, norm_type=norm_type):
            options = {"norm_type": norm_type, "out_flag": True, "routed_scaling_factor": 2.5}
            weights, experts, _ = npu().npu_moe_gating_top_k(x, CHOICES, **options)
            return weights, experts.cpu().long()

        def chosen_weights_defined(x, extra, norm_type=norm_type, normalised=normalised):
            weights = normalised(x).gather(1, extra)
            return 2.5 * (weights / weights.sum(1, keepdim=True) if norm_type else weights)

        inputs = {"x": normal(TOKENS, EXPERTS)}
        yield Gradient(f"top k, norm_type {norm_type}", chosen_weights, chosen_weights_defined, inputs)


def rows_of_a_table():
    index = torch.tensor([[0, 2], [2, 1]])
    yield Gradient(
        "rows of a table",
        lambda x: npu().npu_gather_sparse_index(x, index.npu()),
        lambda x: x[index],
        {"x": normal(4, WIDTH)},
    )


def grouped_products():
    x, weights = normal(10, WIDTH), normal(3, WIDTH, 5)
    ends = [2, 6, 10]
    wanted = torch.cat([x[:2] @ weights[0], x[2:6] @ weights[1], x[6:] @ weights[2]])
    product = npu().npu_grouped_matmul
    options = {"split_item": 3, "group_type": 0}
    (by_ends,) = product([x.npu()], [weights.npu()], group_list=torch.tensor(ends).npu(), **options)
    torch.testing.assert_close(by_ends.cpu(), wanted)
    lengths = torch.tensor([2, 4, 4]).npu()
    (by_lengths,) = product([x.npu()], [weights.npu()], group_list=lengths, group_list_type=1, **options)
    assert by_lengths.equal(by_ends)
    of_list = [one.npu() for one in weights]
    parts = product([x.npu()], of_list, group_list=ends, split_item=1)
    assert [list(one.shape) for one in parts] == [[2, 5], [4, 5], [4, 5]]
    assert torch.cat(parts).equal(by_ends)
    pairs = product([x[:2].npu(), x[2:6].npu()], of_list[:2], bias=[torch.ones(5).npu()] * 2, group_type=-1)
    torch.testing.assert_close(torch.cat(pairs).cpu(), wanted[:6] + 1)
    (sums,) = product(
        [x.t().npu()], [normal(10, 5).npu()], group_list=torch.tensor(ends).npu(), split_item=3, group_type=2
    )
    assert list(sums.shape) == [3, WIDTH, 5]


def gradients_of_expert_weights():
    x, dy, into = normal(10, 4), normal(10, 5), torch.ones(3 * 4, 5)
    options = {"transpose_x": True, "transpose_weight": False, "group_type": 2}
    found = npu().npu_grouped_matmul_add(into.npu(), x.npu(), dy.npu(), torch.tensor([2, 6, 10]).npu(), **options)
    parts = [x[part].t() @ dy[part] for part in (slice(0, 2), slice(2, 6), slice(6, 10))]
    torch.testing.assert_close(found.cpu(), torch.cat(parts) + 1)


def experts_of_softmax():
    x, finished = normal(TOKENS, EXPERTS), torch.tensor([True] + [False] * (TOKENS - 1))
    weights, experts, rows = npu().npu_moe_gating_top_k_softmax(x.npu(), finished.npu(), CHOICES)
    wanted = x.softmax(1).topk(CHOICES)
    torch.testing.assert_close(weights.cpu(), wanted[0])
    assert experts.cpu()[1:].equal(wanted[1][1:].int())
    assert (experts[0] == EXPERTS).all()
    assert rows.cpu().t().reshape(-1).equal(torch.arange(TOKENS * CHOICES).int())
    rows_of_experts, _, sorted_experts = npu().npu_moe_init_routing(
        x.npu(), rows, experts.remainder(EXPERTS).int(), TOKENS
    )
    counts = npu().npu_moe_compute_expert_tokens(sorted_experts, EXPERTS)
    assert counts[-1] == len(rows_of_experts) == TOKENS * CHOICES


def experts_of_softmax_with_all_probabilities():
    x, finished = normal(TOKENS, EXPERTS), torch.tensor([True] + [False] * (TOKENS - 1))
    given = {"k": CHOICES, "finished": finished.npu(), "output_softmax": True}
    weights, experts, shares = npu().npu_moe_gating_top_k_softmax_v2(x.npu(), **given)
    torch.testing.assert_close(shares.cpu(), x.softmax(1))
    wanted = x.softmax(1).topk(CHOICES)
    torch.testing.assert_close(weights.cpu(), wanted[0])
    assert experts.cpu()[1:].equal(wanted[1][1:].int())
    assert (experts[0] == EXPERTS).all()
    weights, _, shares = npu().npu_moe_gating_top_k_softmax_v2(x.npu(), renorm=1, **given)
    torch.testing.assert_close(weights.cpu(), wanted[0] / wanted[0].sum(1, keepdim=True))
    assert shares.shape == (0,)


def experts_of_the_best_groups():
    x = torch.tensor([[9.0, 0, 5, 4], [0, 1, 8, 0]])
    options = {"k_group": 1, "group_count": 2, "group_select_mode": 1}
    _, experts, _ = npu().npu_moe_gating_top_k(x.npu(), 2, bias=torch.zeros(4).npu(), **options)
    assert experts.tolist() == [[0, 1], [2, 3]]


def int8_products():
    a, b = (torch.randint(-5, 5, size, generator=_numbers, dtype=torch.int8) for size in ((4, 32), (32, 8)))
    scale = torch.rand(8, generator=_numbers)
    exact = a.double() @ b.double()
    packed = npu().npu_trans_quant_param(scale.npu())
    found = npu().npu_quant_matmul(a.npu(), b.npu(), packed, output_dtype=torch.float16)
    torch.testing.assert_close(found.cpu().double(), exact * scale, rtol=2**-9, atol=0)  # 10 bits of a scale are kept
    x = normal(4, 32)
    quantised, of_row = npu().npu_dynamic_quant(x.npu())
    assert (quantised.cpu().float() * of_row.cpu().unsqueeze(1) - x).abs().max() <= of_row.max() / 2 * 1.001
    rows = npu().npu_quant_matmul(
        quantised, b.npu(), scale.bfloat16().npu(), pertoken_scale=of_row, output_dtype=torch.bfloat16
    )
    wanted = (quantised.cpu().double() @ b.double()) * scale.bfloat16() * of_row.cpu().unsqueeze(1)
    torch.testing.assert_close(rows.cpu().double(), wanted, rtol=2**-8, atol=0)
    shift = torch.full_like(scale, 0.3).half()
    weight_only = npu().npu_weight_quant_batchmatmul(x.half().npu(), b.npu(), scale.half().npu(), shift.npu())
    matrix = ((b.half() + shift) * scale.half()).double()
    wanted = x.half().double() @ matrix
    torch.testing.assert_close(weight_only.cpu().double(), wanted, rtol=2**-10, atol=32 * 60 * 2**-24)
    fixed = npu().npu_quantize(x.npu(), torch.tensor([0.1]).npu(), torch.zeros(1).npu(), torch.qint8, -1)
    assert fixed.cpu().equal((x / torch.tensor(0.1)).round().to(torch.int8))


def four_bits(packed):
    """Return the integers that int32 numbers hold, the lowest bits first."""
    codes = (packed.unsqueeze(-1) >> torch.arange(0, 32, 4)) & 15
    return torch.where(codes > 7, codes - 16, codes).flatten(-2).float()


def quantisation_by_row():
    x, smooth, ends = normal(6, 16), normal(2, 16), torch.tensor([2, 6], dtype=torch.int32)
    smoothed = torch.cat((x[:2] * smooth[0], x[2:] * smooth[1]))
    groups = {"smooth_scales": smooth.npu(), "group_index": ends.npu()}
    packed, scale = npu().npu_dynamic_quant(x.npu(), dst_type=torch.quint4x2, **groups)
    torch.testing.assert_close(scale.cpu(), smoothed.abs().amax(1) / 7)
    assert four_bits(packed.cpu()).equal((smoothed / scale.cpu().unsqueeze(1)).round())
    packed, scale, offset = npu().npu_dynamic_quant_asymmetric(x.npu(), dst_type=torch.quint4x2)
    restored = (four_bits(packed.cpu()) - offset.cpu().unsqueeze(1)) * scale.cpu().unsqueeze(1)
    assert (restored - x).abs().max() <= scale.max() / 2 * 1.001
    integers = npu().npu_group_quant(x.npu(), smooth.npu(), ends.npu(), offset=torch.ones(1).npu())
    assert integers.cpu().equal((smoothed + 1).round().to(torch.int8))
    halves = normal(6, 32)
    gated = halves[:, :16] * torch.nn.functional.silu(halves[:, 16:])
    integers, factor = npu().npu_swiglu_quant(halves.npu(), **groups, quant_mode=1)
    wanted = torch.cat((gated[:2] * smooth[0], gated[2:] * smooth[1]))
    torch.testing.assert_close(factor.cpu(), 127 / wanted.abs().amax(1))
    assert (integers.cpu() - wanted * factor.cpu().unsqueeze(1)).abs().max() <= 0.5001
    lengths = {**groups, "group_index": torch.tensor([2, 4], dtype=torch.int32).npu(), "group_list_type": 1}
    fixed, _ = npu().npu_swiglu_quant(halves.npu(), **lengths, offsets=torch.ones(2, 16).npu())
    assert fixed.cpu().equal((wanted + 1).round().to(torch.int8))


def quantised_updates():
    cache, updates, scales = torch.zeros(3, 4, 32, dtype=torch.int8), normal(3, 1, 32), normal(1, 1, 32).abs()
    wanted = cache.clone()
    for entry, place in enumerate((1, 3, 0)):
        wanted[entry, place] = (updates[entry, 0] / scales.flatten()).round().clamp(-128, 127).to(torch.int8)
    given = updates.npu(), scales.npu(), None, -2, -1
    places = torch.tensor([1, 3, 0], dtype=torch.int32)
    found = npu().npu_quant_scatter(cache.npu(), places.npu(), *given)
    assert found.cpu().equal(wanted)
    written = cache.npu()
    pairs = torch.stack((torch.arange(3, dtype=torch.int32), places), 1)
    npu().npu_quant_scatter_(written, pairs.npu(), *given)
    assert written.cpu().equal(wanted)


def quantised_norms():
    x1, x2, gamma, beta, smooth = normal(4, 16), normal(4, 16), normal(16), normal(16), normal(16).abs()
    total = x1 + x2
    y = total * torch.rsqrt(total.square().mean(1, keepdim=True) + 1e-6) * gamma + beta
    given = [one.npu() for one in (x1, x2, gamma)]
    options = {"smooth_scale1": smooth.npu(), "beta": beta.npu()}
    first, second, sums, scale, _ = npu().npu_add_rms_norm_dynamic_quant(*given, **options)
    torch.testing.assert_close(sums.cpu(), total)
    torch.testing.assert_close(scale.cpu(), (y * smooth).abs().amax(1) / 127)
    assert (first.cpu() - y * smooth / scale.cpu().unsqueeze(1)).abs().max() <= 0.5001
    assert second.numel() == 1
    masked = npu().npu_add_rms_norm_dynamic_quant(*given, **options, output_mask=[True, True])
    torch.testing.assert_close(masked[4].cpu(), y.abs().amax(1) / 127)


def rows_of_experts():
    x = torch.arange(3.0).unsqueeze(1).expand(3, 8).contiguous() - 1
    experts = torch.tensor([[2, 0], [3, 2], [0, 1]], dtype=torch.int32)
    options = {"expert_num": 4, "active_expert_range": [1, 3], "expert_tokens_num_flag": True}
    rows, places, sums, _ = npu().npu_moe_init_routing_v2(x.npu(), experts.npu(), **options)
    assert rows[:, 0].tolist() == [1, -1, 0, 0, 0, 0]
    assert places.tolist() == [1, -1, -1, 2, -1, 0]
    assert sums.tolist() == [1, 3]
    scale = torch.tensor([[1.0] * 8, [2.0] * 8])
    integers, choices, pairs, scales = npu().npu_moe_init_routing_v2(
        x.npu(), experts.npu(), **options, scale=scale.npu(), quant_mode=1, row_idx_type=1, expert_tokens_num_type=2
    )
    assert choices[:3].tolist() == [5, 0, 3]
    assert pairs.tolist() == [[1, 1], [2, 2], [0, 0], [0, 0]]
    assert integers[:, 0].tolist() == [127, -127, 0, 0, 0, 0]
    torch.testing.assert_close(scales[:2].cpu(), torch.tensor([1.0, 2.0]) / 127)
    numbers = {"scale": torch.tensor([3.0]).npu(), "offset": torch.tensor([1.0]).npu()}
    integers, places, counts, _, _ = npu().npu_moe_init_routing_quant(
        x.npu(), experts.npu(), expert_num=4, active_num=0, expert_tokens_num_mode=2, quant_mode=0, **numbers
    )
    assert integers[:, 0].tolist() == [-2, 4, 4, -2, 1, 1]
    assert places.tolist() == [3, 0, 5, 4, 1, 2]
    assert counts.tolist() == [2, 1, 2, 1]


def tokens_from_several_ranks():
    tokens, counts = normal(6, 4), torch.tensor([[2, 1], [1, 2]])
    found, scales, source, of_experts = npu().npu_moe_re_routing(
        tokens.npu(), counts.npu(), per_token_scales=torch.arange(6.0).npu()
    )
    order = [0, 1, 3, 2, 4, 5]
    assert source.tolist() == scales.tolist() == order
    assert found.cpu().equal(tokens[order])
    assert of_experts.tolist() == [3, 3]


def rows_of_padded_experts():
    rows, skip = normal(2, 3, 4), normal(4, 4)
    places = torch.tensor([4, -1, 0, 2], dtype=torch.int32)
    experts = torch.zeros(4, 1, dtype=torch.int32)
    given = (rows, skip, None, torch.ones(2, 4), None, places, experts)
    found = npu().npu_moe_finalize_routing(*(None if one is None else one.npu() for one in given), drop_pad_mode=1)
    wanted = torch.stack((rows[1, 1], torch.zeros(4), rows[0, 0], rows[0, 2])) + skip + 1
    torch.testing.assert_close(found.cpu(), wanted)


GRADIENTS = [*gradients(), *rows_of_a_table()]
CHECKS = [
    Check(one.__name__, one)
    for one in (
        grouped_products,
        gradients_of_expert_weights,
        experts_of_softmax,
        experts_of_softmax_with_all_probabilities,
        experts_of_the_best_groups,
        int8_products,
        quantisation_by_row,
        quantised_updates,
        quantised_norms,
        rows_of_experts,
        tokens_from_several_ranks,
        rows_of_padded_experts,
    )
]
