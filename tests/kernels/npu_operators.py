"""Stand-in for torch_npu: its operators with their registered schemas, computed on a CPU as its documentation says.

torch's dispatcher checks the calls (names, order, types, keyword-only arguments) against the schemas of torch_npu
2.13.0. Calls for which the documentation says that results are wrong without an error fail here: a causal mode without
its mask, another mask than the compressed one, a fully masked row of a packed call, a mask that is not expanded. This
shows nothing about the results of an NPU.
"""

from __future__ import annotations

import torch

FILL = -10000.0
MAX = 2147483647
TRIANGLE = torch.ones(2048, 2048, dtype=torch.bool).triu(1)
PREFIX_TRIANGLE = torch.cat([TRIANGLE, torch.zeros(1024, 2048, dtype=torch.bool)])
PREFIX_TRIANGLE[2048:, 1024:] = True

_V1 = (
    "npu_fusion_attention(Tensor query, Tensor key, Tensor value, int head_num, str input_layout, Tensor? pse=None, "
    "Tensor? padding_mask=None, Tensor? atten_mask=None, float scale=1., float keep_prob=1., "
    "int pre_tockens=2147483647, int next_tockens=2147483647, int inner_precise=0, int[]? prefix=None, "
    "int[]? actual_seq_qlen=None, int[]? actual_seq_kvlen=None, int sparse_mode=0, bool gen_mask_parallel=True, "
    'bool sync=False, str softmax_layout="", Tensor? sink=None, Tensor? dropout_mask=None, int seed=0, int offset=0) '
    "-> (Tensor, Tensor, Tensor, Tensor, int, int, int)"
)
_V2 = (
    "npu_fusion_attention_v2(Tensor query, Tensor key, Tensor value, int head_num, str input_layout, *, "
    "Tensor? pse=None, Tensor? padding_mask=None, Tensor? atten_mask=None, Tensor? query_rope=None, "
    "Tensor? key_rope=None, float scale=1., float keep_prob=1., int pre_tokens=2147483647, "
    "int next_tokens=2147483647, int inner_precise=0, int[]? prefix=None, int[]? actual_seq_qlen=None, "
    "int[]? actual_seq_kvlen=None, int sparse_mode=0, bool gen_mask_parallel=True, bool sync=False, int pse_type=1, "
    'int[]? q_start_idx=None, int[]? kv_start_idx=None, str softmax_layout="", Tensor? sink=None, '
    "Tensor? dropout_mask=None, int seed=0, int offset=0) -> (Tensor, Tensor, Tensor, Tensor, int, int, int)"
)
_OTHERS = (
    "npu_scaled_masked_softmax(Tensor x, Tensor mask, Scalar scale=1, bool fixed_triu_mask=False) -> Tensor",
    "npu_rms_norm(Tensor input, Tensor gamma, float epsilon=1e-06) -> (Tensor, Tensor)",
    "npu_rotary_mul(Tensor input, Tensor r1, Tensor r2, str rotary_mode='half', Tensor? rotate=None) -> Tensor",
    "npu_swiglu(Tensor input, int dim=-1) -> Tensor",
    "npu_gelu(Tensor input, *, str approximate='none') -> Tensor",
    "npu_cross_entropy_loss(Tensor input, Tensor target, Tensor? weight=None, str reduction='mean', "
    "int ignore_index=-100, float label_smoothing=0.0, float lse_square_scale_for_zloss=0.0, bool return_zloss=False) "
    "-> (Tensor, Tensor, Tensor, Tensor)",
    "npu_apply_adam_w.out(Scalar beta1_power, Scalar beta2_power, Scalar lr, Scalar weight_decay, Scalar beta1, "
    "Scalar beta2, Scalar epsilon, Tensor grad, Tensor? max_grad_norm, bool? amsgrad, bool? maximize, *, Tensor[] out) "
    "-> (Tensor, Tensor, Tensor)",
)

calls: list[tuple[str, dict[str, object]]] = []
"""Calls since the last clear(): the operator, and the arguments that select its form."""


def define() -> torch.library.Library:
    """Define the operators as long as the result lives."""
    library = torch.library.Library("npu", "DEF")
    functions = {
        "npu_fusion_attention": attention_v1,
        "npu_fusion_attention_v2": attention_v2,
        "npu_scaled_masked_softmax": scaled_masked_softmax,
        "npu_rms_norm": rms_norm,
        "npu_rotary_mul": rotary_mul,
        "npu_swiglu": swiglu,
        "npu_gelu": lambda input, *, approximate="none": torch.nn.functional.gelu(input, approximate=approximate),
        "npu_cross_entropy_loss": cross_entropy_loss,
    }
    for schema in (_V1, _V2, *_OTHERS):
        library.define(schema)
        name = schema.partition("(")[0]
        if name in functions:
            library.impl(name, _by_name(schema, functions[name]), "CompositeImplicitAutograd")
    library.impl("npu_apply_adam_w.out", apply_adam_w, "CPU")
    return library


def _by_name(schema, function):
    """Return ``function`` with every argument given by its name; the dispatcher gives most by position."""
    names = [argument.name for argument in torch._C.parse_schema(schema).arguments]
    return lambda *given, **more: function(**dict(zip(names, given, strict=False)), **more)


def attention_v1(query, key, value, head_num, input_layout, pse=None, padding_mask=None, atten_mask=None, **more):
    assert pse is None, "version 1 adds the bias before scaling"
    more["pre"], more["next"] = more.pop("pre_tockens", MAX), more.pop("next_tockens", MAX)
    return _attention("v1", query, key, value, head_num, input_layout, atten_mask, None, more)


def attention_v2(query, key, value, head_num, input_layout, *, pse=None, atten_mask=None, pse_type=1, **more):
    assert pse_type == 0
    more["pre"], more["next"] = more.pop("pre_tokens", MAX), more.pop("next_tokens", MAX)
    return _attention("v2", query, key, value, head_num, input_layout, atten_mask, pse, more)


def _attention(version, q, k, v, heads, layout, mask, pse, more):
    mode, scale, keep = more.get("sparse_mode", 0), more.get("scale", 1.0), more.get("keep_prob", 1.0)
    given = {"layout": layout, "sparse_mode": mode, "mask": None if mask is None else tuple(mask.shape), "keep": keep}
    given.update({"pre": more["pre"], "next": more["next"], "pse": None if pse is None else tuple(pse.shape)})
    calls.append((version, given))
    assert q.is_contiguous()
    assert k.is_contiguous()
    assert v.is_contiguous()
    assert k.shape == v.shape
    assert 0 < keep <= 1
    if layout == "TND":
        ends, starts = more["actual_seq_qlen"], [0, *more["actual_seq_qlen"]]
        given["ends"] = ends
        assert ends == more["actual_seq_kvlen"]
        assert ends[-1] == len(q)
        assert len(ends) <= 1024
        assert pse is None
        pieces = [slice(start, end) for start, end in zip(starts, ends, strict=False)]
        rows = [
            _scores(*(each[piece].transpose(0, 1)[None] for each in (q, k, v)), mask, None, mode, scale, more)
            for piece in pieces
        ]
        output = torch.cat([row[0].transpose(0, 1) for row in rows])
    else:
        axes = {"BNSD": (0, 1, 2, 3), "BSND": (0, 2, 1, 3), "SBH": (1, 2, 0, 3)}[layout]
        rows = (each.unflatten(2, (-1, q.shape[2] // heads)) if layout == "SBH" else each for each in (q, k, v))
        query, key, value = (each.permute(axes) for each in rows)
        assert heads == query.shape[1]
        attended = _scores(query, key, value, mask, pse, mode, scale, more)
        output = attended.permute(*map(axes.index, range(4))).contiguous().view(q.shape)
    return (output.to(q.dtype), *(torch.empty(0) for _ in range(3)), 0, 0, 0)


def _scores(q, k, v, mask, pse, mode, scale, more):
    shared = q.shape[1] // k.shape[1]
    key, value = (each.double().repeat_interleave(shared, 1) for each in (k, v))
    scores = scale * q.double() @ key.transpose(-1, -2)
    if pse is not None:
        assert pse.dtype == q.dtype
        assert pse.shape[1:] == scores.shape[1:]
        assert pse.shape[0] in (1, len(q))
        scores = scores + pse.double()
    queries, keys = scores.shape[-2:]
    if mode in (3, 4):
        assert mask is not None
        assert mask.dtype == torch.bool
        assert torch.equal(mask, TRIANGLE)
        assert queries <= keys
        distance = torch.arange(queries)[:, None] + keys - queries - torch.arange(keys)[None]
        hidden = (distance < -more["next"] if mode == 4 else distance < 0) | (
            distance > more["pre"] if mode == 4 else torch.zeros_like(distance, dtype=torch.bool)
        )
    elif mode == 6:
        assert torch.equal(mask, PREFIX_TRIANGLE)
        assert queries == keys
        lengths = torch.tensor(more["prefix"])
        assert len(lengths) == len(q) <= 32
        later = torch.arange(keys) > torch.arange(queries)[:, None]
        hidden = (later & (torch.arange(keys) >= lengths[:, None, None]))[:, None]
    elif mode == 1:
        assert mask.dtype == torch.bool
        assert mask.shape[2:] == (queries, keys)
        assert tuple(mask.shape[:2]) in {(1, 1), (len(q), 1), tuple(q.shape[:2])}
        hidden = mask
    else:
        assert (mode, mask) == (0, None)
        hidden = torch.zeros(queries, keys, dtype=torch.bool)
    assert not hidden.all(-1).any(), "a fully masked row"
    return scores.masked_fill(hidden, float("-inf")).softmax(-1) @ value


def scaled_masked_softmax(x, mask, scale=1, fixed_triu_mask=False):
    calls.append(("softmax", {"mask": tuple(mask.shape), "scale": scale}))
    assert not fixed_triu_mask
    assert mask.dtype == torch.bool
    assert all(32 <= size <= 4096 and size % 32 == 0 for size in x.shape[-2:])
    return (x.double() * scale).masked_fill(mask, FILL).softmax(-1).to(x.dtype)


def rms_norm(input, gamma, epsilon=1e-6):
    assert gamma.dtype == input.dtype
    root = (input.double().square().mean(-1, keepdim=True) + epsilon).rsqrt()
    return (input.double() * root * gamma.double()).to(input.dtype), root.float()


def rotary_mul(input, r1, r2, rotary_mode="half", rotate=None):
    calls.append(("rotary", {"mode": rotary_mode, "angles": tuple(r1.shape)}))
    assert input.dim() == r1.dim() == r2.dim() == 4
    x = input.double()
    if rotary_mode == "interleave":
        across = torch.stack((-x[..., 1::2], x[..., ::2]), -1).flatten(-2)
    else:
        across = torch.cat((-x.chunk(2, -1)[1], x.chunk(2, -1)[0]), -1)
    return (r1.double() * x + r2.double() * across).to(input.dtype)


def swiglu(input, dim=-1):
    assert input.is_contiguous()
    gate, value = input.double().chunk(2, dim)
    return (gate * gate.sigmoid() * value).to(input.dtype)


def cross_entropy_loss(input, target, weight=None, reduction="mean", ignore_index=-100, label_smoothing=0.0, **more):
    assert (reduction, ignore_index, label_smoothing) == ("none", -100, 0.0)
    # A negative ignore_index ignores nothing: a label of -100 would be read out of bounds.
    assert target.min() >= 0
    logs = input.log_softmax(-1)
    return -logs.gather(-1, target[:, None])[:, 0], logs, torch.empty(0), torch.empty(0)


def apply_adam_w(
    beta1_power,
    beta2_power,
    lr,
    weight_decay,
    beta1,
    beta2,
    epsilon,
    grad,
    max_grad_norm,
    amsgrad,
    maximize,
    *,
    out,
):
    var, m, v = out
    calls.append(("adam_w", {"beta1_power": beta1_power, "beta2_power": beta2_power}))
    grad = -grad if maximize else grad
    m.mul_(beta1).add_(grad, alpha=1 - beta1)
    v.mul_(beta2).addcmul_(grad, grad, value=1 - beta2)
    mean, square = m / (1 - beta1_power * beta1), v / (1 - beta2_power * beta2)
    var.sub_(lr * mean / (square.sqrt() + epsilon) + lr * weight_decay * var)
    return var.clone(), m.clone(), v.clone()
