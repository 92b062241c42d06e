"""Our attention compared with every torch backend that supports the call: bf16, forward and backward.

The peer is the installed torch: ``scaled_dot_product_attention`` under ``sdpa_kernel`` with one backend. ``python -m
bench.gpu.attention [--tiny]``
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Callable
from functools import partial
from typing import Any

from bench.gpu.comparison import Compared, attempt, host_us, medians_ms, report, with_backward

SHAPES = (
    (16, 16, 1024, 64),
    (4, 32, 2048, 128),
    (1, 16, 8192, 64),
    (8, 16, 512, 256),
    (2, 12, 2047, 80),
    (2, 12, 1024, 64),
    (1, 8, 256, 64),
)
"""Shapes [B, N, S, D]; the last three are small, so that host time matters too."""
TINY = ((1, 2, 17, 8),)


def beside(shape: tuple[int, ...], causal: bool) -> Compared:
    """Compare one call with torch's fastest backend."""
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel

    from ascend_adapt.kernels import attention as ours
    from ascend_adapt.kernels.operators.attention import KERNEL

    device = "cuda" if torch.cuda.is_available() else "cpu"
    tensors = [torch.randn(shape, device=device, dtype=torch.bfloat16, requires_grad=True) for _ in range(3)]
    grad = torch.randn_like(tensors[0])

    def of_torch(backend: Any) -> Callable[..., Any]:
        def run(q: Any, k: Any, v: Any) -> Any:
            with sdpa_kernel([backend]):
                return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal)

        return run

    sides: dict[str, Callable[[], Any]] = {}
    kernels = {
        name.lower().removesuffix("_attention"): getattr(SDPBackend, name)
        for name in ("FLASH_ATTENTION", "CUDNN_ATTENTION", "EFFICIENT_ATTENTION", "MATH")
    }
    for name, kernel in kernels.items():
        run = with_backward(of_torch(kernel), tensors, grad)
        try:
            run()
        except RuntimeError:  # torch's error if the backend does not support the call
            continue
        sides[name] = run
    first = medians_ms(sides, rounds=5)
    fastest = min(first, key=first.__getitem__)
    adapted = with_backward(lambda q, k, v: ours(q, k, v, causal=causal), tensors, grad)
    both = {"ours": adapted, "theirs": sides[fastest]}
    took, on_device = medians_ms({**both, "theirs again": sides[fastest]}), medians_ms(both, device_only=True)
    chosen = list(KERNEL.choices.values())[-1].backend
    with sdpa_kernel([kernels[fastest]]):
        launch = host_us(
            {
                "ours": lambda: ours(*tensors, causal=causal),
                "theirs": lambda: torch.nn.functional.scaled_dot_product_attention(*tensors, is_causal=causal),
            }
        )
    every = ", ".join(f"{name} {value:.3f}" for name, value in first.items())
    details = (
        f"{chosen} chosen, {took['ours']:.3f} ms; {fastest} {took['theirs']:.3f}, "
        f"again {took['theirs again'] / took['theirs']:.3f}; device alone {on_device['ours']:.3f} and "
        f"{on_device['theirs']:.3f}; host {launch['ours']:.1f} us per forward call, "
        f"torch's without sdpa_kernel {launch['theirs']:.1f}; all: {every}"
    )
    kind = "causal" if causal else "full"
    return Compared(f"attention {list(shape)} {kind}", took["ours"] / took["theirs"], "<= 1.03", details)


def main() -> None:
    """Run the comparison for every shape."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tiny", action="store_true")
    shapes = TINY if parser.parse_args().tiny else SHAPES
    calls = itertools.product(shapes, (True, False))
    report(
        "torch's scaled_dot_product_attention, the fastest backend",
        [attempt(f"attention {call}", partial(beside, *call)) for call in calls],
    )


if __name__ == "__main__":
    main()
