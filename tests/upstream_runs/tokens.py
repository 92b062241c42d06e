"""Real text as Megatron's token files, made by `ascend-adapt preprocess` once for all runs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

EXAMPLE = Path(__file__).parents[2] / "examples/megatron_deepspeed_gpt2/prepare_data.py"
# GPT-2's; the last is the end of a document.
VOCABULARY = 50257


def python_library(shared: Path) -> Path:
    """Return the prefix of the tokens of Python's own standard library, in the original GPT-2 vocabulary."""
    prefix = shared / "stdlib"
    tokens = shared / "stdlib_text_document"
    if not tokens.with_suffix(".idx").is_file():
        _run(str(EXAMPLE), "--output-prefix", str(prefix))
        files = ["--input", f"{prefix}.jsonl", "--output-prefix", str(prefix)]
        vocabulary = ["--vocab", f"{prefix}-vocab.json", "--merge-file", f"{prefix}-merges.txt"]
        kind = ["--tokenizer-type", "GPT2BPETokenizer", "--append-eod", "--dataset-impl", "mmap"]
        _run("-m", "ascend_adapt.cli", "preprocess", *files, *vocabulary, *kind)
    return tokens


def _run(*arguments: str) -> None:
    ended = subprocess.run([sys.executable, *arguments], capture_output=True, text=True)
    if ended.returncode:
        raise RuntimeError(f"{arguments[0]}: {ended.stderr}")
