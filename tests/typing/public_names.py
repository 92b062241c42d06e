"""Every public name, used as its annotations allow: for ``mypy --strict`` against the installed wheel.

Never run. ``make pythons`` installs the wheel without torch, so tensors are Any here.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import ascend_adapt
from ascend_adapt import (
    Call,
    CodeBase,
    Outcome,
    Patch,
    Status,
    Symptom,
    add,
    entry,
    hookimpl,
    patches_in,
    provide,
    replace,
    rewrite,
    wrap,
)
from ascend_adapt.checkpoint import merge_qkv, split_qkv
from ascend_adapt.data import (
    CyclicSampler,
    GPTDataset,
    IndexedDataset,
    ResumableSampler,
    SampleOrder,
    build_sample_order,
    gpt_dataset,
    merge,
    sequence_pointers,
    token_dtype,
    weights_by_documents,
)
from ascend_adapt.errors import AdaptError
from ascend_adapt.kernels import (
    adamw,
    add_norm,
    attention,
    bias_dropout_add,
    cross_entropy,
    fuses,
    gelu,
    l2_norms,
    layer_norm,
    linear_cross_entropy,
    masked_out_from_keep,
    masked_softmax,
    rms_norm,
    rotary,
    swiglu,
)
from ascend_adapt.kernels import split_qkv as split_fused_qkv

CODE_BASE = CodeBase("recipes", present=("recipes/train.py",))
SYMPTOM = Symptom("nvidia_smi()")


@wrap("recipes.devices:memory", why="it runs nvidia-smi", until="recipes 2", without="crash", symptom=SYMPTOM)
def no_nvidia_smi(wrapped: Callable[..., int], instance: object, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
    return 0


@replace("recipes.losses:mean", why="padding counts", until="recipes 2", without="wrong numbers", host=CODE_BASE)
def mean(losses: Any) -> Any:
    return losses.mean()


@add("recipes.losses:total", why="recipes 1 has none", until="recipes 2", without="crash")
def total(losses: Any) -> Any:
    return losses.sum()


PRESENT: Patch = entry(
    "recipes.dtypes:TABLE", "auto", "bfloat16", present=True, why="overflow", until="2", without="wrong numbers"
)
BODY: Patch = rewrite("recipes.a:f", old="a + b", new="a - b", why="sign", until="2", without="wrong numbers")
MODULE: Patch = provide("recipes_cuda", why="it is compiled", until="2", without="crash", importers=("recipes",))(
    lambda: {"version": 1}
)


@hookimpl
def register_patches() -> list[Patch]:
    return patches_in(__name__)


def states() -> Iterator[str]:
    ascend_adapt.enable(device="cpu", strict=True, disable=["hf"])
    status: Status = ascend_adapt.status()
    outcome: Outcome
    for outcome in status:
        yield outcome.state
    try:
        with ascend_adapt.enabled() as inside:
            yield inside.summary()
    except AdaptError as error:
        yield str(error)
    ascend_adapt.disable()


def second_argument(call: Call) -> Any:
    return call


DATA = (
    *(CyclicSampler, GPTDataset, IndexedDataset, ResumableSampler, SampleOrder, build_sample_order, gpt_dataset, merge),
    *(sequence_pointers, token_dtype, weights_by_documents, merge_qkv, split_qkv),
)
KERNELS = (
    *(adamw, add_norm, attention, bias_dropout_add, cross_entropy, fuses, gelu, l2_norms, layer_norm),
    *(linear_cross_entropy, masked_out_from_keep, masked_softmax, rms_norm, rotary, split_fused_qkv, swiglu),
)


def tokens(prefix: Path) -> int:
    return len(IndexedDataset(prefix))
