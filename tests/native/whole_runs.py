"""Command lines that an unmodified code base and the native trainer both take, word by word: small models, 50 steps."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from native.fixed_text import VOCABULARY, Text

STEPS = 50

MEGATRON = {
    "num-layers": 2,
    "hidden-size": 64,
    "num-attention-heads": 4,
    "seq-length": 32,
    "max-position-embeddings": 32,
    "attention-dropout": 0,
    "hidden-dropout": 0,
    "init-method-std": 0.05,
    "micro-batch-size": 2,
    "global-batch-size": 8,
    "train-iters": STEPS,
    "lr": 3e-3,
    "min-lr": 3e-4,
    "lr-decay-style": "cosine",
    "lr-decay-iters": STEPS,
    "lr-warmup-fraction": 0.1,
    "weight-decay": 0.1,
    "clip-grad": 1.0,
    "adam-beta2": 0.95,
    "split": "90,5,5",
    "eval-iters": 1,
    "eval-interval": 1000,
    "log-interval": 1,
    "num-workers": 0,
    "seed": 1234,
}
# Of a machine without apex and TransformerEngine; upstream needs these options, and the native trainer accepts them.
WITHOUT_EXTENSIONS = ("transformer-impl local", "no-persist-layer-norm", "no-gradient-accumulation-fusion")
# Each document by itself.
APART = ("reset-position-ids", "reset-attention-mask", "eod-mask-loss")
# As newer models have it.
GATED = {"num-query-groups": 2, "normalization": "RMSNorm", "position-embedding-type": "rope"}
GATED_FLAGS = (
    "group-query-attention",
    "swiglu",
    "untie-embeddings-and-output-weights",
    "disable-bias-linear",
    "no-rope-fusion",
)
NEOX = {
    "pipe-parallel-size": 1,
    "model-parallel-size": 1,
    "num-layers": 2,
    "hidden-size": 64,
    "num-attention-heads": 4,
    "seq-length": 32,
    "max-position-embeddings": 32,
    "pos-emb": "rotary",
    "rotary-pct": 0.25,
    "no-weight-tying": True,
    "gpt-j-residual": True,
    "output-layer-parallelism": "column",
    "init_method": "small_init",
    "output_layer_init_method": "wang_init",
    "attention-dropout": 0,
    "hidden-dropout": 0,
    "optimizer": {"type": "Adam", "params": {"lr": 0.003, "betas": [0.9, 0.95], "eps": 1.0e-8}},
    "min_lr": 0.0003,
    "zero_optimization": {"stage": 0},
    "train_micro_batch_size_per_gpu": 2,
    "gradient_accumulation_steps": 4,
    "gradient_clipping": 1.0,
    "weight-decay": 0.1,
    "data-impl": "mmap",
    "split": "90,5,5",
    "precision": "fp32",
    "tokenizer_type": "GPT2BPETokenizer",
    "train-iters": STEPS,
    "lr-decay-iters": STEPS,
    "lr-decay-style": "cosine",
    "warmup": 0.1,
    "distributed-backend": "nccl",
    "checkpoint-factor": 1000,
    "eval-interval": 1000,
    "eval-iters": 1,
    "log-interval": 1,
    "num-workers": 0,
    "seed": 1234,
}


@dataclass(frozen=True)
class WholeRun:
    """One run of a code base: ``arguments`` writes the files that they name, and returns the command line of both.

    ``line`` is the native trainer's name of the code base's version, ``script`` what upstream takes the arguments by,
    ``loss`` finds the losses in what that prints. ``second_is_mean``: that prints the mean of the first two losses
    for the second. Source: Megatron-LM@core_v0.19.0 megatron/training/training.py training_log, should_reset.
    """

    name: str
    code_base: str
    dialect: str
    line: str
    script: str
    arguments: Callable[[Path, Text], list[str]] = field(repr=False)
    loss: str
    ranks: int = 1
    second_is_mean: bool = False
    growth: float = 4.0
    """By how much it magnifies a difference of its weights in its losses (see training_bounds)."""

    def losses(self, printed: Sequence[float]) -> tuple[float, ...]:
        """Return the losses of the steps by what was printed."""
        if not self.second_is_mean:
            return tuple(printed)
        return printed[0], round(2 * printed[1] - printed[0], 6), *printed[2:]


def megatron(
    name: str,
    code_base: str,
    line: str,
    flags: tuple[str, ...] = (),
    *,
    vocabulary_file: bool = False,
    ranks: int = 1,
    **more: Any,
) -> WholeRun:
    """Return a run of a pretrain_gpt.py."""

    def arguments(folder: Path, text: Text) -> list[str]:
        options = {
            **MEGATRON,
            "data-path": text.prefix,
            **{key.replace("_", "-"): value for key, value in more.items()},
        }
        if vocabulary_file:
            options |= {"vocab-file": text.vocabulary, "merge-file": text.merges, "data-impl": "mmap"}
        else:
            # Older lines count its ids without the end of a document.
            size = VOCABULARY if line == "newest" else VOCABULARY - 1
            options |= {"tokenizer-type": "NullTokenizer", "vocab-size": size}
            options |= {"data-cache-path": folder / "index"}
        if ranks > 1:
            options["tensor-model-parallel-size"] = ranks
        words = [word for key, value in options.items() for word in (f"--{key}", str(value))]
        return [*words, *(word for flag in flags for word in f"--{flag}".split())]

    return WholeRun(
        name,
        code_base,
        "megatron",
        line,
        "pretrain_gpt.py",
        arguments,
        r" lm loss: ([0-9.E+-]+)",
        ranks,
        line == "newest",
    )


def neox(name: str, code_base: str, line: str, **changes: Any) -> WholeRun:
    """Return a run of deepy.py train.py."""

    def arguments(folder: Path, text: Text) -> list[str]:
        paths = {"data-path": text.prefix, "vocab-file": text.vocabulary, "merge-file": text.merges}
        whole = {**NEOX, **{key: str(value) for key, value in paths.items()}, **changes}
        # To YAML 1.1 1e-08 is a word.
        (folder / "small.yml").write_text(json.dumps(whole, indent=1).replace("1e-08", "1.0e-08"))
        return ["-d", str(folder), "small.yml"]

    return WholeRun(name, code_base, "neox", line, "train.py", arguments, r"lm_loss: ([0-9.]+E[+-][0-9]+)")


BIGSCIENCE = "bigscience-Megatron-DeepSpeed"
RUNS = (
    replace(megatron("bigscience", BIGSCIENCE, "bigscience", vocabulary_file=True), growth=24.0),
    # At 3e-3 one loss is a spike, which 1e-6 of the first weights moves by 9e-4: nothing to compare to 1e-4.
    megatron("bigscience, documents apart", BIGSCIENCE, "bigscience", APART, vocabulary_file=True, lr=1e-3),
    replace(
        megatron("bigscience, tensor parallel", BIGSCIENCE, "bigscience", vocabulary_file=True, ranks=2), growth=24.0
    ),
    megatron("Megatron-LM 0.12.0", "Megatron-LM-0.12.0", "core_v0.9.0", WITHOUT_EXTENSIONS),
    megatron("Megatron-LM 0.19.0, gated", "Megatron-LM-0.19.0", "newest", (*WITHOUT_EXTENSIONS, *GATED_FLAGS), **GATED),
    neox("GPT-NeoX ea7aefd8", "gpt-neox", "newest"),
    neox("GPT-NeoX v2.0", "gpt-neox-v2.0", "v2.0"),
)
