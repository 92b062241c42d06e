"""The kernels on one GPU, each compared with a baseline in the same run: ``python bench/gpu_kernels.py [PART ...]``.

Parts: softmax, attention, liger (Liger-Kernel's operations), models (unmodified Megatron-core, and DeepSpeed with
transformers), harm (upstream's own best configuration). It prints ratios with the GPU's name, and baselines that cannot
run here.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gpu_models import busy_ms
from rich.console import Console
from rich.table import Table

SOFTMAX = ((4, 64, 2048, 2048), (4, 16, 1024, 1024))
ATTENTION = ((16, 16, 1024, 64), (4, 32, 2048, 128), (1, 16, 8192, 64), (2, 12, 2047, 80), (8, 16, 512, 256))
MODELS = Path(__file__).with_name("gpu_models.py")


def medians_ms(sides: dict[str, Callable[[], Any]], rounds: int = 15, inner: int = 5) -> dict[str, float]:
    """Return the median milliseconds of each side, from CUDA events; the order changes every round."""
    import torch

    order = random.Random(0)

    for run in sides.values():
        for _ in range(3):
            run()
    taken: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(rounds):
        for name, run in order.sample(list(sides.items()), len(sides)):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            for _ in range(inner):
                run()
            end.record()
            end.synchronize()
            taken[name].append(start.elapsed_time(end) / inner)
    return {name: statistics.median(values) for name, values in taken.items()}


def with_backward(function: Callable[..., Any], tensors: list[Any], grad: Any) -> Callable[[], None]:
    """``grad`` is a tensor, or one for each result of the function."""
    import torch

    def run() -> None:
        for tensor in tensors:
            tensor.grad = None
        torch.autograd.backward(function(*tensors), grad)

    return run


def softmax() -> list[tuple[str, str, str]]:
    """Causal masked softmax, fp16, compared with a device copy of the scores, eager fp32, and torch.compile."""
    return [row for shape in SOFTMAX for row in softmax_of(shape)]


def softmax_of(shape: tuple[int, ...]) -> list[tuple[str, str, str]]:
    import torch

    from ascend_adapt.kernels import masked_softmax

    scores = torch.randn(shape, device="cuda", dtype=torch.float16, requires_grad=True)
    there, grad = torch.empty_like(scores), torch.randn_like(scores)
    future = torch.ones(shape[-2:], dtype=torch.bool, device="cuda").triu_(1)

    def eager(x: Any) -> Any:
        return torch.softmax((x.float() * 0.5).masked_fill(future, float("-inf")), -1).half()

    def ours(x: Any) -> Any:
        return masked_softmax(x, scale=0.5, causal=True)

    with torch.no_grad():
        forward = medians_ms({"ours": lambda: ours(scores), "copy": lambda: there.copy_(scores)})
    both = medians_ms(
        {
            "ours": with_backward(ours, [scores], grad),
            "eager": with_backward(eager, [scores], grad),
            "compile": with_backward(torch.compile(eager), [scores], grad),
        }
    )
    busy = busy_ms(with_backward(eager, [scores], grad), 5) / busy_ms(with_backward(ours, [scores], grad), 5)
    name = f"causal softmax {list(shape)} fp16"
    return [
        (f"{name}: forward + backward over eager fp32, GPU busy time", f"{busy:.1f}x", ""),
        (f"{name}: forward, bandwidth relative to a copy", f"{forward['copy'] / forward['ours']:.2f}", ">= 0.90"),
        (f"{name}: forward + backward over eager fp32", f"{both['eager'] / both['ours']:.1f}x", ">= 8x"),
        (f"{name}: forward + backward over torch.compile", f"{both['compile'] / both['ours']:.1f}x", ">= 2x"),
    ]


def attention() -> list[tuple[str, str, str]]:
    """Causal and full attention, bf16, forward and backward, compared with torch's kernels that support the call."""
    return [attention_of(shape, causal) for shape, causal in itertools.product(ATTENTION, (True, False))]


def attention_of(shape: tuple[int, ...], causal: bool) -> tuple[str, str, str]:
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel

    from ascend_adapt.kernels import attention as ours
    from ascend_adapt.kernels.operators.attention import KERNEL

    known = {
        "flash": SDPBackend.FLASH_ATTENTION,
        "cudnn": SDPBackend.CUDNN_ATTENTION,
        "efficient": SDPBackend.EFFICIENT_ATTENTION,
    }
    tensors = [torch.randn(shape, device="cuda", dtype=torch.bfloat16, requires_grad=True) for _ in range(3)]
    grad = torch.randn_like(tensors[0])

    def theirs(kernel: Any) -> Callable[..., Any]:
        def run(q: Any, k: Any, v: Any) -> Any:
            with sdpa_kernel([kernel]):
                return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal)

        return run

    sides: dict[str, Callable[[], Any]] = {}
    for name, kernel in known.items():
        run = with_backward(theirs(kernel), tensors, grad)
        try:
            run()
        except RuntimeError:  # torch's error if the kernel does not support the call
            continue
        sides[name] = run
    first = medians_ms(sides)
    fastest = min(first, key=first.__getitem__)
    adapted = with_backward(lambda q, k, v: ours(q, k, v, causal=causal), tensors, grad)
    took = medians_ms({"ours": adapted, "theirs": sides[fastest], "theirs again": sides[fastest]}, rounds=31)
    busy = busy_ms(adapted, 5) / busy_ms(sides[fastest], 5)
    chosen = list(KERNEL.choices.values())[-1].backend
    value = (
        f"{took['ours'] / took['theirs']:.3f} ({chosen} chosen, {fastest} fastest of {len(sides)}; "
        f"that again {took['theirs again'] / took['theirs']:.3f}; GPU busy {busy:.3f})"
    )
    kind = "causal" if causal else "full"
    return f"attention {list(shape)} {kind} bf16: time over the fastest of torch's", value, "<= 1.03"


def liger() -> list[tuple[str, str, str]]:
    """Our kernels compared with Liger-Kernel's, bf16, forward and backward: whether Liger should become a backend."""
    import torch

    try:
        from liger_kernel.transformers import functional as theirs
    except ImportError as error:
        return [("Liger-Kernel", f"not run: {error}", "")]
    from ascend_adapt import kernels as ours

    def drawn(*shape: int) -> Any:
        return torch.randn(shape, device="cuda", dtype=torch.bfloat16, requires_grad=True)

    rows: list[tuple[str, str, str]] = []

    def beside(name: str, tensors: list[Any], mine: Callable[..., Any], other: Callable[..., Any]) -> None:
        result = mine(*tensors)
        grad = tuple(map(torch.ones_like, result)) if isinstance(result, tuple) else torch.ones_like(result)
        took = medians_ms({"ours": with_backward(mine, tensors, grad), "liger": with_backward(other, tensors, grad)})
        rows.append((f"{name}: time over Liger's", f"{took['ours'] / took['liger']:.2f}", "<= 1"))

    for tokens, width in ((16384, 1024), (8192, 4096)):
        x, weight, bias = drawn(tokens, width), drawn(width), drawn(width)
        size = f"[{tokens}, {width}]"
        beside(
            f"rms_norm {size}",
            [x, weight],
            lambda x, w: ours.rms_norm(x, w, eps=1e-6),
            lambda x, w: theirs.liger_rms_norm(x, w, 1e-6, in_place=False),
        )
        beside(
            f"layer_norm {size}",
            [x, weight, bias],
            lambda x, w, b: ours.layer_norm(x, w, b, eps=1e-5),
            lambda x, w, b: theirs.liger_layer_norm(x, w, b, 1e-5),
        )
        beside(
            f"swiglu {size}",
            [x],
            ours.swiglu,
            lambda x: theirs.liger_swiglu(*(half.contiguous() for half in x.chunk(2, -1))),
        )
    for batch, heads, positions, width in ((16, 16, 1024, 64), (4, 32, 2048, 128)):
        angles = torch.randn(1, positions, width // 2, device="cuda").repeat(1, 1, 2)
        cos, sin = angles.cos().bfloat16(), angles.sin().bfloat16()
        shape = (batch, positions, heads, width)
        beside(
            f"rotary of two [{batch}, {heads}, {positions}, {width}], as projections leave them",
            [drawn(*shape), drawn(*shape)],
            lambda q, k, cos=cos, sin=sin: tuple(
                ours.rotary(each.transpose(1, 2), cos[:, None], sin[:, None]) for each in (q, k)
            ),
            # It writes to its arguments, so each call rotates them once more.
            lambda q, k, cos=cos, sin=sin: theirs.liger_rope(q.transpose(1, 2), k.transpose(1, 2), cos, sin),
        )
    labels = torch.randint(0, 50304, (8192,), device="cuda")
    beside(
        "cross_entropy [8192, 50304]",
        [drawn(8192, 50304)],
        lambda x: ours.cross_entropy(x, labels),
        lambda x: theirs.liger_cross_entropy(x.clone(), labels),  # it writes the gradient to its argument
    )
    beside(
        "linear_cross_entropy [8192, 1024] x [50304, 1024]",
        [drawn(8192, 1024), drawn(50304, 1024)],
        lambda x, w: ours.linear_cross_entropy(x, w, labels),
        lambda x, w: theirs.liger_fused_linear_cross_entropy(x, w, labels),
    )
    return rows


def job(*arguments: str) -> dict[str, Any]:
    """Run one training job and return its result, or why it failed."""
    ended = subprocess.run([sys.executable, MODELS, *arguments], capture_output=True, text=True)
    lines = [line for line in ended.stdout.splitlines() if line.startswith("{")]
    if ended.returncode or not lines:
        print(ended.stderr[-6000:], file=sys.stderr)
        errors = [line for line in ended.stderr.splitlines() if re.match(r"[\w.]+(Error|Exception)\b", line)]
        return {"failed": f"{' '.join(arguments)}: exit {ended.returncode}, {(errors or ['no error message'])[-1]}"}
    result: dict[str, Any] = json.loads(lines[-1])
    return result


def pair(name: str, goal: str, *arguments: str) -> list[tuple[str, str, str]]:
    """The same job without and with enable()."""
    plain, adapted = job(*arguments), job(*arguments, "--adapt")
    for result in (plain, adapted):
        if "failed" in result:
            return [(name, f"not run: {result['failed']}", goal)]
    apart = max(abs(one - other) for one, other in zip(plain["losses"], adapted["losses"], strict=True))
    speed = f"{plain['step_ms'] / adapted['step_ms']:.2f}x ({plain['tflops']:.0f} -> {adapted['tflops']:.0f} TFLOP/s)"
    busy = f"{plain['busy_ms'] / adapted['busy_ms']:.2f}x ({plain['busy_ms']:.0f} -> {adapted['busy_ms']:.0f} ms)"
    memory = (
        f"{adapted['peak_gib'] / plain['peak_gib']:.2f}x ({plain['peak_gib']:.1f} -> {adapted['peak_gib']:.1f} GiB)"
    )
    print(json.dumps({"job": name, "plain": plain, "adapted": adapted}), file=sys.stderr)
    return [
        (f"{name}: step speed", speed, goal),
        (f"{name}: GPU busy time", busy, ""),
        (f"{name}: peak memory", memory, ""),
        (f"{name}: largest difference of {len(plain['losses'])} losses", f"{apart:.3f}", ""),
    ]


def models() -> list[tuple[str, str, str]]:
    """The two unmodified code bases at GPT-2 345M, bf16, micro batch 16."""
    return [
        *pair("DeepSpeed ZeRO-1 + transformers", ">= 1.3x", "hugging_face"),
        *pair("Megatron-core, local spec", ">= 3.0x at <= 0.35x the memory", "megatron"),
    ]


def harm() -> list[tuple[str, str, str]]:
    """transformers with SDPA under torch.compile: there is nothing to gain, and nothing may be lost."""
    return pair("DeepSpeed ZeRO-1 + transformers, torch.compile", ">= 0.99x", "hugging_face", "--compile")


PARTS: dict[str, Callable[[], list[tuple[str, str, str]]]] = {
    "softmax": softmax,
    "attention": attention,
    "liger": liger,
    "models": models,
    "harm": harm,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], help="default: all")
    chosen = parser.parse_args().parts or list(PARTS)
    import torch

    if not torch.cuda.is_available():
        sys.exit("bench/gpu_kernels.py: torch finds no GPU — run it on a machine with one")
    title = f"{torch.cuda.get_device_name()}, torch {torch.__version__}"
    for part in chosen:
        begun = time.perf_counter()
        table = Table(title=f"{part}: {title}")
        for column in ("what", "measured", "wanted"):
            table.add_column(column)
        for row in PARTS[part]():
            table.add_row(*row)
        Console(width=150).print(table)
        print(f"{part}: {time.perf_counter() - begun:.0f} s", file=sys.stderr)


if __name__ == "__main__":
    main()
