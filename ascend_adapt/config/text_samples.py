"""Text samples that a run generates at each evaluation."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ascend_adapt.config.checks import at_least
from ascend_adapt.data.json_lines import read_rows, text


@dataclass(frozen=True)
class TextSamples:
    """Prompts that the model continues greedily, each by up to ``tokens`` tokens; GLM fills their blanks."""

    prompts: tuple[str, ...]
    tokens: int = 64

    def __post_init__(self) -> None:
        at_least("--sample-tokens", self.tokens, 1)
        at_least("--sample-prompts: prompts", len(self.prompts), 1)


def read_text_samples(path: str, tokens: int = TextSamples.tokens) -> TextSamples:
    """Read --sample-prompts: JSON lines with ``text``.

    Raises:
        ConfigError: ``tokens`` is less than 1.
        DataError: the file cannot be read, or a line has no text.
    """
    rows = read_rows(Path(path), {"text": text}, "--sample-prompts")
    return TextSamples(tuple(row["text"] for row in rows), tokens)
