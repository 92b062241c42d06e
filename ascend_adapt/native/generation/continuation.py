"""Texts that continue prompts, and the stop strings that end them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ascend_adapt.native.generation.generation import Sampling, generate
from ascend_adapt.native.generation.inference_model import InferenceModel


@dataclass(frozen=True)
class Continuation:
    """Text that continues a prompt, its number of tokens, and the reason why it ends, as in ``Generation``."""

    text: str
    new_tokens: int
    finish: str


class StopStrings:
    """Stop strings: a generated text ends before the first of them."""

    def __init__(self, decode: Callable[[list[int]], str], strings: Sequence[str]) -> None:
        self._decode, self._strings = decode, [one for one in strings if one]

    def occur_in(self, tokens: list[int]) -> bool:
        """Return whether the text of the tokens contains a stop string."""
        text = self._decode(tokens) if self._strings else ""
        return any(one in text for one in self._strings)

    def text_before(self, tokens: list[int]) -> str:
        """Return the text of the tokens up to the first stop string."""
        text = self._decode(tokens)
        return text[: min([text.find(one) for one in self._strings if one in text], default=len(text))]


def continue_ids(
    model: InferenceModel,
    decode: Callable[[Sequence[int]], str],
    eod: int | None,
    prompts: Sequence[Sequence[int]],
    sampling: Sampling,
    stop: Sequence[str] = (),
    *,
    use_cache: bool = True,
    batch_size: int = 8,
) -> list[Continuation]:
    """Return the text that continues each prompt.

    The text ends before the first stop string in ``stop``, or at the end-of-document token ``eod``.
    """
    stops = StopStrings(decode, stop)
    found = generate(
        model,
        prompts,
        sampling,
        ends=() if eod is None else (eod,),
        is_stop=stops.occur_in,
        use_cache=use_cache,
        batch_size=batch_size,
    )
    return [Continuation(stops.text_before(one.tokens), len(one.tokens), one.finish) for one in found]
