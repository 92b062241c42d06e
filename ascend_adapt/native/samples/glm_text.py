"""Raw text of a GLM run: .jsonl files as GLM reads the Pile, tokenized once into token files next to them.

Source: THUDM/GLM@4f61ed72 data_utils/corpora.py (Pile). GLM tokenizes in a hundred processes, so the order of its
documents is arbitrary; here it is that of the files. Those processes also draw which documents of a subset to keep;
here the seed determines which are kept.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from ascend_adapt import regular_files
from ascend_adapt.config.train_config import Data, GlmVocabulary, TrainConfig
from ascend_adapt.data.glm_tokenizer import GlmTokenizer, plain_punctuation
from ascend_adapt.data.indexed_dataset import bin_path, idx_path, token_dtype
from ascend_adapt.data.token_index import write_index
from ascend_adapt.errors import DataError

SKIPPED = (
    *("Github", "StackExchange", "DM Mathematics", "Ubuntu IRC", "EuroParl", "YoutubeSubtitles"),
    "Enron Emails",
)
"""Subsets of the Pile that GLM does not train on."""
KEPT_SHARE = {"PubMed Central": 0.3, "ArXiv": 0.3, "FreeLaw": 0.3}
"""Subsets of which GLM trains on a share."""
_BATCH_CHARACTERS = 1 << 20
_POLL_SECONDS = 0.5
_CHECKED_LINES = 100


def load_vocabulary(vocabulary: GlmVocabulary) -> GlmTokenizer:
    """Return the tokenizer of a configuration; raises the errors of ``GlmTokenizer.load``."""
    return GlmTokenizer.load(
        vocabulary.vocab_file,
        vocabulary.merge_file,
        task_mask=vocabulary.task_mask,
        decoder_mask=vocabulary.decoder_mask,
    )


def text_files(path: str) -> list[Path]:
    """Return the .jsonl files of a path, which is a file or a folder of them.

    Raises:
        DataError: the path has no .jsonl file, or does not exist.
    """
    place = Path(path)
    if place.is_file():
        return [place]
    found = sorted(place.rglob("*.jsonl")) if place.is_dir() else []
    if not found:
        what = "has no .jsonl file" if place.is_dir() else "does not exist"
        raise DataError(
            f'{path}: {what}, expected a .jsonl file with lines of {{"text": ...}}, or a folder of such files — '
            "correct --train-data; GLM defines the paths of its named corpora in its code"
        )
    return found


def token_prefix(path: str, data: Data) -> Path:
    """Return the prefix of the token files of a path; it changes with the text and the vocabulary."""
    blanks = data.blanks
    assert blanks is not None
    facts: list[object] = [data.seed]
    for file in (blanks.vocabulary.vocab_file, blanks.vocabulary.merge_file):
        if not Path(file).is_file():
            raise DataError(f"{file}: no such file, expected GPT-2's vocabulary and merges — pass their folder")
        facts.append(hashlib.sha256(regular_files.read_bytes(file)).hexdigest())
    for name in text_files(path):
        status = name.stat()
        facts.append((str(name.relative_to(path)) if name != Path(path) else "", status.st_size, status.st_mtime_ns))
    digest = hashlib.sha256(repr(facts).encode()).hexdigest()[:12]
    place = Path(path).absolute()
    return Path(data.cache or place.parent) / f"{place.name}.glm-{digest}"


def tokenize(path: str, data: Data) -> Path:
    """Tokenize the text of a path if its token files do not exist yet, and return their prefix.

    Raises:
        DataError: a line is not a JSON object with a text, or the token files cannot be written.
    """
    prefix = token_prefix(path, data)
    if idx_path(prefix).exists():
        return prefix
    assert data.blanks is not None
    tokenizer = load_vocabulary(data.blanks.vocabulary)
    dtype, sizes = token_dtype(tokenizer.vocab_size), []
    aside = {
        kind: Path(f"{kind}.{socket.gethostname()}.{os.getpid()}.part") for kind in (bin_path(prefix), idx_path(prefix))
    }
    try:
        prefix.parent.mkdir(parents=True, exist_ok=True)
        with aside[bin_path(prefix)].open("wb") as stream:
            for texts in _batches(documents(path, data.seed)):
                for ids in tokenizer.encode_all(texts):
                    stream.write(ids.astype(dtype).tobytes())
                    sizes.append(len(ids))
        if not sizes:
            raise DataError(
                f"{path}: no text is left after GLM's subset selection, expected at least one document — add documents"
            )
        with aside[idx_path(prefix)].open("wb") as stream:
            write_index(stream, dtype, np.array(sizes, np.int32))
        for final, part in aside.items():
            part.replace(final)
    except OSError as error:
        raise DataError(
            f"{prefix}: its token files cannot be written ({error.strerror}), expected a writable folder — free space, "
            "or choose another folder with --token-cache"
        ) from error
    finally:
        for part in aside.values():
            part.unlink(missing_ok=True)
    return prefix


def wait_for_tokens(config: TrainConfig, *, writes: bool) -> None:
    """Tokenize the text of a run on the rank with ``writes``, one per host; the other ranks wait for its files.

    They poll for the files, because a collective would time out before a large corpus is tokenized.
    """
    for path in text_paths(config):
        if writes:
            tokenize(path, config.data)
        while not idx_path(token_prefix(path, config.data)).exists():
            time.sleep(_POLL_SECONDS)


def text_paths(config: TrainConfig) -> list[str]:
    """Return the paths of the text that a run reads."""
    data, evaluates = config.data, config.eval_interval and config.eval_iterations
    return list(dict.fromkeys([*data.train, *((*data.valid, *data.test) if evaluates else ())]))


def documents(path: str, seed: int) -> Iterator[str]:
    """Yield the texts that GLM trains on, in the order of files and lines.

    Raises:
        DataError: a line is not a JSON object with a text.
    """
    dice = random.Random(seed)
    for name in text_files(path):
        with regular_files.open_text(name) as lines:
            try:
                for number, line in enumerate(lines, 1):
                    if line.strip():
                        text = _text(line, f"{name}:{number}", dice)
                        if text:
                            yield text
            except UnicodeDecodeError as error:
                raise DataError(f"{name}: is not UTF-8 ({error.reason}) — convert it") from error


def check_text(path: str) -> None:
    """Check the first lines of each file of a path; raises the errors of ``documents``."""
    for name in text_files(path):
        with regular_files.open_text(name, errors="replace") as lines:
            for number, line in zip(range(1, _CHECKED_LINES + 1), lines, strict=False):
                if line.strip():
                    _text(line, f"{name}:{number}", random.Random(0))


def _text(line: str, where: str, dice: random.Random) -> str | None:
    """Return the text of a line, or None if GLM does not train on its subset."""
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{where}: is not JSON ({error}) — fix the line") from error
    text = row.get("text") if isinstance(row, dict) else None
    if not isinstance(text, str):
        raise DataError(f'{where}: has no "text", expected {{"text": ...}} — fix the line')
    meta = row.get("meta")
    subset = meta.get("pile_set_name") if isinstance(meta, dict) else None
    if subset in SKIPPED or (subset in KEPT_SHARE and dice.random() > KEPT_SHARE[subset]):
        return None
    return plain_punctuation(text)


def _batches(texts: Iterator[str]) -> Iterator[list[str]]:
    batch: list[str] = []
    length = 0
    for text in texts:
        batch.append(text)
        length += len(text)
        if length >= _BATCH_CHARACTERS:
            yield batch
            batch, length = [], 0
    if batch:
        yield batch
