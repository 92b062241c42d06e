"""Our kernels and Liger-Kernel 0.8.5's functions of ``liger_kernel.transformers.functional``: bf16, both passes, time
of the device.

``python -m bench.gpu.liger [--tiny]``; on the CPU both are in Triton's interpreter (``TRITON_INTERPRET=1``, and the
packages of ``.triton``), where a ratio means nothing.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from bench.gpu.comparison import Compared, attempt, medians_ms, report, with_backward

WANTED = "<= 0.9"
PACKAGES = Path(__file__).parents[2] / ".triton"


def compared(*, tiny: bool) -> Iterator[Compared]:
    """Compare each kernel, with two sizes if the shape matters."""
    import torch
    from liger_kernel.transformers import functional as theirs

    from ascend_adapt import kernels as ours

    device = "cpu" if tiny else "cuda"

    def drawn(*shape: int) -> Any:
        return torch.randn(shape, device=device, dtype=torch.bfloat16, requires_grad=True)

    def beside(name: str, tensors: list[Any], mine: Callable[..., Any], other: Callable[..., Any]) -> Compared:
        def compare() -> Compared:
            result = mine(*tensors)
            grad = tuple(map(torch.ones_like, result)) if isinstance(result, tuple) else torch.ones_like(result)
            sides = {"ours": with_backward(mine, tensors, grad), "liger": with_backward(other, tensors, grad)}
            took = medians_ms(sides, *((1, 1) if tiny else ()), device_only=True)
            with_host = medians_ms(sides, *((1, 1) if tiny else ()))
            details = (
                f"{took['ours']:.3f} and {took['liger']:.3f} ms; with the host's time {with_host['ours']:.3f} and "
                f"{with_host['liger']:.3f}"
            )
            return Compared(name, took["ours"] / took["liger"], WANTED, details)

        return attempt(name, compare)

    for tokens, width in ((8, 32),) if tiny else ((16384, 1024), (8192, 4096)):
        x, weight, bias = drawn(tokens, width), drawn(width), drawn(width)
        size = f"[{tokens}, {width}]"
        yield beside(
            f"rms_norm {size}",
            [x, weight],
            lambda x, w: ours.rms_norm(x, w, eps=1e-6),
            lambda x, w: theirs.liger_rms_norm(x, w, 1e-6, in_place=False),
        )
        yield beside(
            f"layer_norm {size}",
            [x, weight, bias],
            lambda x, w, b: ours.layer_norm(x, w, b, eps=1e-5),
            lambda x, w, b: theirs.liger_layer_norm(x, w, b, 1e-5),
        )
        yield beside(
            f"swiglu {size}",
            [x],
            ours.swiglu,
            lambda x: theirs.liger_swiglu(*(half.contiguous() for half in x.chunk(2, -1))),
        )
    for batch, heads, positions, width in ((1, 2, 4, 8),) if tiny else ((16, 16, 1024, 64), (4, 32, 2048, 128)):
        angles = torch.randn(1, positions, width // 2, device=device).repeat(1, 1, 2)
        cos, sin = angles.cos().bfloat16(), angles.sin().bfloat16()
        shape = (batch, positions, heads, width)
        yield beside(
            f"rotary of two [{batch}, {heads}, {positions}, {width}], as projections leave them",
            [drawn(*shape), drawn(*shape)],
            lambda q, k, cos=cos, sin=sin: ours.rotary(
                q.transpose(1, 2), cos[:, None], sin[:, None], key=k.transpose(1, 2)
            ),
            # The peer writes to its arguments, so each call rotates them once more.
            lambda q, k, cos=cos, sin=sin: theirs.liger_rope(q.transpose(1, 2), k.transpose(1, 2), cos, sin),
        )
    tokens, width, vocabulary = (8, 16, 64) if tiny else (8192, 1024, 50304)
    labels = torch.randint(0, vocabulary, (tokens,), device=device)
    yield beside(
        f"cross_entropy [{tokens}, {vocabulary}]",
        [drawn(tokens, vocabulary)],
        lambda x: ours.cross_entropy(x, labels),
        lambda x: theirs.liger_cross_entropy(x.clone(), labels),  # the peer writes the gradient to its argument
    )
    yield beside(
        f"linear_cross_entropy [{tokens}, {width}] x [{vocabulary}, {width}]",
        [drawn(tokens, width), drawn(vocabulary, width)],
        lambda x, w: ours.linear_cross_entropy(x, w, labels),
        lambda x, w: theirs.liger_fused_linear_cross_entropy(x, w, labels),
    )


def _complete_the_interpreter() -> None:
    """Let Triton's interpreter run Liger's kernels, which call ``eps.to`` and libdevice's ``rsqrt``.

    A compiled kernel gets a float as a scalar tensor, and the functions of libdevice have no body in Python.
    """
    import numpy as np
    import triton.language as tl
    from triton.language.extra import libdevice
    from triton.language.extra.cuda import libdevice as of_cuda
    from triton.runtime import interpreter

    libdevice.rsqrt = of_cuda.rsqrt = lambda x: 1.0 / tl.sqrt(x)
    convert = interpreter._implicit_cvt

    def with_floats(argument: Any) -> Any:
        if not isinstance(argument, float):
            return convert(argument)
        handle = interpreter.TensorHandle(np.array([argument], dtype=np.float32), tl.float32)
        return tl.tensor(handle, tl.float32)

    interpreter._implicit_cvt = with_floats


def main() -> None:
    """Compare every kernel."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tiny", action="store_true")
    tiny = parser.parse_args().tiny
    if tiny:
        os.environ["TRITON_INTERPRET"] = "1"
        sys.path.insert(0, str(PACKAGES))
        _complete_the_interpreter()
    every = list(compared(tiny=tiny))
    report(f"liger-kernel {importlib.metadata.version('liger_kernel')}", every)


if __name__ == "__main__":
    main()
