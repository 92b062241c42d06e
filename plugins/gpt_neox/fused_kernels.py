"""CUDA extensions of GPT-NeoX, not compiled without nvcc; old_dependencies provides the softmax extensions."""

from __future__ import annotations

from types import ModuleType

from ascend_adapt import CodeBase, Symptom, provide

from ..compiled_kernels import compiling_where_there_is_nvcc

# v2.0 only imports its extensions; it compiles nothing.
COMPILING = CodeBase(
    "gpt-neox that compiles",
    present=("megatron/neox_arguments/__init__.py", "megatron/model/fused_rope.py"),
)


no_fused_kernel_build = compiling_where_there_is_nvcc(
    "no_fused_kernel_build",
    host=COMPILING,
    symptom=Symptom("_get_cuda_bare_metal_version(cpp_extension.CUDA_HOME)", at="megatron.fused_kernels:load"),
)


@provide(
    "fused_rotary_positional_embedding",
    host="gpt-neox",
    why="it is compiled with nvcc, and the process exits if the extension is missing, even if it is not used",
    until="GPT-NeoX imports it only if rope_fusion is set",
    without="crash",
)
def rotary_extension(module: ModuleType) -> None:
    """Provide the rotary embedding of [S, B, N, D] by freqs [S, 1, 1, R], and its gradient; R <= D dimensions rotate.

    Source: apply_rotary_pos_emb of the same code base (ea7aefd8 megatron/model/positional_embeddings.py). The second
    half of the rotated dimensions, negated, is paired with the first.
    """
    from . import _rotary

    for name in _rotary.NAMES:
        setattr(module, name, getattr(_rotary, name))
