"""Texts that continue prompts, ended by stop strings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ascend_adapt.evaluation.generation import Sampling, generate
from ascend_adapt.evaluation.language_model import LanguageModel
from ascend_adapt.evaluation.text import TextTokenizer


def continue_texts(
    model: LanguageModel,
    tokenizer: TextTokenizer,
    prompts: Sequence[str],
    sampling: Sampling,
    stop: Sequence[str] = (),
    *,
    use_cache: bool = True,
    batch_size: int = 8,
) -> list[dict[str, Any]]:
    """Return one object for each prompt: prompt, text, number of new tokens, and why the text ends (``Generation``).

    A text ends before the first of the strings ``stop``. An empty prompt stands for the end-of-document token.
    """
    ended_by = [one for one in stop if one]

    def is_stop(tokens: list[int]) -> bool:
        return any(one in tokenizer.decode(tokens) for one in ended_by)

    ids = [tokenizer.encode(prompt) or [tokenizer.first()] for prompt in prompts]
    found = generate(
        model, ids, sampling, eod=tokenizer.eod, is_stop=is_stop, use_cache=use_cache, batch_size=batch_size
    )
    results = []
    for prompt, one in zip(prompts, found, strict=True):
        text = tokenizer.decode(one.tokens)
        text = text[: min([text.find(end) for end in ended_by if end in text], default=len(text))]
        results.append({"prompt": prompt, "text": text, "new_tokens": len(one.tokens), "finish": one.finish})
    return results
