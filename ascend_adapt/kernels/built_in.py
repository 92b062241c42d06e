"""Built-in backends, in the form that a plugin's hook ``register_kernels`` returns."""

from __future__ import annotations

from typing import Any

from ascend_adapt.kernels.operation import Backend


def register_kernels() -> list[tuple[str, Backend]]:
    """Return pairs (kernel name, backend), preferred backends first."""
    return [
        _backend("attention", "npu", "npu"),
        # The next four are timed against each other. With sdpa, torch chooses a kernel.
        _backend("attention", "decode", "cuda", where="_triton", measured=True),
        _backend("attention", "flash", "cuda", where="_sdpa:flash", measured=True),
        _backend("attention", "cudnn", "cuda", where="_sdpa:cudnn", measured=True, deterministic=False),
        _backend("attention", "efficient", "cuda", where="_sdpa:efficient", measured=True, deterministic=False),
        _backend("attention", "sdpa", "cuda", "cpu", where="_sdpa:any_of_torch", composed=True),
        _backend("attention", "reference", composed=True),
        _backend("masked_softmax", "npu", "npu"),
        _backend("masked_softmax", "triton", "cuda"),
        _backend("masked_softmax", "reference", composed=True),
        _backend("rms_norm", "npu", "npu"),
        _backend("rms_norm", "triton", "cuda", measured=True),
        _backend("rms_norm", "torch", "cuda", "cpu", measured=True, composed=True),
        _backend("rms_norm", "reference", composed=True, inlined=True),
        _backend("layer_norm", "triton", "cuda", measured=True),
        _backend("layer_norm", "torch", measured=True, composed=True, inlined=True),
        _backend("layer_norm", "reference", composed=True, inlined=True),
        _backend("rotary", "npu", "npu"),
        _backend("rotary", "triton", "cuda"),
        _backend("rotary", "reference", composed=True, inlined=True),
        _backend("swiglu", "npu", "npu"),
        _backend("swiglu", "triton", "cuda"),
        _backend("swiglu", "reference", composed=True, inlined=True),
        _backend("gelu", "npu", "npu"),
        _backend("gelu", "triton", "cuda"),
        _backend("gelu", "torch", "cuda", "cpu", composed=True, inlined=True),
        _backend("gelu", "reference", composed=True, inlined=True),
        _backend("add_norm", "triton", "cuda"),
        _backend("add_norm", "reference", composed=True, inlined=True),
        _backend("bias_dropout_add", "triton", "cuda"),
        _backend("bias_dropout_add", "reference", composed=True, inlined=True),
        _backend("split_qkv", "triton", "cuda"),
        _backend("split_qkv", "reference", composed=True, inlined=True),
        _backend("cross_entropy", "npu", "npu"),
        _backend("cross_entropy", "triton", "cuda"),
        _backend("cross_entropy", "torch", "cuda", "cpu", composed=True),
        _backend("cross_entropy", "reference", composed=True),
        _backend("linear_cross_entropy", "triton", "cuda"),
        _backend("linear_cross_entropy", "reference", composed=True),
        _backend("l2_norms", "triton", "cuda"),
        _backend("l2_norms", "torch", composed=True),
        _backend("l2_norms", "reference", composed=True),
        _backend("adamw", "npu", "npu"),
        _backend("adamw", "triton", "cuda"),
        _backend("adamw", "torch", "cuda", "cpu"),
        _backend("adamw", "reference", composed=True),
    ]


def _backend(kernel: str, name: str, *devices: str, where: str = "", **terms: Any) -> tuple[str, Backend]:
    """Return a pair. The backend is the module ``where`` in the kernel's package, by default ``_<name>``."""
    return kernel, Backend(name, devices, f"ascend_adapt.kernels.operators.{kernel}.{where or f'_{name}'}", **terms)
