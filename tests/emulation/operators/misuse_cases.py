"""Deliberate misuses, at least one for each limit."""

from __future__ import annotations

import os
from typing import Any

import torch
from emulation.operators.case import Misuse

from ascend_adapt.npu_limits import (
    adam,
    batch_norm,
    bmm,
    boxes,
    casts,
    collective_products,
    cross_entropy,
    dropout,
    expert_routing,
    float_status,
    gelu,
    grouped_matmul,
    layer_norm,
    linear,
    linear_cross_entropy,
    masked_softmax,
    products,
    quantised,
    recurrent,
    ring_attention,
    rms_norm,
    rotary,
    slicing,
    swiglu,
    token_permutation,
    transpose,
)
from ascend_adapt.npu_limits import fusion_attention as attention

F64 = torch.float64


def npu(*size: int, dtype: torch.dtype = torch.float32, asks: bool = False) -> torch.Tensor:
    return torch.ones(size, dtype=dtype).npu().requires_grad_(asks)


def misuse(name: str, operator: str, limit: Any, *args: Any, **kwargs: Any) -> Misuse:
    """Return a case; arguments that are functions are called on the device first."""

    def call() -> Any:
        import torch_npu

        given = [one() if callable(one) else one for one in args]
        named = {key: one() if callable(one) else one for key, one in kwargs.items()}
        return getattr(torch_npu, operator.partition(".")[0])(*given, **named)

    return Misuse(f"{operator}: {name}", call, operator, limit)


def of_attention(name: str, limit: Any, sizes: Any = None, *, version: str = "", layout: str = "BNSD", **options: Any):
    """Return a case of npu_fusion_attention; ``sizes`` are those of query, key and value."""
    query, key, value = sizes or ((2, 4, 8, 16),) * 3
    named = {"head_num": 4, "dtype": torch.float32} | options
    dtype = named.pop("dtype")
    heads = named.pop("head_num")
    tensors = [lambda size=size: npu(*size, dtype=dtype) for size in (query, key, value)]
    return misuse(name, f"npu_fusion_attention{version}", limit, *tensors, heads, layout, **named)


def causal(rows: int = 8, columns: int = 8) -> Any:
    return lambda: torch.ones(rows, columns, dtype=torch.bool).triu(1).npu()


def torch_sense(rows: int = 8, columns: int = 8) -> Any:
    """Return torch's causal mask: True = attend."""
    return lambda: torch.ones(rows, columns, dtype=torch.bool).tril().npu()


def compressed() -> torch.Tensor:
    return torch.ones(2048, 2048, dtype=torch.bool).triu(1).npu()


def compressed_prefix() -> torch.Tensor:
    right = (torch.arange(2048) >= 1024).expand(1024, -1)
    return torch.cat((torch.ones(2048, 2048, dtype=torch.bool).triu(1), right)).npu()


def no_mask(*size: int) -> Any:
    return lambda: torch.zeros(size, dtype=torch.bool).npu()


def attention_arguments():
    packed = {"layout": "TND", "sizes": ((8, 4, 16),) * 3}
    ends = {"actual_seq_qlen": [3, 8], "actual_seq_kvlen": [3, 8]}
    yield of_attention("layout", attention.LAYOUT, layout="NSBD")
    yield of_attention("dimensions", attention.LAYOUT, layout="BSH")
    yield of_attention("no heads", attention.HEAD_NUM, head_num=0)
    yield of_attention("other heads", attention.HEAD_NUM, head_num=8)
    yield of_attention("float64", attention.DTYPES, dtype=F64)
    yield of_attention("pse of another dtype", attention.DTYPES, pse=lambda: npu(2, 4, 8, 8, dtype=torch.float16))
    yield of_attention("batch", attention.KEY_AND_VALUE, ((2, 4, 8, 16), (1, 4, 8, 16), (1, 4, 8, 16)))
    yield of_attention(
        "lengths of key and value", attention.KEY_AND_VALUE, ((2, 4, 8, 16), (2, 4, 9, 16), (2, 4, 8, 16))
    )
    yield of_attention("large heads", attention.HEAD_SIZE, ((1, 4, 2, 776),) * 3)
    yield of_attention("larger value", attention.HEAD_SIZE, ((2, 4, 8, 16), (2, 4, 8, 16), (2, 4, 8, 32)))
    yield of_attention("heads of keys", attention.HEADS, ((2, 4, 8, 16), (2, 3, 8, 16), (2, 3, 8, 16)))
    yield of_attention("many heads", attention.HEADS, ((1, 257, 1, 8),) * 3, head_num=257)
    yield of_attention("no keys", attention.LENGTHS, ((2, 4, 8, 16), (2, 4, 0, 16), (2, 4, 0, 16)))
    yield of_attention("a long sequence", attention.LENGTHS, ((1, 4, 1_000_001, 1), *((1, 4, 8, 1),) * 2))
    yield of_attention("a large batch", attention.BATCH, ((2_000_001, 4, 1, 1),) * 3)
    yield of_attention("drop probability 0", attention.KEEP_PROB, keep_prob=0.0)
    yield of_attention("padding_mask", attention.PADDING_MASK, padding_mask=no_mask(8, 8))
    yield of_attention("mode 7 without TND", attention.SPARSE_MODE, sparse_mode=7, atten_mask=compressed)
    yield of_attention("mode 5 with TND", attention.SPARSE_MODE, **packed, **ends, sparse_mode=5, prefix=[1, 1])
    yield of_attention("softmax_layout", attention.SOFTMAX_LAYOUT, softmax_layout="TND")
    yield of_attention("TND without lengths", attention.ACTUAL_LENGTHS, **packed)
    yield of_attention(
        "lengths, not ends", attention.ACTUAL_LENGTHS, **packed, actual_seq_qlen=[5, 3], actual_seq_kvlen=[5, 3]
    )
    ends_of_many = list(range(1, 1002))
    yield of_attention(
        "many sequences",
        attention.SEQUENCES,
        ((1001, 4, 16),) * 3,
        layout="TND",
        actual_seq_qlen=ends_of_many,
        actual_seq_kvlen=ends_of_many,
    )
    yield of_attention(
        "ends past the tokens", attention.ACTUAL_LENGTHS, **packed, actual_seq_qlen=[3, 9], actual_seq_kvlen=[3, 9]
    )
    yield of_attention("pse sizes", attention.PSE_SHAPE, pse=lambda: npu(2, 1, 8, 8))
    yield of_attention("pse_type", attention.PSE_TYPE, version="_v2", pse_type=4)
    yield of_attention("slopes [N, 1]", attention.SLOPES, version="_v2", pse_type=2, pse=lambda: npu(4, 1))
    one_head = {"sizes": ((1, 1, 1032, 8),) * 3, "head_num": 1, "sparse_mode": 3, "atten_mask": compressed}
    uneven = lambda: torch.randn(1, 1, 1024, 1032).npu()  # noqa: E731
    yield of_attention("1024 rows, not by distance", attention.COMPRESSED_PSE, **one_head, pse=uneven)
    yield of_attention("rope outside of TND", attention.ROPE, version="_v2", query_rope=lambda: npu(2, 4, 8, 8))
    yield of_attention("sink of another dtype", attention.SINK, sink=lambda: npu(4, dtype=torch.float16))
    yield of_attention(
        "dropout mask of another seed",
        attention.DROPOUT_MASK,
        keep_prob=0.5,
        dropout_mask=lambda: _gen_mask([2, 4, 8, 8], seed=1),
        seed=2,
    )
    yield of_attention(
        "pse with mode 7",
        attention.SPLIT_PSE,
        **packed,
        **ends,
        sparse_mode=7,
        atten_mask=compressed,
        pse=lambda: npu(2, 4, 8, 8),
    )


def _gen_mask(size: list[int], seed: int) -> torch.Tensor:
    import torch_npu

    return torch_npu._npu_dropout_gen_mask(npu(1), size, p=0.5, seed=seed, offset=0)


def attention_masks():
    packed = {"layout": "TND", "sizes": ((8, 4, 16),) * 3, "actual_seq_qlen": [3, 8], "actual_seq_kvlen": [3, 8]}
    more_keys = ((2, 4, 8, 16), (2, 4, 12, 16), (2, 4, 12, 16))
    yield of_attention("a float mask", attention.MASK_DTYPE, sparse_mode=1, atten_mask=lambda: npu(8, 8))
    yield of_attention("a mask of another size", attention.MASK_SHAPE, sparse_mode=1, atten_mask=no_mask(8, 9))
    yield of_attention(
        "a mask of one row of heads", attention.MASK_SHAPE, sparse_mode=1, atten_mask=no_mask(1, 4, 8, 8)
    )
    for mode in (1, 2, 3, 4):
        yield of_attention(f"mode {mode} without a mask", attention.MASK_MISSING, sparse_mode=mode)
    yield of_attention("next_tockens without a mask", attention.MASK_MISSING, next_tockens=0)
    yield of_attention("pre_tockens without a mask", attention.MASK_MISSING, pre_tockens=4)
    for mode in (2, 3, 4):
        yield of_attention(f"mode {mode}, full mask", attention.COMPRESSED_MASK, sparse_mode=mode, atten_mask=causal())
    yield of_attention(
        "the compressed mask in torch's sense",
        attention.COMPRESSED_MASK,
        sparse_mode=3,
        atten_mask=torch_sense(2048, 2048),
    )
    yield of_attention(
        "mode 7, full mask", attention.COMPRESSED_MASK, **packed, sparse_mode=7, atten_mask=causal(), pre_tockens=8
    )
    yield of_attention(
        "mode 6 with the mask of mode 3",
        attention.COMPRESSED_PREFIX_MASK,
        sparse_mode=6,
        atten_mask=compressed,
        prefix=[4, 4],
    )
    yield of_attention(
        "mode 0, a narrower band than the mask",
        attention.BAND_OUTSIDE_MASK,
        atten_mask=causal(),
        next_tockens=0,
        pre_tockens=3,
    )
    yield of_attention(
        "mode 1 with a band", attention.TOKENS_IGNORED, sparse_mode=1, atten_mask=causal(), pre_tockens=3
    )
    yield of_attention(
        "mode 3 with a window", attention.TOKENS_IGNORED, sparse_mode=3, atten_mask=compressed, pre_tockens=3
    )
    yield of_attention(
        "no band", attention.BAND_EMPTY, sparse_mode=4, atten_mask=compressed, pre_tockens=2, next_tockens=-3
    )
    yield of_attention("a mask in torch's sense", attention.EMPTY_ROW, sparse_mode=1, atten_mask=torch_sense())
    yield of_attention("mode 0, torch's sense", attention.EMPTY_ROW, atten_mask=torch_sense())
    yield of_attention(
        "an empty row in TND",
        attention.EMPTY_ROW_TND,
        **packed,
        sparse_mode=1,
        atten_mask=torch_sense(),
        inner_precise=2,
    )
    yield of_attention(
        "v2 mode 3, more queries",
        attention.CAUSAL_LENGTHS,
        ((2, 4, 12, 16), (2, 4, 8, 16), (2, 4, 8, 16)),
        version="_v2",
        sparse_mode=3,
        atten_mask=compressed,
    )
    yield of_attention("no prefix", attention.PREFIX, sparse_mode=6, atten_mask=compressed_prefix)
    yield of_attention(
        "a prefix too short", attention.PREFIX, more_keys, sparse_mode=6, atten_mask=compressed_prefix, prefix=[2, 2]
    )
    yield of_attention(
        "mode 5, another mask", attention.PREFIX_MASK, sparse_mode=5, atten_mask=no_mask(2, 1, 8, 8), prefix=[4, 4]
    )
    yield of_attention(
        "mode 7, next_tockens", attention.SPLIT_BAND, **packed, sparse_mode=7, atten_mask=compressed, next_tockens=1
    )
    yield of_attention(
        "mode 8, pre_tockens", attention.SPLIT_BAND, **packed, sparse_mode=8, atten_mask=compressed, pre_tockens=2
    )


def rings():
    name = "npu_ring_attention_update"
    part = [lambda: npu(5, 2, 8), lambda: npu(5, 2, 8), lambda: npu(5, 2, 8)]
    yield misuse("layout", name, ring_attention.LAYOUT, *part, *part, input_layout="BSH")
    yield misuse("statistics of TND", name, ring_attention.SHAPES, *part, *part)
    ends = lambda: torch.tensor([2, 5]).npu()  # noqa: E731
    packed = {"input_layout": "TND", "actual_seq_qlen": ends}
    yield misuse("ends, not starts", name, ring_attention.STARTS, *part, *part, **packed)


def on_910a(case: Misuse) -> Misuse:
    """Return a case on the older generation of devices."""

    def call() -> Any:
        before = os.environ["ASCEND_ADAPT_EMULATED_SOC"]
        os.environ["ASCEND_ADAPT_EMULATED_SOC"] = "Ascend910A"
        try:
            return case.call()
        finally:
            os.environ["ASCEND_ADAPT_EMULATED_SOC"] = before

    return Misuse(f"910A {case.name}", call, case.operator, case.limit)


def older_devices():
    x = lambda: npu(2, 8)  # noqa: E731
    yield on_910a(misuse("swiglu", "npu_swiglu", products.A2_OPERATOR, x))
    yield on_910a(of_attention("attention", products.A2_OPERATOR))
    half = lambda: npu(2, 8, dtype=torch.bfloat16)  # noqa: E731
    yield on_910a(misuse("bfloat16", "npu_rms_norm", products.BFLOAT16, half, lambda: npu(8)))
    eighths = lambda: torch.ones(2, 8).to(torch.float8_e4m3fn).npu()  # noqa: E731
    yield misuse("float8", "npu_swiglu", products.FLOAT8, eighths)


def softmax_and_norms():
    softmax = "npu_scaled_masked_softmax"
    square, bools = lambda: npu(2, 2, 32, 32), no_mask(2, 1, 32, 32)  # noqa: E731
    yield misuse("fixed_triu_mask", softmax, masked_softmax.FIXED_TRIU_MASK, square, bools, 1.0, True)
    yield misuse("a float mask", softmax, masked_softmax.MASK_DTYPE, square, square, 1.0, False)
    yield misuse("float64", softmax, masked_softmax.DTYPE, lambda: npu(2, 2, 32, 32, dtype=F64), bools, 1.0, False)
    yield misuse("mask sizes", softmax, masked_softmax.BROADCAST, square, no_mask(2, 3, 32, 32), 1.0, False)
    for rows, columns in ((16, 32), (32, 48), (32, 4128), (33, 32)):
        x = lambda rows=rows, columns=columns: npu(1, 1, rows, columns)  # noqa: E731
        yield misuse(f"{rows} x {columns}", softmax, masked_softmax.SIZES, x, no_mask(1, 1, 1, 1), 1.0, False)
    yield misuse("one dimension", "npu_rms_norm", rms_norm.DIMENSION_COUNT, lambda: npu(8), lambda: npu(8))
    yield misuse("gamma sizes", "npu_rms_norm", rms_norm.GAMMA_SHAPE, lambda: npu(2, 8), lambda: npu(4))
    half = lambda: npu(8, dtype=torch.float16)  # noqa: E731
    yield misuse("float32 with float16", "npu_rms_norm", rms_norm.DTYPES, lambda: npu(2, 8), half)
    x = lambda: npu(2, 8)  # noqa: E731
    yield misuse("dtypes", "npu_add_rms_norm", rms_norm.ADDENDS, x, x, half)
    asking = lambda: npu(2, 8, asks=True)  # noqa: E731
    yield misuse("a gradient", "npu_add_rms_norm", rms_norm.NO_GRADIENT, asking, x, lambda: npu(8))
    yield misuse("weight sizes", "npu_layer_norm_eval", layer_norm.SHAPES, x, [8], lambda: npu(4))
    yield misuse("a gradient", "npu_layer_norm_eval", layer_norm.NO_GRADIENT, asking, [8])


def rotations():
    mul, x = "npu_rotary_mul", lambda: npu(2, 3, 5, 8)
    factor = lambda: npu(1, 1, 5, 8)  # noqa: E731
    half = lambda: npu(1, 1, 5, 8, dtype=F64)  # noqa: E731
    yield misuse("mode", mul, rotary.MODE, x, factor, factor, "quarter")
    yield misuse("float64", mul, rotary.DTYPE, x, half, half)
    yield misuse("dimensions", mul, rotary.DIMENSIONS, x, lambda: npu(5, 8), lambda: npu(5, 8))
    yield misuse("odd heads", mul, rotary.HEAD_SIZE, lambda: npu(2, 3, 5, 7), *[lambda: npu(1, 1, 5, 7)] * 2)
    yield misuse("partial rotation", mul, rotary.HEAD_SIZE, x, *[lambda: npu(1, 1, 5, 4)] * 2)
    yield misuse("large heads", mul, rotary.HEAD_SIZE, lambda: npu(1, 1, 2, 896), *[lambda: npu(1, 1, 2, 896)] * 2)
    yield misuse("many heads", mul, rotary.BATCH_AND_HEADS, lambda: npu(2, 1000, 3, 2), *[lambda: npu(1, 1, 3, 2)] * 2)
    many = [lambda: npu(40, 30, 3, 2), lambda: npu(1, 1, 3, 2, asks=True), lambda: npu(1, 1, 3, 2, asks=True)]
    yield misuse("gradients of cos", mul, rotary.BATCH_AND_HEADS, *many)
    yield misuse("one angle for all", mul, rotary.BROADCAST, x, *[lambda: npu(1, 1, 1, 8)] * 2)
    yield misuse(
        "an angle a batch, interleaved", mul, rotary.BROADCAST, x, *[lambda: npu(2, 1, 5, 8)] * 2, "interleave"
    )
    asking = lambda: npu(2, 3, 5, 8, asks=True)  # noqa: E731
    yield misuse("rotate", mul, rotary.ROTATE_GRADIENT, asking, factor, factor, "half", rotate=lambda: npu(8, 8))
    apply, query, angle = "npu_apply_rotary_pos_emb", lambda: npu(2, 5, 3, 64), lambda: npu(2, 5, 1, 64)
    yield misuse("layout", apply, rotary.LAYOUT, query, query, angle, angle, "BNSD")
    yield misuse("mode", apply, rotary.HALF_ONLY, query, query, angle, angle, "BSND", "interleave")
    yield misuse("heads", apply, rotary.SIZES, *[lambda: npu(2, 5, 3, 80)] * 2, *[lambda: npu(2, 5, 1, 80)] * 2)
    yield misuse("one angle a batch", apply, rotary.SIZES, query, query, *[lambda: npu(1, 5, 1, 64)] * 2)
    yield misuse("dtypes", apply, rotary.ONE_DTYPE, query, query, angle, lambda: npu(2, 5, 1, 64, dtype=F64))
    yield misuse("a gradient", apply, rotary.INFERENCE, lambda: npu(2, 5, 3, 64, asks=True), query, angle, angle)


def activations_and_products():
    x = lambda: npu(2, 8)  # noqa: E731
    yield misuse("not contiguous", "npu_swiglu", swiglu.CONTIGUOUS, lambda: npu(8, 2).t())
    yield misuse("empty", "npu_swiglu", swiglu.NOT_EMPTY, lambda: npu(0, 8))
    yield misuse("odd", "npu_swiglu", swiglu.EVEN, lambda: npu(2, 7))
    yield misuse("float64", "npu_swiglu", swiglu.DTYPE, lambda: npu(2, 8, dtype=F64))
    yield misuse("approximate", "npu_gelu", gelu.APPROXIMATE, x, approximate="sigmoid")
    yield misuse("nine dimensions", "npu_gelu", gelu.DIMENSION_COUNT, lambda: npu(*[1] * 9))
    yield misuse("float64", "npu_fast_gelu", gelu.DTYPE, lambda: npu(2, 8, dtype=F64))
    yield misuse("odd size", "npu_geglu", gelu.HALVES, lambda: npu(2, 7))
    yield misuse("dtypes", "npu_bmmV2", bmm.DTYPE, x, lambda: npu(8, 2, dtype=torch.float16), [])
    yield misuse("inner sizes", "npu_bmmV2", bmm.SHAPES, lambda: npu(2, 3, 4), lambda: npu(2, 5, 4), [])
    yield misuse("a batch", "npu_linear", linear.MATRICES, lambda: npu(2, 3, 8), lambda: npu(4, 8))
    yield misuse("permutation", "npu_confusion_transpose", transpose.PERMUTATION, x, [0, 0], [8, 2], True)
    yield misuse("elements", "npu_confusion_transpose", transpose.PERMUTATION, x, [1, 0], [8, 3], True)


def losses():
    name, x = "npu_cross_entropy_loss", lambda: npu(4, 6)
    asking = lambda: npu(4, 6, asks=True)  # noqa: E731
    target = lambda: torch.tensor([0, 5, 2, 2]).npu()  # noqa: E731
    weight = lambda: npu(6)  # noqa: E731
    yield misuse("sizes", name, cross_entropy.SHAPES, lambda: npu(2, 3, 6), target)
    yield misuse("int32", name, cross_entropy.DTYPES, x, lambda: torch.tensor([0, 5, 2, 2], dtype=torch.int32).npu())
    yield misuse("reduction", name, cross_entropy.REDUCTION, x, target, reduction="batchmean")
    yield misuse("smoothing of 1", name, cross_entropy.SMOOTHING, x, target, label_smoothing=1.0)
    ignored = lambda: torch.tensor([0, -100, 2, 2]).npu()  # noqa: E731
    yield misuse("torch's ignore_index", name, cross_entropy.TARGET_RANGE, x, ignored)
    yield misuse("a label too large", name, cross_entropy.TARGET_RANGE, x, lambda: torch.tensor([0, 6, 2, 2]).npu())
    yield misuse("ignore_index", name, cross_entropy.IGNORE_INDEX, x, target, ignore_index=6)
    yield misuse("zloss", name, cross_entropy.ZLOSS, x, target, return_zloss=True)
    yield misuse("mean with weight", name, cross_entropy.MEAN_GRADIENT, asking, target, weight)
    yield misuse("mean with ignore_index", name, cross_entropy.MEAN_GRADIENT, asking, target, ignore_index=2)
    options = {"reduction": "sum", "label_smoothing": 0.1}
    yield misuse("sum with smoothing", name, cross_entropy.SUM_GRADIENT, asking, target, **options)


def losses_of_a_part_of_the_vocabulary():
    def half(*size: int) -> Any:
        return lambda: npu(*size, dtype=torch.float16)

    def integers(size: int, value: int = 1, dtype: torch.dtype = torch.int64) -> Any:
        return lambda: torch.full((size,), value, dtype=dtype).npu()

    limits = linear_cross_entropy
    name, x, weight = "npu_fused_linear_online_max_sum", half(4, 8), half(128, 8)
    yield misuse("float32", name, limits.DTYPES, lambda: npu(4, 8), lambda: npu(128, 8), integers(4), 0, 128)
    yield misuse("transposed", name, limits.SHAPES, x, half(8, 128), integers(4), 0, 128)
    yield misuse("end before start", name, limits.RANGE, x, weight, integers(4), 2, 1)
    yield misuse("more tokens than weights", name, limits.ROWS_OF_WEIGHT, x, weight, integers(4), 0, 129)
    name, row = "npu_fused_cross_entropy_loss_with_max_sum", lambda: npu(4)
    yield misuse("rows", name, limits.LOSS_TENSORS, row, row, lambda: npu(5))
    yield misuse("float16", name, limits.LOSS_TENSORS, half(4), row, row)
    yield misuse("smoothing", name, limits.LOSS_OPTIONS, row, row, row, label_smoothing=0.1)
    yield misuse("a weight", name, limits.LOSS_OPTIONS, row, row, row, weight=weight)
    name, bits = "npu_fused_linear_cross_entropy_loss_with_max_sum_backward", integers(1, 0, torch.uint8)
    given = {"softmax": lambda: npu(4, 128)}
    yield misuse("bytes", name, limits.GRADIENT_DTYPES, row, x, weight, integers(4), integers(4), **given)
    few = integers(0, 0, torch.uint8)
    yield misuse("too few bits", name, limits.GRADIENT_SHAPES, row, x, weight, few, integers(4), **given)
    yield misuse("a small vocabulary", name, limits.GRADIENT_SHAPES, row, x, half(127, 8), bits, integers(4), **given)
    yield misuse(
        "softmax of another part", name, limits.GRADIENT_SHAPES, row, x, half(130, 8), bits, integers(4), **given
    )
    yield misuse("float16", name, limits.GRADIENT_DTYPES, row, x, weight, bits, integers(4), softmax=half(4, 128))
    yield misuse("no statistics", name, limits.GRADIENT_MODES, row, x, weight, bits, integers(4), logits_max=row)
    yield misuse("smoothing", name, limits.GRADIENT_SMOOTHING, row, x, weight, bits, integers(4), 0.1, **given)
    yield misuse("no local target", name, limits.TARGET_RANGE, row, x, weight, bits, integers(4, 128), **given)


def steps():
    def out(size=3):
        return lambda: tuple(npu(size) for _ in range(3))

    adam_arguments = [0.01, 0.9, 0.99, 1e-8, lambda: npu(3), False, False]
    adam_w_arguments = [0.01, 0.1, 0.9, 0.99, 1e-8, lambda: npu(3), None, False, False]
    yield misuse("no out", "npu_apply_adam", adam.OUT_ONLY, 0.9, 0.99, *adam_arguments)
    yield misuse("no out", "npu_apply_adam_w", adam.OUT_ONLY, 0.9, 0.99, *adam_w_arguments)
    yield misuse("sizes", "npu_apply_adam.out", adam.SHAPES, 0.9, 0.99, *adam_arguments, out=out(4))
    yield misuse("powers of step - 1", "npu_apply_adam.out", adam.ADAM_POWERS, 1.0, 1.0, *adam_arguments, out=out())
    yield misuse("powers of 0", "npu_apply_adam_w.out", adam.ADAM_W_POWERS, 0.0, 0.0, *adam_w_arguments, out=out())
    scalar, scalars = [0.01, 0.1, 0.9, 0.99, 1e-8, npu, None, False, False], lambda: tuple(npu() for _ in range(3))
    yield misuse("0-d", "npu_apply_adam_w.out", adam.DIMENSION_COUNT, 0.9, 0.99, *scalar, out=scalars)
    bert, name = [0.01, 0.9, 0.99, 1e-8, lambda: npu(3)], "npu_bert_apply_adam.out"
    yield misuse("no out", "npu_bert_apply_adam", adam.OUT_ONLY, *bert, 1.0, 0.5, 0.0)
    yield misuse("dtypes", name, adam.BERT_DTYPES, *bert[:4], lambda: npu(3).half(), 1.0, 0.5, 0.0, out=out())
    yield misuse("a norm of 2", name, adam.BERT_CLIPPING, *bert, 2.0, 3.0, 0.0, out=out())
    yield misuse("no step size", name, adam.BERT_STEP_SIZE, *bert, 1.0, 0.5, 0.0, None, 1, out=out())
    amsgrad = [*adam_w_arguments[:-2], True, False]
    yield misuse("amsgrad", "npu_apply_adam_w.out", adam.AMSGRAD, 0.9, 0.99, *amsgrad, out=out())


def casts_and_dropout():
    part = lambda: npu(1024)[256:512].view(16, 16)  # noqa: E731
    yield misuse("no channels", "batch_norm_reduce", batch_norm.CHANNELS, lambda: npu(3), 1e-5)
    yield misuse("a part of a buffer", "_npu_format_cast", casts.WHOLE_STORAGE, part, 29)
    yield misuse("in place", "npu_format_cast_.acl_format", casts.WHOLE_STORAGE, part, 29)
    yield misuse("no such format", "_npu_format_cast", casts.FORMAT, lambda: npu(16, 16), 99)
    half = lambda: npu(4, dtype=torch.float16)  # noqa: E731
    yield misuse("dtypes", "copy_memory_", casts.SAME_DTYPE, lambda: npu(4), half)
    yield misuse("probability", "_npu_dropout", dropout.PROBABILITY, lambda: npu(4), 1.5)
    yield misuse("integers", "_npu_dropout", dropout.PROBABILITY, lambda: npu(4, dtype=torch.int32), 0.5)
    yield misuse("a mask of bytes", "npu_dropout_do_mask", dropout.MASK_SIZE, lambda: npu(4), half, 0.5)
    yield misuse("probability", "_dropout_with_byte_mask", dropout.PROBABILITY, lambda: npu(4), -0.5)
    packed_mask = lambda: npu(16, dtype=torch.uint8)  # noqa: E731
    yield misuse("bits", "_dropout_with_byte_mask_backward", dropout.BYTE_MASK, lambda: npu(4), packed_mask, 0.5)
    name, x = "npu_dropout_with_add_softmax", lambda: npu(4, 8, 128, 128)
    small = lambda: npu(4, 8, 64, 64)  # noqa: E731
    yield misuse("sizes", name, dropout.SOFTMAX_SHAPES, small, small, 1.0, 0.1, -1)
    yield misuse("dim", name, dropout.SOFTMAX_DIM, x, x, 1.0, 0.1, 1)
    asking = lambda: npu(4, 8, 128, 128, asks=True)  # noqa: E731
    yield misuse("gradient of x1", name, dropout.SOFTMAX_X1_GRADIENT, x, asking, 1.0, 0.1, -1)
    yield misuse("mode", "npu_get_float_status", float_status.MODE, lambda: npu(8), 2)


def recurrences():
    def lstm(
        name: str,
        limit: Any,
        layers: int = 1,
        dropout: float = 0.0,
        *,
        seq: bool = False,
        columns: int = 32,
        **of_weight: Any,
    ):
        x, state = lambda: npu(4, 3, 5), lambda: npu(1, 3, 8)
        weight = lambda: npu(13, columns, **of_weight)  # noqa: E731
        flags = (True, layers, dropout, True, False, False, seq, False)
        return misuse(name, "npu_lstm", limit, x, weight, lambda: npu(32), lambda: npu(0), state, state, *flags)

    yield lstm("dropout between layers", recurrent.DROPOUT, 2, 0.5)
    yield lstm("a packed sequence", recurrent.DIRECTION, seq=True)
    yield lstm("float32 with bfloat16", recurrent.DTYPES, dtype=torch.bfloat16)
    yield lstm("sizes", recurrent.SHAPES, columns=24)


def experts():
    def whole(*values: int):
        return lambda: torch.tensor(values).npu()

    def product(
        name: str, limit: Any, x=(4, 8), w=(2, 8, 3), groups=(2, 4), dtype: Any = torch.float32, **options: Any
    ):
        tensors = (lambda: [npu(*x, dtype=dtype)], lambda: [npu(*w, dtype=dtype)])
        named = {"group_list": whole(*groups), "split_item": 3, "group_type": 0} | options
        return misuse(name, "npu_grouped_matmul", limit, *tensors, **named)

    yield product("no group_type", grouped_matmul.GROUP_TYPE, group_type=None)
    yield product("split_item", grouped_matmul.SPLIT_ITEM, split_item=4)
    yield product("rows in no group", grouped_matmul.GROUP_LIST, groups=(2, 3))
    yield product("sizes", grouped_matmul.PAIRS, w=(2, 7, 3))
    yield product("dtype", grouped_matmul.DTYPE, dtype=torch.int16)
    yield product("a long row", grouped_matmul.INNER, x=(4, 65536), w=(2, 65536, 1))
    added = (lambda: npu(16, 3), lambda: npu(4, 8), lambda: npu(4, 3), whole(2, 4))
    yield misuse("transposed", "npu_grouped_matmul_add", grouped_matmul.ADD, *added, transpose_x=False)
    tokens, chosen = lambda: npu(4, 8), lambda: npu(4, 2, dtype=torch.int32)  # noqa: E731
    name = "npu_moe_token_permute"
    yield misuse("padded", name, token_permutation.NOT_PADDED, tokens, chosen, padded_mode=True)
    yield misuse("tokens", name, token_permutation.TOKENS, tokens, lambda: npu(3, 2, dtype=torch.int32))
    routed = lambda: npu(4, 2, dtype=torch.bool)  # noqa: E731
    name = "npu_moe_token_permute_with_routing_map"
    yield misuse("too few", name, token_permutation.ROUTED, tokens, routed, num_out_tokens=4)


def of_underscored(name: str, operator: str, limit: Any, *args: Any, **kwargs: Any) -> Misuse:
    """Return a case of an operator whose kernel has an underscore in front of the name that users call."""
    case = misuse(name, operator, limit, *args, **kwargs)
    return Misuse(case.name, case.call, f"_{operator}", limit)


def experts_back():
    rows, places = lambda: npu(5, 8), whole_range(5)  # noqa: E731
    name = "npu_moe_token_unpermute"
    yield of_underscored("probs", name, token_permutation.PROBS, rows, places, probs=lambda: npu(2, 2))
    restored = {"restore_shape": [5, 8], "probs": lambda: npu(5, 1)}
    name = "npu_moe_token_unpermute_with_routing_map"
    yield of_underscored("no map", name, token_permutation.MAP, rows, places, **restored)


def whole_range(count: int):
    return lambda: torch.arange(count, dtype=torch.int32).npu()


def slices_and_integers():
    x = lambda: npu(4, 5)  # noqa: E731
    yield misuse("outside", "npu_slice", slicing.BLOCK, x, [0, 3], [4, 3])
    yield misuse("backwards", "npu_indexing", slicing.STRIDES, x, [3, 0], [0, 5], [-1, 1])
    yield misuse("one dimension", "npu_pad", slicing.PADDINGS, x, [1, 1])
    yield misuse("floats", "npu_quant_matmul", quantised.INT8, x, lambda: npu(5, 2), lambda: npu(2))
    integers = [lambda: npu(4, 5, dtype=torch.int8), lambda: npu(4, 2, dtype=torch.int8)]
    yield misuse("sizes", "npu_quant_matmul", quantised.INNER, *integers, lambda: npu(2))
    yield misuse("ten", "npu_dynamic_quant", quantised.PACKED, lambda: npu(4, 10), dst_type=torch.quint4x2)
    cache, updates = lambda: npu(1, 2, 32, dtype=torch.int8), lambda: npu(1, 1, 32)  # noqa: E731
    given = cache, whole_range(1), updates, updates, None, -2, -1, "add"
    yield misuse("added", "npu_quant_scatter", quantised.UPDATE, *given)


def rows_by_expert():
    tokens, counts = lambda: npu(3, 4), lambda: torch.ones(1, 2, dtype=torch.int32).npu()  # noqa: E731
    yield misuse("too many", "npu_moe_re_routing", expert_routing.EVERY_TOKEN, tokens, counts)
    yield misuse("sums", "npu_moe_re_routing", expert_routing.MODES, tokens, counts, expert_token_num_type=0)
    experts = lambda: torch.ones(3, 1, dtype=torch.int32).npu()  # noqa: E731
    fixed = {"expert_num": 2, "quant_mode": 0}
    yield misuse("no offset", "npu_moe_init_routing_v2", expert_routing.STATIC, tokens, experts, **fixed)


def overlaps_of_boxes():
    box = lambda: npu(4, 3, asks=True)  # noqa: E731
    yield misuse("corners", "npu_giou", boxes.GIOU, box, box)

    def backward():
        import torch_npu

        torch_npu.npu_diou(box(), box()).sum().backward()

    yield Misuse("npu_diou: a gradient of corners", backward, "npu_diou_backward", boxes.DIOU_BACKWARD)


def products_of_ranks():
    half = torch.float16
    rows, matrix = lambda: npu(4, 256, dtype=half), lambda: npu(256, 3, dtype=half)  # noqa: E731
    gather, scatter = "npu_all_gather_base_mm", "npu_mm_reduce_scatter_base"
    limits = collective_products
    yield misuse("three ranks", gather, limits.WORLD, rows, matrix, "", 3)
    yield misuse("no group", gather, limits.GROUP, rows, matrix, "", 2)
    yield misuse("sizes", scatter, limits.SHAPES, rows, rows, "", 2)
    yield misuse("few columns", scatter, limits.INNER, lambda: npu(4, 8, dtype=half), lambda: npu(8, 3), "", 2)
    yield misuse("float32", scatter, limits.DTYPE, lambda: npu(4, 256), lambda: npu(256, 3), "", 2)
    scaled = {"x2_scale": lambda: npu(1, 3)}
    integers = [lambda: npu(4, 256, dtype=torch.int8), lambda: npu(256, 3, dtype=torch.int8)]
    yield misuse("int8 of ai_cpu", gather, limits.DTYPE, *integers, "", 2, **scaled)
    yield misuse("transposed", gather, limits.TRANSPOSED, lambda: npu(256, 4, dtype=half).t(), matrix, "", 2)
    yield misuse("bias", gather, limits.BIAS, rows, matrix, "", 2, bias=lambda: npu(3, dtype=half))
    yield misuse("gathered second matrix", gather, limits.DEFAULTS, rows, matrix, "", 2, gather_index=1)
    yield misuse("maximum", scatter, limits.DEFAULTS, rows, matrix, "", 2, reduce_op="max")
    given = {"gather_output": False, "comm_mode": "aiv"}
    yield misuse("product only", gather, limits.GATHERED, rows, matrix, "", 2, **given)
    yield misuse("five rows", scatter, limits.ROWS, lambda: npu(5, 256, dtype=half), matrix, "", 2)


CASES = [
    *attention_arguments(),
    *attention_masks(),
    *rings(),
    *older_devices(),
    *softmax_and_norms(),
    *rotations(),
    *activations_and_products(),
    *losses(),
    *losses_of_a_part_of_the_vocabulary(),
    *steps(),
    *casts_and_dropout(),
    *recurrences(),
    *experts(),
    *experts_back(),
    *rows_by_expert(),
    *slices_and_integers(),
    *overlaps_of_boxes(),
    *products_of_ranks(),
]
