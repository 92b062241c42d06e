"""Texts that continue prompts, ended by stop strings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ascend_adapt.evaluation.generation import Sampling, generate
from ascend_adapt.evaluation.language_model import LanguageModel
from ascend_adapt.evaluation.text import TextTokenizer


@dataclass(frozen=True)
class Continuation:
    """Text that continues a prompt, how many tokens were generated, and why it ends, as in ``Generation``."""

    text: str
    new_tokens: int
    finish: str


def continue_ids(
    model: LanguageModel,
    tokenizer: TextTokenizer,
    prompts: Sequence[Sequence[int]],
    sampling: Sampling,
    stop: Sequence[str] = (),
    *,
    use_cache: bool = True,
    batch_size: int = 8,
) -> list[Continuation]:
    """Return the text that continues each prompt; it ends before the first of the strings ``stop``."""
    ended_by = [one for one in stop if one]

    def is_stop(tokens: list[int]) -> bool:
        text = tokenizer.decode(tokens) if ended_by else ""
        return any(one in text for one in ended_by)

    found = generate(
        model, prompts, sampling, eod=tokenizer.eod, is_stop=is_stop, use_cache=use_cache, batch_size=batch_size
    )
    results = []
    for one in found:
        text = tokenizer.decode(one.tokens)
        text = text[: min([text.find(end) for end in ended_by if end in text], default=len(text))]
        results.append(Continuation(text, len(one.tokens), one.finish))
    return results
