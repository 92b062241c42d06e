"""Shapes: the compared models as arguments of Megatron and GPT-NeoX, and their text."""

from __future__ import annotations

import re
import sysconfig
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

LR, WEIGHT_DECAY = 1.5e-4, 0.01


@dataclass(frozen=True)
class Shape:
    """A model's dimensions."""

    name: str
    layers: int
    hidden: int
    heads: int
    length: int
    vocabulary: int
    neox: bool = False
    """GPT-NeoX's block: parallel residual, rotary positions on a quarter of a head, untied head."""

    def config(
        self,
        micro_batch: int,
        accumulation: int,
        steps: int,
        dropout: float,
        prefix: Path,
        extra: str,
        *,
        ranks: int = 1,
        data: int = 1,
    ) -> Any:
        """Return the native trainer's configuration of a job, in bf16 with fp32 master weights.

        Of the ``ranks``, ``data`` are data-parallel, each with ``accumulation`` micro batches.
        """
        from ascend_adapt.recipes import dialects

        given = {
            "num-layers": self.layers,
            "hidden-size": self.hidden,
            "num-attention-heads": self.heads,
            "seq-length": self.length,
            "max-position-embeddings": self.length,
            "micro-batch-size": micro_batch,
            "global-batch-size": micro_batch * accumulation * data,
            "train-iters": steps,
            "lr": LR,
            "lr-decay-style": "constant",
            "weight-decay": WEIGHT_DECAY,
            "clip-grad": 1.0,
            "hidden-dropout": dropout,
            "attention-dropout": dropout,
            "vocab-size": self.vocabulary,
            "data-path": prefix,
            "split": "1,0,0",
            "eval-iters": 0,
        }
        words = [word for name, value in given.items() for word in (f"--{name}", str(value))]
        config, _ = dialects.read("megatron", [*words, "--bf16", *extra.split()]).build(ranks)
        if not self.neox:
            return config
        model = replace(
            config.model, positions="rotary", rotary_fraction=0.25, parallel_residual=True, tied_embeddings=False
        )
        return replace(config, model=model)


SHAPES = {
    "345M": Shape("GPT-2 345M", 24, 1024, 16, 1024, 50257),
    "20B-6": Shape("GPT-NeoX-20B geometry, 6 layers", 6, 6144, 64, 2048, 50257, neox=True),
    "1.3B": Shape("GPT 1.3B", 24, 2048, 16, 2048, 50257),
    "124M": Shape("GPT-2 124M", 12, 768, 12, 1024, 50257),
    "tiny": Shape("tiny GPT", 2, 64, 4, 64, 509),
    "tiny-neox": Shape("tiny GPT-NeoX", 2, 64, 4, 64, 509, neox=True),
}


def write_words(prefix: Path, wanted: int, vocabulary: int) -> None:
    """Write token files of the words in the standard library, repeated as needed, with ids by frequency."""
    import numpy as np

    from ascend_adapt.data.token_index import write_index

    texts: list[list[str]] = []
    missing = wanted
    for path in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")):
        texts.append(re.findall(r"\w+|[^\w\s]|\s+", path.read_text(encoding="utf-8", errors="replace")))
        missing -= len(texts[-1])
        if missing < 0:
            break
    ranked = Counter(word for text in texts for word in text).most_common(vocabulary - 1)
    number = {word: place for place, (word, _) in enumerate(ranked)}
    end = vocabulary - 1
    ids = [np.array([*(number.get(word, end) for word in text), end], np.uint16) for text in texts]
    ids *= -(-wanted // sum(map(len, ids)))
    np.concatenate(ids).tofile(prefix.with_suffix(".bin"))
    with prefix.with_suffix(".idx").open("wb") as stream:
        write_index(stream, np.dtype(np.uint16), np.array([len(each) for each in ids], np.int32))
