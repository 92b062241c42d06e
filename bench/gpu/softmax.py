"""Our causal masked softmax in fp16, compared with eager fp32, torch.compile of eager, and a device copy of the scores.

Uses the installed torch and no other package. ``python -m bench.gpu.softmax [--tiny]``
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any

from bench.gpu.comparison import Compared, medians_ms, report, with_backward

SHAPES = ((4, 64, 2048, 2048), (4, 16, 1024, 1024))
TINY = ((1, 2, 16, 16),)


def beside(shape: tuple[int, ...]) -> Iterator[Compared]:
    """Compare the forward pass with a copy, and forward plus backward with eager and compiled torch."""
    import torch

    from ascend_adapt.kernels import masked_softmax

    device = "cuda" if torch.cuda.is_available() else "cpu"
    scores = torch.randn(shape, device=device, dtype=torch.float16, requires_grad=True)
    there, grad = torch.empty_like(scores), torch.randn_like(scores)
    future = torch.ones(shape[-2:], dtype=torch.bool, device=device).triu_(1)

    def eager(x: Any) -> Any:
        return torch.softmax((x.float() * 0.5).masked_fill(future, float("-inf")), -1).half()

    def ours(x: Any) -> Any:
        return masked_softmax(x, scale=0.5, causal=True)

    with torch.no_grad():
        forward = medians_ms({"ours": lambda: ours(scores), "copy": lambda: there.copy_(scores)}, device_only=True)
    sides = {"ours": ours, "eager": eager, "compile": torch.compile(eager)}
    both = medians_ms({name: with_backward(run, [scores], grad) for name, run in sides.items()}, device_only=True)
    name = f"causal softmax {list(shape)} fp16"
    yield Compared(f"{name}, forward, over a copy", forward["ours"] / forward["copy"], "<= 1.11")
    yield Compared(f"{name}, both passes, over eager fp32", both["ours"] / both["eager"], "<= 0.125")
    yield Compared(f"{name}, both passes, over torch.compile", both["ours"] / both["compile"], "<= 0.5")


def main() -> None:
    """Run the comparison for every shape."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tiny", action="store_true")
    shapes = TINY if parser.parse_args().tiny else SHAPES
    report("torch, eager and compiled", [one for shape in shapes for one in beside(shape)])


if __name__ == "__main__":
    main()
