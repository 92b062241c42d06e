"""Memory: freed blocks are returned, and a long document does not need a hundred times its size."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import numpy as np

from ascend_adapt.data.memory import give_back_large_blocks, resident_bytes

HIGHEST = """
import re, sys
from pathlib import Path
from ascend_adapt.cli import main
code = main(sys.argv[1:])
print(re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1])
sys.exit(code)
"""


def test_large_blocks_are_returned_to_the_system():
    assert give_back_large_blocks()
    before = resident_bytes()
    held = np.ones(64 << 20, np.uint8)
    assert resident_bytes() - before > 60 << 20
    del held
    assert resident_bytes() - before < 8 << 20


def test_a_long_document_needs_little(tmp_path, gpt2_files):
    vocab, merges = gpt2_files
    peaks = []
    for number, text in enumerate(("short", "A sentence of words, and one more.\n" * 60_000)):
        path = tmp_path / f"{number}.jsonl"
        path.write_text(json.dumps({"text": text}) + "\n")
        options = ["--input", path, "--output-prefix", tmp_path / "o", "--engine", "hf", "--vocab", vocab]
        options += ["--merge-file", merges, "--tokenizer-type", "GPT2BPETokenizer"]
        command = [sys.executable, "-c", HIGHEST, "preprocess", *map(str, options)]
        said = subprocess.run(command, capture_output=True, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
        peaks.append(int(said.stdout.split()[-1]))
    # 2 MB of text as bytes, as text, as ids; whole, the library alone needs 300 MB more.
    assert peaks[1] - peaks[0] < 60_000
