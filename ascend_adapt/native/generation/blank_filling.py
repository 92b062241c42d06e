"""Blank filling with GLM: blanks are filled one after another; each piece sees the prompt and the pieces before it.

Source: THUDM/GLM@4f61ed72 generate_samples.py. Upstream adds a mask to a prompt without one; here such a prompt is an
error.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from ascend_adapt.data.glm_tokenizer import GlmTokenizer
from ascend_adapt.errors import DataError
from ascend_adapt.native.generation.continuation import Continuation, StopStrings
from ascend_adapt.native.generation.generation import Sampling, check_lengths, generate
from ascend_adapt.native.generation.inference_model import InferenceModel
from ascend_adapt.native.model.blank_cache import BlankCache, BlankRow

MASKS = ("MASK", "sMASK", "gMASK")
_SEED_STRIDE = 1_000_003
"""Stride between the seeds of a prompt's blanks. torch's CPU generator reads only 32 bits of a seed."""


@dataclass(frozen=True)
class Filled:
    """A prompt with its blanks filled, and the text of each blank."""

    text: str
    blanks: tuple[Continuation, ...]


@dataclass
class _Prompt:
    number: int
    ids: list[int]
    masks: list[int]
    pieces: list[list[int]] = field(default_factory=list)
    blanks: list[Continuation] = field(default_factory=list)

    def row(self, sop: int) -> BlankRow:
        """Return the prompt, the pieces so far, and the start of the next one."""
        tokens, positions, blocks = [*self.ids], [*range(len(self.ids))], [0] * len(self.ids)
        for place, piece in zip(self.masks, [*self.pieces, []], strict=False):
            tokens += [sop, *piece]
            positions += [place] * (len(piece) + 1)
            blocks += range(1, len(piece) + 2)
        return BlankRow(tokens, positions, blocks, len(self.ids))


def fill(
    model: InferenceModel,
    tokenizer: GlmTokenizer,
    texts: Sequence[str],
    sampling: Sampling,
    stop: Sequence[str] = (),
    *,
    use_cache: bool = True,
    batch_size: int = 8,
) -> list[Filled]:
    """Fill every mask in each of ``texts``. A piece ends at [eop], at the end-of-text token, or as in ``generate``.

    Raises:
        DataError: a prompt has no mask, or one that the vocabulary lacks, or leaves no room in the model's context.
    """
    command = tokenizer.command
    prompts = _prompts(tokenizer, texts)
    stops = StopStrings(tokenizer.decode, stop)
    for turn in range(max(len(one.masks) for one in prompts)):
        left = [one for one in prompts if len(one.masks) > turn]
        for one in left if turn else []:
            if len(one.row(command("sop")).tokens) >= model.max_positions:
                one.pieces.append([])
                one.blanks.append(Continuation("", 0, "context"))
        left = [one for one in left if len(one.pieces) == turn]
        rows = [one.row(command("sop")) for one in left]

        def cache(
            capacity: int, padding: torch.Tensor | None, numbers: Sequence[int], rows: list[BlankRow] = rows
        ) -> BlankCache:
            return BlankCache(capacity, padding, [rows[number] for number in numbers], model.device)

        found = generate(
            model,
            [row.tokens for row in rows],
            sampling,
            ends=(command("eop"), command("eos")),
            is_stop=stops.occur_in,
            use_cache=use_cache,
            batch_size=batch_size,
            seeds=[sampling.seed + one.number + turn * _SEED_STRIDE for one in left],
            make_cache=cache,
        )
        for one, piece in zip(left, found, strict=True):
            one.pieces.append(piece.tokens)
            one.blanks.append(Continuation(stops.text_before(piece.tokens), len(piece.tokens), piece.finish))
    return [Filled(_text(tokenizer, one), tuple(one.blanks)) for one in prompts]


def check_prompts(model: InferenceModel, tokenizer: GlmTokenizer, texts: Sequence[str]) -> None:
    """Check that each text has known masks and leaves room in the context; raises what ``fill`` raises."""
    check_lengths(model, [one.row(tokenizer.command("sop")).tokens for one in _prompts(tokenizer, texts)])


def _prompts(tokenizer: GlmTokenizer, texts: Sequence[str]) -> list[_Prompt]:
    """Return the ids of each text between [CLS] and the end token; a text that ends with a mask has no end token."""
    known = [name for name in MASKS if name in tokenizer.special]
    ids_of_masks = {tokenizer.command(name) for name in known}
    prompts, problems = [], []
    for number, text in enumerate(texts):
        ids = [tokenizer.command("ENC"), *tokenizer.encode(text)]
        masks = [place for place, one in enumerate(ids) if one in ids_of_masks]
        if unknown := [f"[{name}]" for name in MASKS if name not in known and f"[{name}]" in text]:
            problems.append(f"prompt {number + 1}: has {' and '.join(unknown)}, which this model was not trained with")
        elif not masks:
            problems.append(f"prompt {number + 1}: has no mask token")
        if masks and masks[-1] != len(ids) - 1:
            ids.append(tokenizer.command("eos"))
        prompts.append(_Prompt(number, ids, masks))
    if problems:
        raise DataError(
            f"{'; '.join(problems[:5])}, expected {' or '.join(f'[{name}]' for name in known)} where GLM "
            f"should write — add one, for example [{known[-1]}] at the end of the prompt to continue it"
        )
    return prompts


def _text(tokenizer: GlmTokenizer, prompt: _Prompt) -> str:
    pieces = iter(prompt.blanks)
    start, text = 1, ""
    for place in prompt.masks:
        text += tokenizer.decode(prompt.ids[start:place]) + next(pieces).text
        start = place + 1
    # [CLS] and the end of the text are not part of it.
    rest = prompt.ids[start:-1] if prompt.masks[-1] != len(prompt.ids) - 1 else []
    return text + tokenizer.decode(rest)
