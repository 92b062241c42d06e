"""Command line of `ascend-adapt convert` and of `inspect` for checkpoints: options and output."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from ascend_adapt.errors import CheckpointError, SettingsError, not_installed

if TYPE_CHECKING:
    from ascend_adapt.convert.conversion import Converted

# Duplicated here, so that the command line does not import torch.
FROM = ("auto", "native", "hf", "megatron-core", "megatron", "neox", "megatron-deepspeed", "deepspeed", "glm")
TO = ("hf", "native", "neox", "megatron", "megatron-core", "megatron-deepspeed", "glm")
_SECONDS_BETWEEN_LINES = 30.0


def add_convert(commands: Any) -> argparse.ArgumentParser:
    """Add the command to ``commands``, a subparsers action, and return its parser."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "convert", help="convert checkpoints between dialects and parallel sizes"
    )
    parser.add_argument(
        "--input", required=True, metavar="FOLDER", help="the checkpoint, or the folder with its tracker file"
    )
    parser.add_argument("--output", required=True, metavar="FOLDER", help="folder to create")
    parser.add_argument(
        "--from",
        dest="expected",
        choices=FROM,
        default="auto",
        help="dialect of the input (default: detected from its files)",
    )
    parser.add_argument("--to", required=True, choices=TO, help="dialect of the output")
    parser.add_argument(
        "--tp", type=int, default=1, metavar="N", help="tensor-parallel size, for neox, megatron and glm"
    )
    parser.add_argument(
        "--pp",
        type=int,
        default=1,
        metavar="N",
        help="pipeline-parallel size, for neox and megatron; 0: GPT-NeoX without a pipeline",
    )
    for place in ("first", "last"):
        parser.add_argument(
            f"--decoder-{place}-pipeline-num-layers",
            dest=place,
            type=int,
            metavar="N",
            help=f"layers of the {place} pipeline stage, for megatron and megatron-core's torch format",
        )
    parser.add_argument(
        "--upstream-version",
        "--upstream-line",
        choices=("v2.0", "newest"),
        help="version of GPT-NeoX (default: newest)",
    )
    parser.add_argument(
        "--ckpt-format", choices=("torch", "torch_dist"), help="format of megatron-core's files (default: torch)"
    )
    parser.add_argument(
        "--transformer-impl",
        choices=("local", "transformer_engine"),
        help="layer implementation whose parameter names megatron-core's torch format has (default: local)",
    )
    parser.add_argument(
        "--dtype", choices=("fp32", "fp16", "bf16"), help="dtype of the output (default: that of the input)"
    )
    parser.add_argument(
        "--vocab-size",
        type=int,
        metavar="N",
        help="size of the tokenizer's vocabulary; rows beyond it are padding and are removed",
    )
    parser.add_argument(
        "--make-vocab-size-divisible-by",
        type=int,
        default=128,
        metavar="N",
        help="multiple that the vocabulary is padded to (default: 128)",
    )
    parser.add_argument(
        "--config",
        nargs="+",
        default=[],
        metavar="FILE",
        help="GPT-NeoX's YAML, or a Hugging Face model's config.json, if the checkpoint has none",
    )
    parser.add_argument(
        "--master-weights",
        action="store_true",
        help="read fp32 master weights from DeepSpeed's ZeRO shards instead of 16-bit weights",
    )
    parser.add_argument(
        "--tokenizer", metavar="FOLDER", help="folder whose tokenizer files are copied into a Hugging Face output"
    )
    parser.add_argument(
        "--tolerance", type=float, default=1e-5, metavar="X", help="relative tolerance of the logits (default: 1e-5)"
    )
    parser.add_argument("--no-verify", action="store_true", help="do not compare the logits of source and output")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=_convert)
    return parser


def _convert(known: argparse.Namespace) -> int:
    least = {"tp": 1, "pp": 0, "vocab-size": 1, "make-vocab-size-divisible-by": 1}
    given = {name: getattr(known, name.replace("-", "_")) for name in least}
    wrong = [f"--{name} {size}" for name, size in given.items() if size is not None and size < least[name]]
    if wrong:
        raise SettingsError(
            f"{', '.join(wrong)}: expected at least 1 (--pp 0: GPT-NeoX without a pipeline) — correct it"
        )
    _check_of_core(known)
    has_stages = known.to in ("megatron", "megatron-core") and known.ckpt_format != "torch_dist"
    if (known.first, known.last) != (None, None) and not has_stages:
        raise SettingsError(
            f"--decoder-first-pipeline-num-layers, --decoder-last-pipeline-num-layers: given for "
            f"{known.ckpt_format or known.to}, whose files do not depend on the sizes of stages — omit them"
        )
    if (known.to in ("hf", "native") or known.ckpt_format == "torch_dist") and (known.tp, known.pp) != (1, 1):
        raise SettingsError(
            f"--tp, --pp: given for {known.ckpt_format or known.to}, whose files do not depend on parallel sizes — "
            "omit them"
        )
    if known.to == "glm":
        return _resize_glm(known)
    with _torch_is_needed():
        from ascend_adapt.checkpoint.source import Given
        from ascend_adapt.convert.conversion import Request, convert

        request = Request(
            source=Path(known.input),
            output=Path(known.output).absolute(),
            target=known.to,
            expected=None if known.expected == "auto" else known.expected,
            given=Given([Path(one) for one in known.config], master_weights=known.master_weights),
            tensor=known.tp,
            pipeline=known.pp,
            first=known.first,
            last=known.last,
            version=known.upstream_version,
            ckpt_format=known.ckpt_format or "torch",
            transformer_impl=known.transformer_impl or "local",
            dtype=known.dtype,
            vocab_size=known.vocab_size,
            divisible_by=known.make_vocab_size_divisible_by,
            tokenizer=Path(known.tokenizer) if known.tokenizer else None,
            tolerance=known.tolerance,
            verified=not known.no_verify,
        )
        with _progress(sys.stderr) as report:
            converted = convert(request, report)
    _print(converted, known)
    if converted.verification is not None and not converted.verification.passed:
        print(
            f"ascend-adapt convert: {converted.output}: logits differ from the source's, expected them to agree — do "
            "not use this output; report the command and both configurations",
            file=sys.stderr,
        )
        return 1
    return 0


def _check_of_core(known: argparse.Namespace) -> None:
    options = {"--ckpt-format": known.ckpt_format, "--transformer-impl": known.transformer_impl}
    given = [f"{name} {value}" for name, value in options.items() if value]
    if given and known.to != "megatron-core":
        raise SettingsError(f"{', '.join(given)}: given for --to {known.to}, expected megatron-core — omit it")
    if known.ckpt_format == "torch_dist" and known.transformer_impl:
        raise SettingsError(
            f"{given[1]}: given with torch_dist, expected torch, because torch_dist's parameter names are the same for "
            "both — omit it"
        )


def _resize_glm(known: argparse.Namespace) -> int:
    with _torch_is_needed():
        from ascend_adapt.convert.glm_resize import resize_glm

        with _progress(sys.stderr) as report:
            output, before, count = resize_glm(Path(known.input), Path(known.output).absolute(), known.tp, report)
    note = f"{count} parameters are identical, bit for bit"
    if known.json:
        print(json.dumps({"to": "glm", "output": str(output), "tensor_parallel": [before, known.tp], "notes": [note]}))
        return 0
    print(f"{known.input}: glm, {before} ranks -> {known.tp}")
    print(f"verified: {note}")
    print(f"written: {output}")
    return 0


def _print(converted: Converted, known: argparse.Namespace) -> None:
    source, verification = converted.source, converted.verification
    if known.json:
        checked = None if verification is None else {**vars(verification), "passed": verification.passed}
        content = {"source": facts(source), "to": known.to, "output": str(converted.output)}
        print(json.dumps({**content, "notes": converted.notes, "verification": checked}, indent=1))
        return
    layout = ", ".join(f"{name} {value}" for name, value in source.layout.items())
    print(f"{source.path}: {source.dialect} ({layout}) -> {known.to}")
    for note in converted.notes:
        print(note)
    print(verification if verification is not None else "not verified: --no-verify")
    print(f"written: {converted.output}")


def inspect(path: Path, *, as_json: bool) -> int:
    """Print a description of a checkpoint."""
    with _torch_is_needed():
        from ascend_adapt.checkpoint.detection import open_checkpoint, reading
        from ascend_adapt.checkpoint.dialects import glm

        with reading(path):
            found = _facts_of_glm(path) if glm.is_here(path) else facts(open_checkpoint(path))
    if as_json:
        print(json.dumps(found, indent=1))
        return 0
    from rich.console import Console
    from rich.table import Table

    table = Table("", str(path), box=None)
    for name, value in found.items():
        rows = value if isinstance(value, dict) else {"": value}
        for inner, one in rows.items():
            table.add_row(f"{name} {inner}".strip(), ", ".join(one) if isinstance(one, list) else str(one))
    Console(soft_wrap=True).print(table)
    return 0


def facts(source: Any) -> dict[str, Any]:
    """Return the description of a checkpoint as plain data."""
    from ascend_adapt.convert.verification import parameter_count

    model = source.model
    names = (
        *("num_layers", "hidden_size", "num_heads", "num_query_groups", "head_dim", "ffn_hidden_size", "vocab_size"),
        *(
            "padded_vocab_size",
            "max_positions",
            "positions",
            "norm",
            "activation",
            "parallel_residual",
            "tied_embeddings",
        ),
    )
    return {
        "dialect": source.dialect,
        "path": str(source.path),
        "iteration": source.iteration,
        "parameters": parameter_count(model),
        "dtype": str(source.dtype).removeprefix("torch."),
        "layout": dict(source.layout),
        "model": {name: getattr(model, name) for name in names},
        "notes": list(source.notes),
    }


def _facts_of_glm(path: Path) -> dict[str, Any]:
    from ascend_adapt.checkpoint.dialects import glm

    found = glm.open_glm(path)
    words = found.read("word_embeddings.weight")
    return {
        "dialect": "glm",
        "path": str(found.folder),
        "iteration": found.files[0].get("iteration"),
        "parameters": sum(found.read(name).numel() for name in found.names),
        "dtype": str(words.dtype).removeprefix("torch."),
        "layout": {"tensor_parallel": len(found.files), "files": len(found.files)},
        "model": {"hidden_size": words.shape[1], "padded_vocab_size": words.shape[0]},
    }


@contextmanager
def _torch_is_needed() -> Iterator[None]:
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise CheckpointError(not_installed("torch", "checkpoints", "native")) from error


@contextmanager
def _progress(stream: TextIO) -> Iterator[Callable[[int, int], None]]:
    """Yield a function that displays the bytes done and in total: a bar on a terminal, else a line at intervals."""
    if stream.isatty():
        from rich.console import Console
        from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn, TransferSpeedColumn

        columns = (BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
        with Progress(*columns, console=Console(file=stream), transient=True) as bar:
            task = bar.add_task("", total=None)
            yield lambda done, total: bar.update(task, completed=done, total=total)
        return
    began = last = time.monotonic()

    def line(done: int, total: int) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last >= _SECONDS_BETWEEN_LINES:
            last = now
            speed = done / 1e6 / (now - began)
            print(f"{done / 1e6:.0f} of {total / 1e6:.0f} MB, {speed:.0f} MB/s", file=stream, flush=True)

    yield line
