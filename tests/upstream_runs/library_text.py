"""Real text for the jobs of code bases: the sources of Python's own library, and a tokenizer trained on them."""

from __future__ import annotations

import json
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tokenizers import Tokenizer

END = "<|endoftext|>"


def texts(files: int = 12) -> list[str]:
    """Return the first 20,000 characters of each of some modules."""
    folder = Path(sysconfig.get_paths()["stdlib"])
    return [path.read_text(encoding="utf-8", errors="replace")[:20000] for path in sorted(folder.glob("a*.py"))[:files]]


def write_documents(path: Path, length: int = 20000) -> Path:
    """Write {"text": ...} lines of at most ``length`` characters, unless they are there."""
    if not path.exists():
        parts = [text[start : start + length] for text in texts() for start in range(0, len(text), length)]
        path.write_text("".join(json.dumps({"text": part}) + "\n" for part in parts))
    return path


def write_tokenizer(folder: Path) -> Path:
    """Write a GPT-2 tokenizer of 512 tokens: gpt2-vocab.json, gpt2-merges.txt and tokenizer.json, unless there."""
    from tokenizers import ByteLevelBPETokenizer

    if not (folder / "tokenizer.json").exists():
        folder.mkdir(parents=True, exist_ok=True)
        trained = ByteLevelBPETokenizer()
        trained.train_from_iterator(texts(), vocab_size=512, special_tokens=[END], show_progress=False)
        trained.save_model(str(folder), "gpt2")
        trained.save(str(folder / "tokenizer.json"))
    return folder


def tokenizer(folder: Path) -> Tokenizer:
    """Return the tokenizer of a folder, which is written if it is not there."""
    from tokenizers import Tokenizer

    return Tokenizer.from_file(str(write_tokenizer(folder) / "tokenizer.json"))


def write_tokens(folder: Path) -> Path:
    """Write a Megatron dataset of the documents, and return its prefix."""
    prefix = folder / "text_text_document"
    if not prefix.with_suffix(".idx").exists():
        words = write_tokenizer(folder)
        documents = write_documents(folder / "text.jsonl")
        command = [sys.executable, "-m", "ascend_adapt.cli", "preprocess", "--input", str(documents), "--append-eod"]
        command += ["--output-prefix", str(folder / "text"), "--dataset-impl", "mmap"]
        command += ["--tokenizer-type", "GPT2BPETokenizer", "--vocab", str(words / "gpt2-vocab.json")]
        subprocess.run([*command, "--merge-file", str(words / "gpt2-merges.txt")], check=True, capture_output=True)
    return prefix
