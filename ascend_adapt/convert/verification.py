"""Verification of a conversion: compares the logits of source and output on one random batch.

If one side is a Hugging Face checkpoint, transformers computes that side and the native model the other, in fp32.
Otherwise the native model computes both sides, and reads each side's files independently.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from ascend_adapt.checkpoint.canonical import parameters
from ascend_adapt.checkpoint.source import Source
from ascend_adapt.config.model_config import Model
from ascend_adapt.convert.native_logits import native_logits
from ascend_adapt.errors import CheckpointError, one_line

TOLERANCE = 1e-5
"""Tolerance for the difference of logits, relative to the largest logit: fp32 rounding accumulates over the layers."""
_BATCH, _LENGTH = 2, 32
_ROOM = 2.0
"""Host memory that must be available, as a multiple of the size of the fp32 model."""


@dataclass(frozen=True)
class Verification:
    """Result of a comparison: the largest difference relative to the largest logit, and the implementations used."""

    difference: float
    implementations: tuple[str, str]
    tolerance: float
    note: str = ""

    @property
    def passed(self) -> bool:
        """Whether the difference is within the tolerance; False for NaN."""
        return self.difference <= self.tolerance

    def __str__(self) -> str:
        """Describe the result in one line."""
        verdict = "verified" if self.passed else "NOT VERIFIED"
        return (
            f"{verdict}: largest relative difference of logits {self.difference:.1e} (tolerance "
            f"{self.tolerance:.0e}); source computed by {self.implementations[0]}, output by {self.implementations[1]}"
            f"{self.note}"
        )


def verify(source: Source, result: Source, tolerance: float = TOLERANCE) -> Verification:
    """Compare the logits of two checkpoints on the ids that both vocabularies have.

    Raises:
        CheckpointError: transformers cannot load a Hugging Face side, or reports missing or unexpected keys.
    """
    dice = torch.Generator().manual_seed(1)
    ids = min(source.model.vocab_size, result.model.vocab_size)
    shape = (_BATCH, min(_LENGTH, source.model.max_positions, result.model.max_positions))
    tokens = torch.randint(0, ids, shape, generator=dice)
    reason = _why_not_transformers(source, result)
    sides, names = [], []
    for one in (source, result):
        by_transformers = not reason and one.dialect == "hf" and (one is result or source.dialect != result.dialect)
        logits = (
            _transformers_logits(one.path, tokens) if by_transformers else native_logits(one.model, one.read, tokens)
        )
        names.append("transformers" if by_transformers else "the native model")
        sides.append(logits[..., :ids])
    largest = max(float(side.abs().max()) for side in sides)
    difference = float((sides[0] - sides[1]).abs().max()) / (largest or 1.0)
    note = f" ({reason})" if reason else ""
    return Verification(difference, (names[0], names[1]), tolerance, note)


def _why_not_transformers(source: Source, result: Source) -> str:
    if "hf" not in (source.dialect, result.dialect):
        return ""
    if find_spec("transformers") is None:
        return "transformers is not installed, so the native model computed both"
    needed, available = 4 * parameter_count(result.model), _available_bytes()
    if needed * _ROOM > available:
        return (
            f"transformers needs {needed / 1e9:.0f} GB but {available / 1e9:.0f} GB are available, so the native model "
            "computed both"
        )
    return ""


def parameter_count(model: Model) -> int:
    """Return the number of parameters of a model."""
    return sum(torch.Size(one.shape).numel() for one in parameters(model))


def _available_bytes() -> int:
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return 0


def _transformers_logits(folder: Path, tokens: torch.Tensor) -> torch.Tensor:
    from transformers import AutoModelForCausalLM
    from transformers import logging as their_logging

    level = their_logging.get_verbosity()
    their_logging.set_verbosity(logging.ERROR)
    their_logging.disable_progress_bar()
    try:
        load: Callable[..., Any] = AutoModelForCausalLM.from_pretrained
        model, info = load(
            folder,
            output_loading_info=True,
            local_files_only=True,
            attn_implementation="eager",
            trust_remote_code=False,
        )
    # The errors that transformers raises for a configuration are not documented.
    except Exception as error:
        raise CheckpointError(f"{folder}: transformers cannot load it ({one_line(error)[:300]})") from error
    finally:
        their_logging.set_verbosity(level)
        their_logging.enable_progress_bar()
    wrong = {
        name: sorted(info[name]) for name in ("missing_keys", "unexpected_keys", "mismatched_keys") if info.get(name)
    }
    if wrong:
        raise CheckpointError(
            f"{folder}: transformers reports {wrong}, expected every weight to match — report this as a bug"
        )
    with torch.no_grad():
        logits: torch.Tensor = model.float().eval()(tokens).logits
    return logits
