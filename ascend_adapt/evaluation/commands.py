"""Command line of `ascend-adapt eval` and `generate`: options and output."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ascend_adapt import interruption
from ascend_adapt.errors import DataError, SettingsError, not_installed

if TYPE_CHECKING:
    from ascend_adapt.evaluation.glm_run import GlmRun
    from ascend_adapt.evaluation.language_model import LanguageModel
    from ascend_adapt.evaluation.text import TextTokenizer

    Text = TextTokenizer | GlmRun

TASKS = ("lambada", "copa", "ppl")
_SECONDS_BETWEEN_LINES = 30.0


def add_commands(commands: Any) -> list[argparse.ArgumentParser]:
    """Add the two commands to ``commands``, a subparsers action, and return their parsers."""
    evaluate = commands.add_parser("eval", help="evaluate a checkpoint on LAMBADA, COPA or perplexity")
    evaluate.add_argument("--task", required=True, choices=TASKS, help="what to evaluate; ppl: perplexity of a text")
    evaluate.add_argument(
        "--data", required=True, type=Path, metavar="FILE", help="file of JSON lines; for ppl also a .txt file"
    )
    evaluate.add_argument(
        "--stride", type=int, metavar="N", help="ppl: number of tokens scored per window (default: the context length)"
    )
    evaluate.add_argument("--json-key", metavar="KEY", help="ppl: key of the text in a JSON line (default: text)")
    evaluate.add_argument(
        "--pattern-id", type=int, metavar="N", help="copa with GLM: pattern (default: the finetuning run's, else 0)"
    )
    evaluate.set_defaults(run=_evaluate)

    generate = commands.add_parser("generate", help="generate text from prompts, or fill GLM's blanks")
    generate.add_argument(
        "--prompt",
        action="append",
        default=[],
        metavar="TEXT",
        help="text to continue, or for GLM a text with masks; may be repeated",
    )
    generate.add_argument("--prompt-file", type=Path, metavar="FILE", help="more prompts: JSON lines with the key text")
    generate.add_argument(
        "--max-new-tokens", type=int, default=64, metavar="N", help="maximum number of generated tokens (default: 64)"
    )
    generate.add_argument(
        "--temperature",
        type=float,
        metavar="T",
        help="sampling temperature, 0 for greedy (default: 0, or 1.0 with --top-k or --top-p)",
    )
    generate.add_argument("--top-k", type=int, default=0, metavar="K", help="sample among the K most likely tokens")
    generate.add_argument(
        "--top-p",
        type=float,
        default=1.0,
        metavar="P",
        help="sample among the fewest tokens whose probabilities sum to P",
    )
    generate.add_argument("--seed", type=int, default=0, metavar="N", help="seed for sampling (default: 0)")
    generate.add_argument(
        "--stop",
        action="append",
        default=[],
        metavar="TEXT",
        help="stop string, excluded from the result; may be repeated",
    )
    generate.add_argument("--no-cache", action="store_true", help="recompute every token at each step")
    generate.set_defaults(run=_generate)
    for command in (evaluate, generate):
        _common_options(command)
    return [evaluate, generate]


def _common_options(command: argparse.ArgumentParser) -> None:
    command.add_argument("--model", required=True, type=Path, metavar="DIR", help="a checkpoint of any dialect")
    command.add_argument(
        "--config",
        nargs="+",
        default=[],
        type=Path,
        metavar="FILE",
        help="GPT-NeoX's YAML; GLM: config.yaml of a native run",
    )
    command.add_argument(
        "--tokenizer-type", metavar="TYPE", help="tokenizer type, as for preprocess (default: the checkpoint's)"
    )
    command.add_argument("--vocab-file", metavar="FILE", help="vocabulary file, tokenizer.json or tokenizer.model")
    command.add_argument("--merge-file", metavar="FILE", help="merges file of GPT2BPETokenizer")
    command.add_argument("--batch-size", type=int, default=8, metavar="N", help="sequences per batch (default: 8)")
    command.add_argument(
        "--dtype", choices=("fp32", "fp16", "bf16"), help="dtype of the weights (default: the checkpoint's)"
    )
    command.add_argument("--tp", type=int, default=1, metavar="N", help="tensor-parallel ranks, one per device")
    command.add_argument(
        "--device",
        metavar="auto|npu|cuda|cpu|npu-emulated",
        help="device (default: ASCEND_ADAPT_DEVICE, else detected)",
    )
    command.add_argument("--json", action="store_true", help="print JSON")
    command.add_argument("--output", type=Path, metavar="FILE", help="write the result to FILE, as JSON")


def _evaluate(known: argparse.Namespace) -> int:
    others = [name for name in ("--stride", "--json-key") if getattr(known, name[2:].replace("-", "_")) is not None]
    if others and known.task != "ppl":
        raise SettingsError(f"{', '.join(others)}: given, expected only for --task ppl — leave it out")
    return _with_model(known, _evaluated, _show_evaluation)


def _generate(known: argparse.Namespace) -> int:
    from ascend_adapt.data.json_lines import is_unicode

    if not known.prompt and known.prompt_file is None:
        raise SettingsError(
            "--prompt: not given, expected at least one prompt — add --prompt TEXT or --prompt-file FILE"
        )
    broken = [number for number, prompt in enumerate(known.prompt, 1) if not is_unicode(prompt)]
    if broken:
        raise SettingsError(
            f"--prompt: prompt {', '.join(map(str, broken))} is not UTF-8, expected text — correct the terminal's "
            "encoding, or use --prompt-file"
        )
    if "" in known.stop:
        raise SettingsError("--stop: is empty, expected a stop string — omit it")
    return _with_model(known, _generated, _show_generations)


def _with_model(
    known: argparse.Namespace,
    work: Callable[[LanguageModel, Text, argparse.Namespace], dict[str, Any]],
    show: Callable[[dict[str, Any]], None],
) -> int:
    wrong = [
        f"--{name} {getattr(known, name.replace('-', '_'))}" for name in ("tp", "batch-size") if _below_1(known, name)
    ]
    if wrong:
        raise SettingsError(f"{', '.join(wrong)}: expected at least 1 — correct it")
    result = _of_ranks(known) if _needs_launcher(known) else _of_this_process(known, work)
    if result is None:
        return 0
    if known.json:
        print(json.dumps(result, indent=1))
    else:
        show(result)
    if known.output is not None:
        _write(known.output, result)
    return 0


def _write(path: Path, result: dict[str, Any]) -> None:
    try:
        path.write_text(json.dumps(result, indent=1), encoding="utf-8")
    except OSError as error:
        raise DataError(
            f"{path}: cannot be written ({error.strerror}), expected a file for the result, which was printed — choose "
            "another --output"
        ) from error


def _below_1(known: argparse.Namespace, name: str) -> bool:
    return bool(getattr(known, name.replace("-", "_")) < 1)


def _needs_launcher(known: argparse.Namespace) -> bool:
    """Return whether ascend-run must start ranks or an emulated device."""
    return "RANK" not in os.environ and (known.tp > 1 or str(known.device).startswith("npu-emulated"))


def _of_ranks(known: argparse.Namespace) -> dict[str, Any]:
    """Run this command on ``known.tp`` ranks with ascend-run, and return rank 0's result."""
    import shutil
    import subprocess
    import tempfile

    _check_checkpoint(known)
    scratch = Path(tempfile.mkdtemp(prefix="ascend-adapt-"))
    result = scratch / "result.json"
    device = ["--device", known.device] if known.device else []
    launch = [sys.executable, "-m", "ascend_adapt.launch.cli", "--log-dir", str(scratch / "run"), *device]
    # Rank 0 would print the result too; the last --output takes precedence.
    command = ["-m", "ascend_adapt.cli", *known.words, "--output", str(result)]
    try:
        code = interruption.run([*launch, "--nproc", str(known.tp), *command], stdout=subprocess.DEVNULL)
    except KeyboardInterrupt:
        shutil.rmtree(scratch, ignore_errors=True)
        raise
    if code:
        # ascend-run prints the paths of the rank logs, so the run directory is kept.
        raise DataError(f"{known.tp} ranks: ended with exit code {code}, expected 0 — see their error above")
    found: dict[str, Any] = json.loads(result.read_text(encoding="utf-8"))
    shutil.rmtree(scratch)
    return found


def _check_checkpoint(known: argparse.Namespace) -> None:
    """Check the checkpoint before ranks start, because otherwise some ranks only report that another rank failed."""
    with _torch_is_installed():
        from ascend_adapt.checkpoint.detection import open_checkpoint
        from ascend_adapt.checkpoint.source import Given
        from ascend_adapt.evaluation.language_model import check_divisible
    check_divisible(open_checkpoint(known.model, Given(config=known.config)), known.tp)


@contextmanager
def _torch_is_installed() -> Iterator[None]:
    try:
        yield
    except ModuleNotFoundError as error:
        raise DataError(not_installed(error.name, "evaluation", "native")) from error


def _of_this_process(
    known: argparse.Namespace, work: Callable[[LanguageModel, Text, argparse.Namespace], dict[str, Any]]
) -> dict[str, Any] | None:
    """Run the command in this process and return its result; None on ranks other than the first."""
    with _torch_is_installed():
        import torch  # noqa: F401

        from ascend_adapt.evaluation.glm_run import GlmRun
        from ascend_adapt.evaluation.language_model import LanguageModel, ranks_of_this_job
        from ascend_adapt.evaluation.text import TokenizerOptions, tokenizer_of
    with ranks_of_this_job(known.device) as mesh:
        model = LanguageModel.load(known.model, mesh, known.dtype, known.config)
        options = TokenizerOptions(known.tokenizer_type, known.vocab_file, known.merge_file)
        tokenizer: Text
        if model.model.positions == "block":
            tokenizer = GlmRun.of(model.source, options)
        else:
            tokenizer = tokenizer_of(model.source, options)
        began = time.perf_counter()
        result = work(model, tokenizer, known)
        about = {
            "model": str(model.source.path),
            "dialect": model.source.dialect,
            "tokenizer": tokenizer.description,
            "context": model.max_positions,
            "vocabulary": model.vocabulary,
            "dtype": str(next(model.decoder.parameters()).dtype).removeprefix("torch."),
            "device": mesh.device.type,
            "tensor_parallel": mesh.parallel.tensor,
            "seconds": round(time.perf_counter() - began, 3),
        }
        return {**result, **about} if mesh.rank == 0 else None


def _evaluated(model: LanguageModel, tokenizer: Text, known: argparse.Namespace) -> dict[str, Any]:
    from ascend_adapt.evaluation import copa, glm_copa, lambada, text_perplexity
    from ascend_adapt.evaluation.glm_run import GlmRun

    is_glm = isinstance(tokenizer, GlmRun)
    if is_glm and known.task != "copa":
        raise SettingsError(
            f"--task {known.task}: {model.source.path} is GLM, expected copa for a GLM checkpoint — choose copa"
        )
    if known.pattern_id is not None and not is_glm:
        raise SettingsError("--pattern-id: given, expected only for --task copa with GLM — leave it out")

    with _progress() as report:
        common: dict[str, Any] = {"batch_size": known.batch_size, "report": report}
        if isinstance(tokenizer, GlmRun):
            result = glm_copa.evaluate(model, tokenizer, known.data, pattern=known.pattern_id, **common)
        elif known.task == "lambada":
            result = lambada.evaluate(model, tokenizer, known.data, **common)
        elif known.task == "copa":
            result = copa.evaluate(model, tokenizer, known.data, **common)
        else:
            result = text_perplexity.evaluate(
                model, tokenizer, known.data, stride=known.stride, key=known.json_key or "text", **common
            )
    return {"task": known.task, "data": str(known.data), **result}


def _generated(model: LanguageModel, tokenizer: Text, known: argparse.Namespace) -> dict[str, Any]:
    from ascend_adapt.data.json_lines import read_rows, text
    from ascend_adapt.evaluation.glm_run import GlmRun
    from ascend_adapt.native.generation.blank_filling import fill
    from ascend_adapt.native.generation.continuation import continue_ids
    from ascend_adapt.native.generation.generation import Sampling

    sampled = known.top_k > 0 or known.top_p < 1
    temperature = known.temperature if known.temperature is not None else 1.0 if sampled else 0.0
    if sampled and temperature == 0:
        raise SettingsError("--top-k, --top-p: given with temperature 0, which is greedy — leave them out")
    sampling = Sampling(known.max_new_tokens, temperature, known.top_k, known.top_p, known.seed)
    prompts = list(known.prompt)
    if known.prompt_file is not None:
        prompts += [row["text"] for row in read_rows(known.prompt_file, {"text": text}, "--prompt-file")]
    how: dict[str, Any] = {"use_cache": not known.no_cache, "batch_size": known.batch_size}
    if isinstance(tokenizer, GlmRun):
        tokenizer.check_fills_blanks(model.source.path)
        found = [asdict(one) for one in fill(model, tokenizer.tokenizer, prompts, sampling, known.stop, **how)]
    else:
        # An empty prompt stands for the end-of-document token, which precedes every text.
        ids = [tokenizer.encode(prompt) or [tokenizer.first()] for prompt in prompts]
        found = [
            asdict(one)
            for one in continue_ids(model, tokenizer.decode, tokenizer.eod, ids, sampling, known.stop, **how)
        ]
    return {"results": [{"prompt": prompt, **one} for prompt, one in zip(prompts, found, strict=True)]}


def _show_evaluation(result: dict[str, Any]) -> None:
    for name, value in result.items():
        print(
            f"{name.replace('_', ' ')}: {value:.6g}"
            if isinstance(value, float)
            else f"{name.replace('_', ' ')}: {value}"
        )


def _show_generations(result: dict[str, Any]) -> None:
    for one in result["results"]:
        print(one["text"] if "blanks" in one else f"{one['prompt']}{one['text']}")


@contextmanager
def _progress() -> Iterator[Callable[[int, int], None]]:
    """Yield a function that logs the numbers of completed and all sequences at intervals, on rank 0."""
    began = last = time.monotonic()

    def line(done: int, total: int) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last >= _SECONDS_BETWEEN_LINES and os.environ.get("RANK", "0") == "0":
            last = now
            print(f"{done} of {total} sequences, {done / (now - began):.1f}/s", file=sys.stderr, flush=True)

    yield line
