"""Checkpoint conversion: read the canonical state, write another dialect, verify, publish."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch

from ascend_adapt.checkpoint.canonical import parameters
from ascend_adapt.checkpoint.detection import open_checkpoint
from ascend_adapt.checkpoint.dialects import deepspeed_writing, megatron, megatron_core, native
from ascend_adapt.checkpoint.hugging_face import files as hugging_face
from ascend_adapt.checkpoint.source import Given, Source
from ascend_adapt.checkpoint.vocabulary_rows import is_vocabulary, with_rows
from ascend_adapt.checkpoint.writing import Output
from ascend_adapt.config.model_config import Model
from ascend_adapt.config.partition import padded
from ascend_adapt.convert.output_folder import UNVERIFIED, check_sums, publish, unfinished
from ascend_adapt.convert.verification import TOLERANCE, Verification, verify
from ascend_adapt.errors import CheckpointError

_WRITERS: Mapping[str, Callable[[Output, Path], object]] = {
    "hf": hugging_face.write,
    "native": native.write,
    "neox": deepspeed_writing.write_neox,
    "megatron": megatron.write,
    "megatron-deepspeed": deepspeed_writing.write_megatron_deepspeed,
}
DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}


@dataclass(frozen=True)
class Request:
    """Conversion request. ``dtype`` None keeps the source's; ``vocab_size`` is the number of ids, None if unknown.

    ``first`` and ``last`` are the numbers of layers of the first and the last pipeline stage, None if not given.
    ``ckpt_format`` (torch, torch_dist) and ``transformer_impl`` (local, transformer_engine) apply to Megatron-core.
    """

    source: Path
    output: Path
    target: str
    expected: str | None = None
    given: Given = Given()
    tensor: int = 1
    pipeline: int = 1
    first: int | None = None
    last: int | None = None
    version: str | None = None
    ckpt_format: str = "torch"
    transformer_impl: str = "local"
    dtype: str | None = None
    vocab_size: int | None = None
    divisible_by: int = 128
    tokenizer: Path | None = None
    tolerance: float = TOLERANCE
    verified: bool = True


@dataclass(frozen=True)
class Converted:
    """Result of a conversion; ``verification`` is None if it was skipped."""

    source: Source
    model: Model
    output: Path
    notes: tuple[str, ...]
    verification: Verification | None


def convert(request: Request, progress: Callable[[int, int], None] = lambda done, total: None) -> Converted:
    """Convert a checkpoint; ``progress`` is called with the bytes written so far and the total.

    If its logits differ by more than the tolerance, the output keeps a name that ends in ".unverified".

    Raises:
        CheckpointError: the source cannot be read, the target cannot express the model, or writing fails.
    """
    source = open_checkpoint(request.source, request.given, request.expected)
    check_sums(source.path)
    if source.model.positions == "block" and request.target not in ("hf", "native"):
        raise CheckpointError(
            f"{source.path}: has block positions, which {request.target} cannot express — convert it to glm or native"
        )
    model = resized(source.model, request)
    dtype = DTYPES[request.dtype] if request.dtype else source.dtype
    notes = [*source.notes, *_note_on_vocabulary(source.model, model, request)]
    total = sum(torch.Size(one.shape).numel() for one in parameters(model)) * dtype.itemsize
    written = 0

    def done(amount: int) -> None:
        nonlocal written
        written += amount
        progress(written, total)

    def read(name: str) -> torch.Tensor:
        tensor = source.read(name)
        if is_vocabulary(name):
            tensor = with_rows(tensor, model.padded_vocab_size, model.vocab_size)
        return tensor.to(dtype)

    output = Output(
        model,
        read,
        done,
        dtype,
        request.tensor,
        request.pipeline,
        request.version,
        first=request.first,
        last=request.last,
    )
    with unfinished(request.output) as folder:
        _writer(request)(output, folder)
        if source.differing:
            some = ", ".join(source.differing[:3])
            notes.append(f"{len(source.differing)} parameters differed between ranks and were averaged: {some}")
        if request.target == "hf":
            notes.append(_copy_tokenizer(request.tokenizer or source.tokenizer, folder))
        verification = None
        if request.verified:
            # Open the source again, so that the output is compared with its files and not with cached tensors.
            before = open_checkpoint(request.source, request.given)
            verification = verify(before, open_checkpoint(folder), _tolerance(request, source.dtype, dtype))
        is_good = verification is None or verification.passed
        place = request.output if is_good else request.output.with_name(request.output.name + UNVERIFIED)
        publish(folder, place, native.iteration_folder(folder) or folder)
    return Converted(source, model, place, tuple(notes), verification)


def _writer(request: Request) -> Callable[[Output, Path], object]:
    if request.target != "megatron-core":
        return _WRITERS[request.target]
    if request.ckpt_format == "torch_dist":
        return megatron_core.write
    is_fused = request.transformer_impl == "transformer_engine"
    return partial(megatron.write, names=megatron.TRANSFORMER_ENGINE if is_fused else megatron.LOCAL)


def resized(model: Model, request: Request) -> Model:
    """Return the model with its vocabulary padded for the target's tensor-parallel size.

    Raises:
        CheckpointError: ``vocab_size`` exceeds the rows of the checkpoint.
    """
    ids, rows = request.vocab_size or model.vocab_size, model.padded_vocab_size
    if ids > rows:
        raise CheckpointError(f"--vocab-size: {ids}, expected at most the {rows} rows of the checkpoint — correct it")
    step = request.divisible_by * request.tensor
    if request.target == "hf":
        rows = request.vocab_size or rows
    elif ids < rows or rows % step:
        rows = padded(ids, request.divisible_by, request.tensor)
    return replace(model, vocab_size=min(ids, rows), padded_vocab_size=rows)


def _copy_tokenizer(tokenizer: Path | None, folder: Path) -> str:
    if tokenizer is None:
        return "tokenizer: not copied; pass --tokenizer FOLDER to copy its files and the ids of its special tokens"
    names = hugging_face.copy_tokenizer(tokenizer, folder)
    return f"tokenizer: {', '.join(names)} of {tokenizer}" if names else f"tokenizer: no files in {tokenizer}"


def _note_on_vocabulary(before: Model, after: Model, request: Request) -> list[str]:
    if after.padded_vocab_size != before.padded_vocab_size:
        return [f"vocabulary: {before.padded_vocab_size} -> {after.padded_vocab_size} rows, for {after.vocab_size} ids"]
    is_unknown = request.vocab_size is None and after.vocab_size == after.padded_vocab_size
    if request.target in ("hf", "native") or not is_unknown:
        return []
    kept = f"keeping {after.padded_vocab_size} rows, because the number of ids is unknown"
    return [f"vocabulary: {kept}; pass --vocab-size if upstream pads to fewer rows"]


def _tolerance(request: Request, before: torch.dtype, after: torch.dtype) -> float:
    """Return the tolerance, which allows for rounding if the output's dtype is less precise than the source's."""
    narrower = torch.finfo(after).eps > torch.finfo(before).eps
    return max(request.tolerance, 10 * torch.finfo(after).eps) if narrower else request.tolerance
