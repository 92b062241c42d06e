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
    weight_only = npu().npu_weight_quant_batchmatmul(x.half().npu(), b.npu(), scale.half().npu())
    torch.testing.assert_close(
        weight_only.cpu().double(), x.half().double() @ (b.double() * scale.half()), rtol=2**-9, atol=0.02
    )
    fixed = npu().npu_quantize(x.npu(), torch.tensor([0.1]).npu(), torch.zeros(1).npu(), torch.qint8, -1)
    assert fixed.cpu().equal((x / torch.tensor(0.1)).round().to(torch.int8))


GRADIENTS = [*gradients()]
CHECKS = [
    Check(one.__name__, one)
    for one in (
        grouped_products,
        gradients_of_expert_weights,
        experts_of_softmax,
        experts_of_softmax_with_all_probabilities,
        experts_of_the_best_groups,
        int8_products,
    )
]
