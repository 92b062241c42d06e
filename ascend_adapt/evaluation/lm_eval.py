"""lm-eval with models of this package: `python -m ascend_adapt.evaluation.lm_eval --model ascend_adapt ...`.

Models must be registered before lm-eval parses its command line, and lm-eval has no entry point for them. Therefore
this module registers the model, and then runs lm-eval's command line.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ascend_adapt.errors import AdaptError, SettingsError, not_installed
from ascend_adapt.whole_numbers import whole_number

try:
    from lm_eval.__main__ import cli_evaluate
    from lm_eval.api.model import TemplateLM
    from lm_eval.api.registry import register_model
except ModuleNotFoundError as error:
    if __name__ != "__main__" or error.name != "lm_eval":
        raise
    raise SystemExit(not_installed("lm_eval", "python -m ascend_adapt.evaluation.lm_eval", "eval")) from None

from ascend_adapt.evaluation.language_model import LanguageModel, ranks_of_this_job
from ascend_adapt.evaluation.scoring import score
from ascend_adapt.evaluation.text import TokenizerOptions, tokenizer_of
from ascend_adapt.evaluation.text_perplexity import windows
from ascend_adapt.native.generation.continuation import continue_ids
from ascend_adapt.native.generation.generation import Sampling

_NAMES_OF_LENGTH = ("max_gen_toks", "max_new_tokens", "max_tokens", "max_completion_tokens")


@register_model("ascend_adapt")
class AscendAdaptLM(TemplateLM):  # type: ignore[misc]
    """lm-eval model of a checkpoint of any dialect; ranks that a launcher started are tensor-parallel.

    ``--model_args``: ``model`` (a folder), ``dtype``, ``tokenizer_type``, ``vocab_file``, ``merge_file``.
    """

    def __init__(
        self,
        model: str,
        dtype: str | None = None,
        tokenizer_type: str | None = None,
        vocab_file: str | None = None,
        merge_file: str | None = None,
        batch_size: int | str = 8,
        max_gen_toks: int = 256,
        device: str | None = None,
        max_batch_size: int | None = None,
    ) -> None:
        super().__init__()
        size = whole_number(str(batch_size))
        if size is None:
            raise SettingsError(f"--batch_size: {batch_size}, expected a number — pass one")
        self.batch_size, self.max_gen_toks = size, max_gen_toks
        # Without --device, lm-eval passes "cuda:0" on every host. The context is never exited, because lm-eval has no
        # hook at the end of an evaluation.
        self._job = ranks_of_this_job(None if device == "cuda:0" else device)
        self.model = LanguageModel.load(Path(model), self._job.__enter__(), dtype)
        self.text = tokenizer_of(self.model.source, TokenizerOptions(tokenizer_type, vocab_file, merge_file))

    @property
    def eot_token_id(self) -> int:
        """The end-of-document token, which replaces an empty context."""
        return self.text.first()

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **kwargs: Any) -> list[int]:
        """Return the ids of a text."""
        return self.text.encode(string)

    def _loglikelihood_tokens(
        self, requests: Sequence[tuple[Any, list[int], list[int]]], disable_tqdm: bool = False, **kwargs: Any
    ) -> list[tuple[float, bool]]:
        pairs = [(context, continuation) for _, context, continuation in requests]
        scores = score(self.model, pairs, batch_size=self.batch_size)
        return [(one.log_probability, one.is_greedy) for one in scores]

    def loglikelihood_rolling(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[float]:
        """Return the log-probability of each text, in windows that do not overlap."""
        size = self.model.max_positions
        pieces = [list(windows(self.text.encode(one.args[0]), self.text.first(), size, size)) for one in requests]
        scores = iter(score(self.model, [piece for of_one in pieces for piece in of_one], batch_size=self.batch_size))
        return [sum(next(scores).log_probability for _ in of_one) for of_one in pieces]

    def generate_until(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[str]:
        """Return the text that continues each context, up to the first of its stop strings.

        A context that leaves no room for the new tokens is truncated at its start, as in lm-eval's own models.
        """
        alike: dict[str, list[int]] = {}
        for number, one in enumerate(requests):
            alike.setdefault(repr(one.args[1]), []).append(number)
        texts = [""] * len(requests)
        for numbers in alike.values():
            sampling, stop = self._sampling(dict(requests[numbers[0]].args[1]))
            room = self.model.max_positions - sampling.max_new_tokens
            if room < 1:
                raise SettingsError(
                    f"max_gen_toks: {sampling.max_new_tokens}, expected fewer than the model's context of "
                    f"{self.model.max_positions} — pass --gen_kwargs max_gen_toks=N"
                )
            prompts = [
                (self.text.encode(requests[number].args[0]) or [self.text.first()])[-room:] for number in numbers
            ]
            found = continue_ids(
                self.model, self.text.decode, self.text.eod, prompts, sampling, stop, batch_size=self.batch_size
            )
            for number, one in zip(numbers, found, strict=True):
                texts[number] = one.text
        return texts

    def _sampling(self, given: dict[str, Any]) -> tuple[Sampling, list[str]]:
        until = given.get("until") or []
        length = next((given[name] for name in _NAMES_OF_LENGTH if name in given), self.max_gen_toks)
        temperature = float(given.get("temperature", 1.0)) if given.get("do_sample") else 0.0
        sampling = Sampling(int(length), temperature, int(given.get("top_k", 0)), float(given.get("top_p", 1.0)))
        return sampling, [until] if isinstance(until, str) else list(until)


if __name__ == "__main__":
    try:
        cli_evaluate()
    except AdaptError as error:
        raise SystemExit(f"{error}") from None
