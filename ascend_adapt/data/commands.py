"""Command line of `ascend-adapt preprocess`, `merge` and `inspect`: options and output."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from ascend_adapt import interruption, terminal
from ascend_adapt.errors import DataError, SettingsError, not_installed

if TYPE_CHECKING:
    from ascend_adapt.data.preprocessing import Counts, PreprocessRequest

Result = TypeVar("Result")

WHAT_IS_READ = """\
inputs, one document per line:
  .jsonl and .json, also as .gz, .xz or .zst; .jsonl.zst.tar and .dat.zst of lm_dataformat;
  .parquet, one document per row, in the columns that --json-keys names

tokenizer types and their files:
  GPT2BPETokenizer        --vocab FILE --merge-file FILE
  HFTokenizer             --vocab FILE, any tokenizer.json
  HFGPT2Tokenizer         --vocab FOLDER with tokenizer.json, or vocab.json and merges.txt
  SPMTokenizer            --vocab FILE, a sentencepiece model
  SentencePieceTokenizer  --tokenizer-model FILE, a sentencepiece model
  TiktokenTokenizer       --vocab NAME of an encoding
  CharLevelTokenizer      nothing
"""


def add_commands(commands: Any) -> list[argparse.ArgumentParser]:
    """Add the three commands to ``commands``, a subparsers action, and return their parsers."""
    preprocess = commands.add_parser(
        "preprocess",
        help="tokenize text into Megatron's token files",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog=WHAT_IS_READ,
    )
    _preprocess_options(preprocess)
    preprocess.set_defaults(run=_preprocess)

    merge = commands.add_parser("merge", help="join token files")
    merge.add_argument("--input", nargs="+", required=True, metavar="PREFIX", help="token files without .bin and .idx")
    merge.add_argument("--output-prefix", required=True, metavar="PREFIX", help="writes PREFIX.bin and PREFIX.idx")
    merge.set_defaults(run=_merge)

    inspect = commands.add_parser("inspect", help="describe a checkpoint or token files")
    inspect.add_argument("prefix", metavar="PATH", help="a checkpoint's folder, or token files without .bin and .idx")
    inspect.set_defaults(run=_inspect)
    return [preprocess, merge, inspect]


def _preprocess_options(parser: argparse.ArgumentParser) -> None:
    # Spellings of Megatron, bigscience and GPT-NeoX. Options without help text are accepted without effect.
    parser.add_argument(
        "--input",
        nargs="+",
        required=True,
        metavar="FILE",
        help="files, folders, globs or comma lists of them; - is stdin",
    )
    parser.add_argument(
        "--output-prefix", required=True, metavar="PREFIX", help="writes PREFIX_KEY_document.bin and .idx for each key"
    )
    parser.add_argument("--tokenizer-type", required=True, metavar="TYPE", help="one of the types listed below")
    parser.add_argument(
        "--vocab-file",
        "--vocab",
        "--tokenizer-model",
        metavar="FILE",
        help="vocabulary, tokenizer.json or tokenizer.model",
    )
    parser.add_argument("--merge-file", metavar="FILE", help="merges of GPT2BPETokenizer")
    parser.add_argument(
        "--json-keys",
        "--json-key",
        "--jsonl-keys",
        nargs="+",
        default=["text"],
        metavar="KEY",
        help="keys whose values are tokenized, each into its own files (default: text)",
    )
    parser.add_argument("--append-eod", action="store_true", help="append the end-of-document token to every document")
    parser.add_argument("--ftfy", action="store_true", help="repair broken encodings with ftfy first")
    parser.add_argument("--dataset-impl", choices=["mmap"], default="mmap", help="format of the token files")
    parser.add_argument(
        "--workers",
        type=int,
        default=1,
        metavar="N",
        help="number of processes, or of the engine's threads (default: 1)",
    )
    parser.add_argument(
        "--on-bad-line",
        choices=["error", "skip"],
        default="error",
        help="what to do with an invalid line (default: error)",
    )
    parser.add_argument(
        "--encoding", default="utf-8", metavar="NAME", help="encoding of JSON lines, such as gb18030 (default: utf-8)"
    )
    parser.add_argument(
        "--engine", default="auto", metavar="ENGINE", help="auto, hf, gigatoken or tiktoken; all give the same ids"
    )
    parser.add_argument(
        "--commit-interval",
        type=float,
        default=10.0,
        metavar="SECONDS",
        help="how often to save the position from which a run resumes",
    )
    parser.add_argument("--split-sentences", action="store_true", help=argparse.SUPPRESS)
    for ignored in ("--log-interval", "--num-docs", "--make-vocab-size-divisible-by"):
        parser.add_argument(ignored, type=int, help=argparse.SUPPRESS)


def _preprocess(known: argparse.Namespace) -> int:
    return _needing_numpy(lambda: _run_preprocess(known))


def _run_preprocess(known: argparse.Namespace) -> int:
    from ascend_adapt.data.documents import fast_loads
    from ascend_adapt.data.preprocessing import PreprocessRequest, preprocess
    from ascend_adapt.data.progress import progress_display
    from ascend_adapt.data.tokenizer import TokenizerRequest

    if known.split_sentences:
        raise SettingsError(
            "--split-sentences: not supported, expected complete documents, which GPT training needs — for BERT, use "
            "Megatron's own tool, which downloads nltk's sentence model"
        )
    if known.workers < 1:
        raise SettingsError(f"--workers: {known.workers}, expected at least 1 — leave it out for one")
    request = PreprocessRequest(
        inputs=tuple(known.input),
        output_prefix=known.output_prefix,
        tokenizer=TokenizerRequest(
            known.tokenizer_type, known.vocab_file, known.merge_file, known.engine, threads=known.workers
        ),
        keys=tuple(known.json_keys),
        append_eod=known.append_eod,
        ftfy=known.ftfy,
        skip_bad_lines=known.on_bad_line == "skip",
        workers=known.workers,
        encoding=known.encoding,
        commit_seconds=known.commit_interval,
    )
    # --workers is the number of cores to use, and threads of the tokenizer library would use more.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    # orjson 3.13 crashes the interpreter if Ctrl-C interrupts its import.
    with interruption.ignored():
        fast_loads()
    try:
        with progress_display(sys.stderr) as report:
            counts = preprocess(request, report)
    except KeyboardInterrupt as stopped:
        print(f"ascend-adapt preprocess: interrupted — {_after_interruption(request)}", file=sys.stderr)
        return interruption.exit_code(stopped)
    for problem in counts.first_bad:
        print(f"ascend-adapt preprocess: {problem}", file=sys.stderr)
    _print_counts(counts, [str(request.prefix(key)) for key in request.keys], request.keys)
    return 0


def _after_interruption(request: PreprocessRequest) -> str:
    from ascend_adapt.data.inputs import STDIN
    from ascend_adapt.data.unfinished import journal_path

    if journal_path(request.prefix(request.keys[0])).exists() and STDIN not in request.inputs:
        return "the same command resumes from the last saved position"
    return "the same command starts from the beginning"


def _print_counts(counts: Counts, prefixes: list[str], keys: tuple[str, ...]) -> None:
    for prefix, key in zip(prefixes, keys, strict=True):
        print(
            f"{prefix}: {counts.documents + counts.bad} documents in, {counts.written[key]} out, "
            f"{counts.empty[key]} empty, {counts.bad} bad, {counts.blank} blank lines, {counts.tokens[key]} tokens"
        )


def _merge(known: argparse.Namespace) -> int:
    def run() -> int:
        from ascend_adapt.data.merging import merge

        documents, tokens = merge(known.input, known.output_prefix)
        print(f"{known.output_prefix}: {documents} documents, {tokens} tokens")
        return 0

    return _needing_numpy(run)


def _inspect(known: argparse.Namespace) -> int:
    def run() -> int:
        from ascend_adapt.data.inspection import inspect

        found = inspect(known.prefix)
        if known.json or not sys.stdout.isatty():
            print(json.dumps(found, indent=1))
        else:
            terminal.pairs([(name.replace("_", " "), str(value)) for name, value in found.items()])
        return 0

    return _needing_numpy(run)


def _needing_numpy(run: Callable[[], Result]) -> Result:
    try:
        return run()
    except ModuleNotFoundError as error:
        if error.name != "numpy":
            raise
        raise DataError(not_installed("numpy", "token files", "data")) from error
