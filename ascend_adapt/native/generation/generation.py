"""Text generation: greedy or sampled, in batches of prompts padded on the left, with a key/value cache."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

import torch
from torch import nn

from ascend_adapt.errors import DataError, SettingsError
from ascend_adapt.native import device as devices
from ascend_adapt.native.generation.inference_model import InferenceModel
from ascend_adapt.native.model.kv_cache import KeyValueCache

_LEAST_TEMPERATURE = 1e-30
"""Smallest temperature by which fp32 logits can be divided without overflow."""
_SEEDS = 2**62
"""Bound of a seed's magnitude. Each prompt adds its number to the seed; torch's generator reads 64 bits."""


@dataclass(frozen=True)
class Sampling:
    """How the next token is chosen: ``temperature`` 0 is greedy.

    ``top_k`` keeps the k most likely tokens (0: all tokens); of these, ``top_p`` keeps the fewest whose probabilities
    sum to at least p. The draws of a prompt depend only on ``seed`` and its number, not on the other prompts in its
    batch.
    """

    max_new_tokens: int = 64
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        wrong = []
        if self.max_new_tokens < 1:
            wrong.append(f"--max-new-tokens: {self.max_new_tokens}, expected at least 1")
        if self.temperature != 0 and not _LEAST_TEMPERATURE <= self.temperature < float("inf"):
            wrong.append(f"--temperature: {self.temperature}, expected 0 (greedy) or at least {_LEAST_TEMPERATURE:g}")
        if self.top_k < 0:
            wrong.append(f"--top-k: {self.top_k}, expected 0 (all tokens) or more")
        if not 0 < self.top_p <= 1:
            wrong.append(f"--top-p: {self.top_p}, expected above 0 and at most 1")
        if not abs(self.seed) < _SEEDS:
            wrong.append(f"--seed: {self.seed}, expected less than 2 ** 62")
        if wrong:
            raise SettingsError(f"{'; '.join(wrong)} — correct it")


@dataclass(frozen=True)
class Generation:
    """Generated tokens, and why they end: ``eod``, ``stop``, ``length`` (max_new_tokens) or ``context`` (full)."""

    tokens: list[int]
    finish: str


@dataclass
class _Row:
    number: int
    limit: int
    """Maximum number of tokens to generate, and the reason for it: ``length`` or ``context``."""
    limit_name: str
    seed: int
    tokens: list[int] = field(default_factory=list)
    finish: str = ""


MakeCache = Callable[[int, torch.Tensor | None, Sequence[int]], KeyValueCache]
"""Function of a number of tokens, the padding of each row and the prompts' numbers; it returns a cache for them."""


def _causal_cache(capacity: int, padding: torch.Tensor | None, _numbers: Sequence[int]) -> KeyValueCache:
    return KeyValueCache(capacity, padding)


def generate(
    model: InferenceModel,
    prompts: Sequence[Sequence[int]],
    sampling: Sampling,
    *,
    ends: Collection[int] = (),
    is_stop: Callable[[list[int]], bool] = lambda tokens: False,
    use_cache: bool = True,
    batch_size: int = 8,
    seeds: Sequence[int] | None = None,
    make_cache: MakeCache = _causal_cache,
) -> list[Generation]:
    """Continue each prompt, in batches of ``batch_size``; the token that ends a text is not part of the result.

    Args:
        model: the model; all its ranks call this with the same arguments. prompts: token ids, at least one each.
        sampling: how tokens are chosen, and how many. ends: tokens that end a text. is_stop: whether generated tokens
        contain a stop string, which ends a text. use_cache: False recomputes every token at each step. batch_size:
        number of prompts per batch. seeds: seed of each prompt's draws; by default ``sampling.seed`` plus the prompt's
        number. make_cache: function that returns the cache of a batch, which determines positions and masks.

    Raises:
        DataError: a prompt is empty, or leaves no room in the model's context.
    """
    check_lengths(model, prompts)
    rows = []
    for number, prompt in enumerate(prompts):
        room = model.max_positions - len(prompt)
        limit = (room, "context") if room < sampling.max_new_tokens else (sampling.max_new_tokens, "length")
        rows.append(_Row(number, *limit, seeds[number] if seeds else sampling.seed + number))
    for start in range(0, len(rows), batch_size):
        batch = rows[start : start + batch_size]
        _Batch(model, batch, [prompts[row.number] for row in batch], sampling, use_cache, make_cache).run(ends, is_stop)
    return [Generation(row.tokens, row.finish) for row in rows]


def check_lengths(model: InferenceModel, prompts: Sequence[Sequence[int]]) -> None:
    """Check that each prompt has tokens and leaves room for new ones; raises the errors of ``generate``."""
    problems = [f"prompt {number}: has no tokens" for number, prompt in enumerate(prompts, 1) if not prompt]
    problems += [
        f"prompt {number}: {len(prompt)} tokens, expected fewer than the model's context of {model.max_positions}"
        for number, prompt in enumerate(prompts, 1)
        if len(prompt) >= model.max_positions
    ]
    if problems:
        raise DataError(f"{'; '.join(problems[:5])} — pass prompts with at least one token, and room for new ones")


class _Batch:
    """Prompts that are continued together.

    The host reads the tokens at intervals, so that it does not wait for a device at each of them. Finished rows then
    leave the batch, but with a captured step they stay until all rows are finished.
    """

    def __init__(
        self,
        model: InferenceModel,
        rows: list[_Row],
        prompts: Sequence[Sequence[int]],
        sampling: Sampling,
        use_cache: bool,
        make_cache: MakeCache,
    ) -> None:
        self.make_cache = make_cache
        self.model, self.rows, self.sampling = model, rows, sampling
        longest = max(map(len, prompts))
        padding = torch.tensor([longest - len(prompt) for prompt in prompts], device=model.device)
        self.tokens = torch.tensor(
            [[0] * (longest - len(prompt)) + list(prompt) for prompt in prompts], device=model.device
        )
        self.padding = padding if padding.any() else None
        self.capacity = longest + max(row.limit for row in rows)
        self.step = model.decode_step(len(rows), self.capacity) if use_cache else None
        self.cache = self._new_cache(longest if self.step else self.capacity) if use_cache else None
        self.steps = 0
        self.draws: torch.Tensor | None = None
        if sampling.temperature > 0:
            # Each row draws from its own generator, so that its draws do not depend on the other rows.
            draws = [torch.rand(row.limit, generator=torch.Generator().manual_seed(row.seed)) for row in rows]
            self.draws = nn.utils.rnn.pad_sequence(draws, batch_first=True).to(model.device)

    def run(self, ends: Collection[int], is_stop: Callable[[list[int]], bool]) -> None:
        """Generate until every row is finished."""
        interval = devices.tokens_between_waits(self.model.device)
        while unfinished := [row for row in self.rows if not row.finish]:
            # No row exceeds its limit before the host reads the tokens.
            count = min(interval, *(row.limit - len(row.tokens) for row in unfinished))
            chosen = torch.stack([self._next_tokens() for _ in range(count)], 1).tolist()
            for row, tokens in zip(self.rows, chosen, strict=True):
                for token in tokens:
                    if not row.finish:
                        self._append(row, token, ends, is_stop)
            self._drop_finished_rows()

    def _next_tokens(self) -> torch.Tensor:
        """Return the next token of each row, int64 [rows], and append it to the row."""
        logits = self.model.gathered(self._next_logits())
        # Rows beyond the tokenizer's ids are padding of the vocabulary.
        chosen = self._chosen(logits[..., : self.model.model.vocab_size])
        new = chosen[:, None]
        self.tokens = new if self.cache is not None else torch.cat([self.tokens, new], 1)
        self.steps += 1
        return chosen

    def _new_cache(self, capacity: int) -> KeyValueCache:
        return self.make_cache(capacity, self.padding, [row.number for row in self.rows])

    def _next_logits(self) -> torch.Tensor:
        if self.step is not None and self.steps:
            return self.step(self.tokens)
        if self.cache is not None:
            logits = self.model.next_logits(self.tokens, self.cache)
            if self.step is not None:
                self.step.start(self.cache)
            return logits
        empty = self._new_cache(0)
        return self.model.local_logits(
            self.tokens,
            position_ids=empty.position_ids(self.tokens),
            block_position_ids=empty.block_position_ids(self.tokens),
            masked_out=empty.masked_out(self.tokens.shape[1]),
            logits_to_keep=1,
        )[:, 0]

    def _chosen(self, logits: torch.Tensor) -> torch.Tensor:
        if self.draws is None:
            return self.model.agreed(logits.argmax(-1))
        sampling = self.sampling
        probabilities = filtered(logits / sampling.temperature, sampling.top_k, sampling.top_p).softmax(-1)
        return self.model.agreed(drawn(probabilities, self.draws[:, self.steps]))

    def _append(self, row: _Row, token: int, ends: Collection[int], is_stop: Callable[[list[int]], bool]) -> None:
        if token in ends:
            row.finish = "eod"
            return
        row.tokens.append(token)
        if is_stop(row.tokens):
            row.finish = "stop"
        elif len(row.tokens) == row.limit:
            row.finish = row.limit_name

    def _drop_finished_rows(self) -> None:
        left = [place for place, row in enumerate(self.rows) if not row.finish]
        if self.step is not None or len(left) == len(self.rows):
            return
        self.rows = [self.rows[place] for place in left]
        kept = torch.tensor(left, dtype=torch.int64, device=self.tokens.device)
        self.tokens = self.tokens[kept]
        if self.cache is not None:
            self.cache.keep_rows(kept)
        self.padding = None if self.padding is None else self.padding[kept]
        self.draws = None if self.draws is None else self.draws[kept]


def drawn(probabilities: torch.Tensor, draws: torch.Tensor) -> torch.Tensor:
    """Sample an int64 index per row of ``probabilities`` [rows, V], from uniform ``draws`` [rows] between 0 and 1."""
    sums = probabilities.cumsum(-1)
    total = sums[:, -1:]
    # A draw near 1, multiplied by the total, may round to the total, which only the last token reaches.
    return torch.minimum((sums <= draws[:, None] * total).sum(-1), (sums < total).sum(-1))


def filtered(logits: torch.Tensor, top_k: int, top_p: float) -> torch.Tensor:
    """Return logits [..., V] with minus infinity for the tokens that top-k and then top-p exclude."""
    if 0 < top_k < logits.shape[-1]:
        least = logits.topk(top_k).values[..., -1:]
        logits = logits.masked_fill(logits < least, float("-inf"))
    if top_p < 1:
        ordered, places = logits.sort(-1, descending=True)
        probabilities = ordered.softmax(-1)
        # A token stays if the sum of the more likely ones has not reached top_p.
        left_out = probabilities.cumsum(-1) - probabilities >= top_p
        logits = logits.masked_fill(left_out.scatter(-1, places, left_out), float("-inf"))
    return logits
