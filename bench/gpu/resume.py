"""Resume test: whether a resumed run with CUDA graphs equals an uninterrupted run bit for bit, and eager steps.

``python -m bench.gpu.resume [--tiny]`` trains GPT-2 345M in bf16 with dropout on one GPU (``repeats``). If the
uninterrupted run has not logged that its steps are graphs, the row reports this.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from pathlib import Path

from bench.gpu import repeats
from bench.gpu.comparison import report
from bench.gpu.shapes import SHAPES, write_words

STEPS = 24


def main() -> None:
    """Run all three and compare them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tiny", action="store_true")
    tiny = parser.parse_args().tiny
    os.environ["ASCEND_ADAPT_DETERMINISTIC"] = "1"
    shape, micro_batch = SHAPES["tiny" if tiny else "345M"], 2 if tiny else 16
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_words(folder / "words", (STEPS + 1) * micro_batch * shape.length + 1, shape.vocabulary)
        config = shape.config(micro_batch, 1, STEPS, 0.1, folder / "words", "")
        report("the same run", repeats.three_runs(config, folder))


if __name__ == "__main__":
    main()
