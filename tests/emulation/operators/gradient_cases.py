"""Every differentiable operator except attention, over shapes and dtypes, with its definition in float64."""

from __future__ import annotations

import torch
from emulation.operators import box_cases, convolution_cases, expert_cases
from emulation.operators.case import Gradient
from torch.nn import functional

F16, BF16, F32 = torch.float16, torch.bfloat16, torch.float32
_numbers = torch.Generator().manual_seed(7)


def normal(*size, dtype=F32):
    return torch.randn(size, generator=_numbers).to(dtype)


def npu():
    import torch_npu

    return torch_npu


def rms_norm(x, gamma):
    axes = tuple(range(-gamma.dim(), 0))
    return x / (x.square().mean(axes, keepdim=True) + 1e-5).sqrt() * gamma


def masked_softmax(x, mask):
    return (x * 0.5).masked_fill(mask, -10000.0).softmax(-1)


def rotary(x, cos, sin, mode):
    if mode == "half":
        half = x.shape[-1] // 2
        turned = torch.cat((-x[..., half:], x[..., :half]), -1)
    else:
        turned = torch.empty_like(x)
        turned[..., ::2], turned[..., 1::2] = -x[..., 1::2], x[..., ::2]
    return x * cos + turned * sin


def swiglu(x, dim):
    first, second = x.tensor_split(2, dim)
    return first * torch.sigmoid(first) * second


def geglu(x, left):
    first, second = x.chunk(2, -1)
    kept, activated = (second, first) if left else (first, second)
    return kept * functional.gelu(activated, approximate="tanh")


def rms_cases():
    for size, dims in (((2, 5, 8), 1), ((4, 3, 16, 32), 2), ((7, 96), 1)):
        for dtype, of_gamma in ((F32, F32), (F16, F16), (BF16, F32)):
            inputs = {"x": normal(*size, dtype=dtype), "gamma": normal(*size[-dims:], dtype=of_gamma)}
            yield Gradient(
                f"rms_norm {list(size)} {dtype} {of_gamma}",
                lambda x, gamma: npu().npu_rms_norm(x, gamma, epsilon=1e-5)[0],
                rms_norm,
                inputs,
                "NpuRmsNormBackward0",
            )


def softmax_cases():
    sizes = (((2, 4, 32, 64), (2, 1, 32, 64)), ((1, 2, 64, 32), (64, 32)), ((32, 96), (32, 96)))
    for size, of_mask in sizes:
        for dtype in (F32, F16, BF16):
            mask = torch.rand(of_mask, generator=_numbers) < 0.4
            mask[..., 3, :] = True
            yield Gradient(
                f"scaled_masked_softmax {list(size)} {dtype}",
                lambda x, mask: npu().npu_scaled_masked_softmax(x, mask, 0.5, False),
                masked_softmax,
                {"x": normal(*size, dtype=dtype), "mask": mask},
                "NpuScaledMaskedSoftmaxBackward0",
            )


def rotary_cases():
    layouts = {
        "BNSD 11SD": ((2, 3, 5, 8), (1, 1, 5, 8)),
        "BNSD B1SD": ((2, 3, 5, 8), (2, 1, 5, 8)),
        "BNSD BNSD": ((2, 3, 5, 8), (2, 3, 5, 8)),
        "BSND 1S1D": ((2, 5, 3, 8), (1, 5, 1, 8)),
        "SBND S11D": ((5, 2, 3, 8), (5, 1, 1, 8)),
        "TND T1D": ((10, 3, 16), (10, 1, 16)),
    }
    for name, (size, of_factor) in layouts.items():
        modes = ("half", "interleave") if name.split()[1] in ("11SD", "1S1D", "S11D", "T1D") else ("half",)
        for mode in modes:
            for dtype in (F32, BF16):
                yield Gradient(
                    f"rotary_mul {name} {mode} {dtype}",
                    lambda x, cos, sin, mode=mode: npu().npu_rotary_mul(x, cos, sin, mode),
                    lambda x, cos, sin, mode=mode: rotary(x, cos, sin, mode),
                    {
                        "x": normal(*size, dtype=dtype),
                        "cos": normal(*of_factor, dtype=dtype).clamp(-1, 1),
                        "sin": normal(*of_factor, dtype=dtype).clamp(-1, 1),
                    },
                    "NpuRotaryMulBackward0",
                )


def activation_cases():
    for size, dim in (((3, 8), -1), ((4, 5, 6), 0), ((2, 6, 3), 1)):
        for dtype in (F32, F16):
            yield Gradient(
                f"swiglu {list(size)} {dim} {dtype}",
                lambda x, dim=dim: npu().npu_swiglu(x, dim),
                lambda x, dim=dim: swiglu(x, dim),
                {"x": normal(*size, dtype=dtype)},
                "NpuSwigluBackward0",
            )
    for dtype in (F32, F16, BF16):
        x = {"x": normal(5, 7, dtype=dtype) * 3}
        for form in ("none", "tanh"):
            yield Gradient(
                f"gelu {form} {dtype}",
                lambda x, form=form: npu().npu_gelu(x, approximate=form),
                lambda x, form=form: functional.gelu(x, approximate=form),
                x,
                "NpuGeluBackward0",
            )
        for left in (False, True):
            yield Gradient(
                f"geglu {left} {dtype}",
                lambda x, left=left: npu().npu_geglu(x, -1, 1, left)[0],
                lambda x, left=left: geglu(x, left),
                {"x": normal(5, 8, dtype=dtype) * 3},
                "NpuGegluBackward0",
            )
        for name, node in (("fast_gelu", "FastGeluBackward0"), ("npu_fast_gelu", "NpuFastGeluBackward0")):
            yield Gradient(
                f"{name} {dtype}",
                lambda x, name=name: getattr(npu(), name)(x),
                lambda x: x / (1 + (-1.702 * x).exp()),
                x,
                node,
            )
        yield Gradient(
            f"silu {dtype}", lambda x: npu().npu_silu(x), lambda x: functional.silu(x), x, "NpuSiluBackward0"
        )


def cross_entropy_cases():
    target = torch.tensor([0, 3, 8, 3, 1, 6])
    weight = torch.rand(9, generator=_numbers) * 0.9 + 0.1
    options = (
        ("mean", {}),
        ("sum", {}),
        ("none", {}),
        ("sum", {"weight": weight}),
        ("none", {"weight": weight, "ignore_index": 3}),
        ("sum", {"ignore_index": 3}),
    )
    for reduction, more in options:
        for dtype in (F32, BF16):

            def operator(x, reduction=reduction, more=more):
                given = {key: value.npu() if key == "weight" else value for key, value in more.items()}
                return npu().npu_cross_entropy_loss(x, target.npu(), reduction=reduction, **given)[0]

            def oracle(x, reduction=reduction, more=more):
                given = {key: value.double() if key == "weight" else value for key, value in more.items()}
                loss = functional.cross_entropy(x, target, reduction=reduction, **given)
                return loss if reduction == "none" else loss.reshape(1)

            yield Gradient(
                f"cross_entropy_loss {reduction} {sorted(more)} {dtype}",
                operator,
                oracle,
                {"x": normal(6, 9, dtype=dtype)},
                "NpuCrossEntropyLossBackward0",
            )


def product_cases():
    sizes = (((2, 3, 4), (2, 4, 5)), ((2, 1, 3, 4), (5, 4, 6)), ((4,), (2, 4, 5)), ((2, 3, 4), (4,)), ((3, 4), (4, 2)))
    for first, second in sizes:
        for dtype in (F32, F16):
            yield Gradient(
                f"bmmV2 {list(first)} {list(second)} {dtype}",
                lambda a, b: npu().npu_bmmV2(a, b, []),
                lambda a, b: a @ b,
                {"a": normal(*first, dtype=dtype), "b": normal(*second, dtype=dtype)},
                "NpuBmmv2Backward0",
            )
    for dtype in (F32, F16):
        yield Gradient(
            f"linear {dtype}",
            lambda x, weight, bias: npu().npu_linear(x, weight, bias),
            functional.linear,
            {"x": normal(4, 6, dtype=dtype), "weight": normal(3, 6, dtype=dtype), "bias": normal(3, dtype=dtype)},
            "NpuLinearBackward0",
        )


def shape_cases():
    x = {"x": normal(2, 3, 4, 6)}
    yield Gradient(
        "confusion_transpose first",
        lambda x: npu().npu_confusion_transpose(x, [0, 2, 1, 3], [2, 4, 18], True),
        lambda x: x.permute(0, 2, 1, 3).reshape(2, 4, 18),
        x,
        "NpuConfusionTransposeBackward0",
    )
    yield Gradient(
        "confusion_transpose last",
        lambda x: npu().npu_confusion_transpose(x, [2, 0, 1], [2, 12, 6], False),
        lambda x: x.reshape(2, 12, 6).permute(2, 0, 1),
        x,
        "NpuConfusionTransposeBackward0",
    )
    for dtype in (F16, BF16):
        yield Gradient(
            f"dtype_cast {dtype}",
            lambda x, dtype=dtype: npu().npu_dtype_cast(x, dtype),
            lambda x: x * 1,
            x,
            "NpuDtypeCastBackward0",
        )
    yield Gradient("format_cast", lambda x: npu().npu_format_cast(x, 29), lambda x: x * 1, x, "NpuFormatCastBackward0")


class LinearCrossEntropy(torch.autograd.Function):
    """The operators as a training framework composes them, on one rank with all of the vocabulary."""

    @staticmethod
    def forward(ctx, x, weight, target, keeps_logits):
        largest, total, predicted, mask, masked_target, logits = npu().npu_fused_linear_online_max_sum(
            x, weight, target, 0, len(weight), keeps_logits
        )
        loss, softmax = npu().npu_fused_cross_entropy_loss_with_max_sum(
            largest, total, predicted, vocab_parallel_logits=logits
        )
        assert (logits is None, softmax is None) == (not keeps_logits, not keeps_logits)
        statistics = (None, None) if keeps_logits else (largest, total)
        ctx.saved = (x, weight, mask, masked_target, 0.0, *statistics, softmax)
        return loss

    @staticmethod
    def backward(ctx, grad):
        return *npu().npu_fused_linear_cross_entropy_loss_with_max_sum_backward(grad, *ctx.saved), None, None


def linear_cross_entropy_cases():
    for dtype, integers, keeps_logits in (
        (F16, torch.int64, False),
        (BF16, torch.int32, False),
        (F16, torch.int32, True),
    ):
        target = torch.randint(0, 130, (11,), generator=_numbers).to(integers)
        yield Gradient(
            f"linear_cross_entropy {dtype} {'logits' if keeps_logits else ''}",
            lambda x, weight, target=target, keeps_logits=keeps_logits: LinearCrossEntropy.apply(
                x, weight, target.npu(), keeps_logits
            ),
            lambda x, weight, target=target: functional.cross_entropy(x @ weight.T, target.long(), reduction="none"),
            {"x": normal(11, 8, dtype=dtype), "weight": (normal(130, 8) / 4).to(dtype)},
        )


def renormed(x, p, dim, largest):
    norm = x.abs().pow(p).sum([axis for axis in range(x.dim()) if axis != dim % x.dim()], keepdim=True).pow(1 / p)
    return torch.where(norm > largest, x * largest / (norm + 1e-7), x)


def renorm_cases():
    for p, dim, largest in ((2.0, 0, 1.0), (1.0, -1, 2.0), (0.5, 0, 40.0), (3.0, 1, 1.5)):
        yield Gradient(
            f"renorm {p} {dim}",
            lambda x, p=p, dim=dim, largest=largest: torch.renorm(x, p, dim, largest),
            lambda x, p=p, dim=dim, largest=largest: renormed(x, p, dim, largest),
            {"x": normal(4, 8)},
            "RenormBackward0",
        )


def dropout_cases():
    def kept(mask, x):
        bits = (mask.cpu().reshape(-1, 1) >> torch.arange(8)) & 1
        return bits.reshape(-1)[: x.numel()].reshape(x.shape)

    for dtype in (F32, F16):
        yield Gradient(
            f"_npu_dropout {dtype}",
            lambda x: npu()._npu_dropout(x, 0.3),
            lambda x, extra: x * kept(extra, x) / 0.7,
            {"x": normal(37, 11, dtype=dtype)},
            "NpuDropoutBackward0",
        )
        yield Gradient(
            f"_dropout_with_byte_mask {dtype}",
            lambda x: npu()._dropout_with_byte_mask(x, 0.3),
            lambda x, extra: x * extra.cpu() / 0.7,
            {"x": normal(5, 7, 11, dtype=dtype)},
            "DropoutWithByteMaskBackward0",
        )
        yield Gradient(
            f"dropout_do_mask {dtype}",
            lambda x: npu().npu_dropout_do_mask(x, npu().npu_dropout_gen_mask(x.shape, 0.5, device=x.device), 0.5),
            lambda x, extra: x * kept(extra, x) / 0.5,
            {"x": normal(8, 16, dtype=dtype)},
            "NpuDropoutDoMaskBackward0",
        )

    def added(x, other):
        mask, _, result = npu().npu_dropout_with_add_softmax(x, other, 0.125, 0.25, -1)
        return result, mask

    yield Gradient(
        "dropout_with_add_softmax",
        added,
        lambda x, other, extra: (other + 0.125 * x).softmax(-1) * extra.cpu().reshape(x.shape) / 0.75,
        {"x": normal(4, 8, 128, 128), "other": normal(4, 8, 128, 128)},
        "NpuDropoutWithAddSoftmaxBackward0",
        constant=frozenset({"other"}),
    )


def loss_cases():
    pair = {"x": normal(4, 5), "y": normal(4, 5)}
    likely = {"x": normal(4, 5).log_softmax(-1), "y": normal(4, 5).softmax(-1)}
    for reduction in ("mean", "sum", "none"):
        for name, loss, inputs in (
            ("l1_loss", functional.l1_loss, pair),
            ("kl_div", functional.kl_div, likely),
            ("bce", functional.binary_cross_entropy_with_logits, {"x": pair["x"], "y": likely["y"]}),
        ):

            def reduced(x, y, loss=loss, reduction=reduction):
                return loss(x, y, reduction=reduction)

            constant = frozenset() if name == "kl_div" else frozenset({"y"})
            yield Gradient(f"{name} {reduction}", reduced, reduced, inputs, constant=constant)
    for repeats, dim in ((3, 0), (2, None), (torch.tensor([2, 0, 1, 3]), 0)):

        def repeated(x, repeats=repeats, dim=dim):
            return x.repeat_interleave(repeats.to(x.device) if isinstance(repeats, torch.Tensor) else repeats, dim)

        yield Gradient(f"repeat_interleave {repeats} {dim}", repeated, repeated, {"x": normal(4, 5)})


def recurrent_cases():
    inputs, hidden = 5, 8
    states = {"h": normal(2, 3, hidden), "c": normal(2, 3, hidden)}
    cells = {"x": normal(3, inputs), "h": states["h"][0], "c": states["c"][0]}
    for name, gates in (("lstm", 4), ("gru", 3)):
        weights = {
            f"{side}{at}": normal(gates * hidden, columns) if columns else normal(gates * hidden)
            for at in (0, 1)
            for side, columns in (("w_ih", inputs), ("w_hh", hidden), ("b_ih", 0), ("b_hh", 0))
        }

        def both_directions(x, h, c=None, name=name, **weights):
            first = h if c is None else (h, c)
            found = getattr(torch, name)(x, first, list(weights.values()), True, 1, 0.0, True, True, False)
            return torch.cat([one.flatten() for one in found])

        kept = states if name == "lstm" else {"h": states["h"]}
        yield Gradient(name, both_directions, both_directions, {"x": normal(4, 3, inputs), **kept, **weights})
        if name == "lstm":
            one_step = {key[:-1]: weight for key, weight in weights.items() if key.endswith("0")}

            def cell(x, h, c, **weights):
                return torch.cat(torch.lstm_cell(x, (h, c), *weights.values()))

            yield Gradient("lstm_cell", cell, cell, {**cells, **one_step})


CASES = [
    *rms_cases(),
    *softmax_cases(),
    *rotary_cases(),
    *activation_cases(),
    *cross_entropy_cases(),
    *linear_cross_entropy_cases(),
    *renorm_cases(),
    *product_cases(),
    *shape_cases(),
    *dropout_cases(),
    *loss_cases(),
    *recurrent_cases(),
    *expert_cases.GRADIENTS,
    *convolution_cases.GRADIENTS,
    *box_cases.GRADIENTS,
]
