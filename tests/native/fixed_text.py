"""The text of whole runs: this project's licence, a byte a token, the same on every machine."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from ascend_adapt import cli

LICENCE = Path(__file__).parents[2] / "LICENSE"
END = "<|endoftext|>"
VOCABULARY = 257  # 256 bytes, and the end of a document


@dataclass(frozen=True)
class Text:
    """Token files, and a GPT-2 vocabulary for who must have one to read them."""

    prefix: Path
    vocabulary: Path
    merges: Path


def write(folder: Path) -> Text:
    """Write the token files of the text below a folder, each paragraph a document, as a user would.

    Raises:
        RuntimeError: `ascend-adapt preprocess` did not end well; it has said why.
    """
    from tokenizers.pre_tokenizers import ByteLevel

    text = Text(folder / "licence_text_document", folder / "vocab.json", folder / "merges.txt")
    folder.mkdir(parents=True, exist_ok=True)
    letters = [*sorted(ByteLevel.alphabet()), END]
    text.vocabulary.write_text(json.dumps({letter: number for number, letter in enumerate(letters)}))
    text.merges.write_text("#version: 0.2\n")
    paragraphs = LICENCE.read_text(encoding="utf-8").split("\n\n")
    documents = folder / "licence.jsonl"
    documents.write_text("".join(json.dumps({"text": one}) + "\n" for one in paragraphs))
    words = ["preprocess", "--input", str(documents), "--output-prefix", str(folder / "licence")]
    words += ["--vocab", str(text.vocabulary), "--merge-file", str(text.merges)]
    words += ["--tokenizer-type", "GPT2BPETokenizer", "--append-eod", "--workers", "1"]
    if cli.main(words):
        raise RuntimeError(f"{documents}: was not tokenized")
    return text
