"""Patterns of cloze tasks: an example as a prompt with a mask, and the answers that may fill it.

Source of the wording and the truncation: THUDM/GLM@4f61ed72 tasks/superglue/pvp.py and tasks/data_utils.py
(build_input_from_ids).
"""

from __future__ import annotations

import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ascend_adapt.config.train_config import Cloze
from ascend_adapt.data.glm_tokenizer import GlmTokenizer
from ascend_adapt.errors import ConfigError, DataError
from ascend_adapt.native.samples.blank_infilling import Row
from ascend_adapt.native.samples.cloze_examples import Example


class _Mask:
    """The place of the mask in a prompt."""


MASK = _Mask()


@dataclass(frozen=True)
class Shortenable:
    """A text that may lose tokens at its end if the prompt is too long."""

    text: str


Parts = Sequence[str | Shortenable | _Mask]
_Encoded = list[tuple[list[int], bool]]


class Pattern:
    """A task's prompts; ``number`` is GLM's --pattern-id."""

    numbers: ClassVar[tuple[int, ...]]
    has_texts_as_answers: ClassVar[bool] = False
    """Whether answers are texts of the example, one row each. Otherwise they are words, the same for all examples."""

    def __init__(self, tokenizer: GlmTokenizer, length: int, number: int, *, block_positions: bool = True) -> None:
        """``length`` is the maximum number of tokens in a row.

        Raises:
            ConfigError: the task has no such pattern.
        """
        if number not in self.numbers:
            raise ConfigError(
                f"--pattern-id: {number}, expected one of {', '.join(map(str, self.numbers))} — choose one"
            )
        self.tokenizer, self.length, self.number, self._block_positions = tokenizer, length, number, block_positions

    def prompt(self, texts: Mapping[str, str]) -> tuple[Parts, Parts]:
        """Return the two halves of the prompt; the longer half is shortened first."""
        raise NotImplementedError

    def answers(self, texts: Mapping[str, str]) -> Sequence[str]:
        """Return the answers, in the order of the labels."""
        raise NotImplementedError

    def answer_ids(self) -> list[int]:
        """Return the token id of each answer, for tasks whose answers are words.

        Raises:
            DataError: the vocabulary has no token for a word.
        """
        found = [(word, self.tokenizer.encode(word)) for word in self.answers({})]
        wrong = [f"{word!r} is {len(ids)} tokens" for word, ids in found if len(ids) != 1]
        if wrong:
            raise DataError(f"answers: {', '.join(wrong)}, expected one token each — use GPT-2's vocabulary")
        return [ids[0] for _, ids in found]

    def rows(self, example: Example) -> list[Row]:
        """Return the rows of an example: one per answer if the answers are texts, otherwise one.

        Raises:
            DataError: the prompt has no mask, or its parts that may not be shortened are too long.
        """
        try:
            if not self.has_texts_as_answers:
                return [self._row(self.prompt(example.texts), None)]
            eop = self.tokenizer.command("eop")
            answers = [[*self.tokenizer.encode(one), eop] for one in self.answers(example.texts)]
            return [self._row(self.prompt(example.texts), ids) for ids in answers]
        except DataError as error:
            raise DataError(f"example {example.number}: {error}") from error

    def _row(self, prompt: tuple[Parts, Parts], answer: list[int] | None) -> Row:
        first, second = (self._encoded(parts) for parts in prompt)
        self._truncate(first, second, answer)
        return self.row([one for ids, _ in (*first, *second) for one in ids], answer)

    def row(self, prompt: Sequence[int], answer: Sequence[int] | None) -> Row:
        """Return the row made of a prompt's ids and an answer's ids; without an answer, only [sop] follows the prompt.

        Raises:
            DataError: the prompt has no mask.
        """
        command, mask = self.tokenizer.command, self.tokenizer.command("MASK")
        ids = [command("ENC"), *prompt][: self.length - 1]
        ids.append(command("eos"))
        if mask not in ids:
            raise DataError(
                "prompt: has no [MASK] in its first "
                f"{self.length - 1} tokens, expected the blank to fill — add it, or finetune with a larger --seq-length"
            )
        prefix, place = len(ids), len(ids) - 1 - ids[::-1].index(mask)
        filled = [0] if answer is None else list(answer)
        inside = np.arange(1, len(filled) + 1) if self._block_positions else np.ones(len(filled), np.int64)
        counted = np.zeros(prefix + len(filled), np.int64)
        counted[prefix:] = 1
        return Row(
            tokens=np.array([*ids, command("sop"), *filled[:-1]]),
            labels=np.array([0] * prefix + filled),
            loss_mask=counted,
            position_ids=np.append(np.arange(prefix), np.full(len(filled), place)),
            block_position_ids=np.append(np.zeros(prefix, np.int64), inside),
            prefix=prefix,
        )

    def _encoded(self, parts: Parts) -> _Encoded:
        mask = self.tokenizer.command("MASK")
        return [
            ([mask], False)
            if isinstance(part, _Mask)
            else (self.tokenizer.encode(part.text), True)
            if isinstance(part, Shortenable)
            else (self.tokenizer.encode(part), False)
            for part in parts
        ]

    def _truncate(self, first: _Encoded, second: _Encoded, answer: Sequence[int] | None) -> None:
        total = sum(len(ids) for ids, _ in (*first, *second))
        # [CLS], the end of the text, and [sop] if no answer is given.
        surplus = total + (len(answer) if answer else 1) + 2 - self.length
        for _ in range(surplus):
            of_first, of_second = (sum(len(ids) for ids, may in half if may) for half in (first, second))
            half = first if of_first > of_second else second
            place = max((place for place, (ids, may) in enumerate(half) if may and ids), default=None)
            if place is None:
                raise DataError(
                    f"prompt: {total} tokens, {surplus} above what --seq-length {self.length} leaves, and too few of "
                    "them may be truncated — shorten its text, or finetune with a larger --seq-length"
                )
            half[place] = (half[place][0][:-1], True)


def _plain(text: str) -> str:
    return text.rstrip(string.punctuation)


def _lowercase_first(text: str) -> str:
    return text[:1].lower() + text[1:]


class Copa(Pattern):
    """COPA: which of two choices is the cause or the effect."""

    numbers = (0, 1)
    has_texts_as_answers = True

    def prompt(self, texts: Mapping[str, str]) -> tuple[Parts, Parts]:
        """See Pattern."""
        first, second = (_plain(_lowercase_first(texts[name])) for name in ("choice1", "choice2"))
        choices = ['"', first, '" or "', second, '"?'] if self.number == 0 else [first, " or", f" {second}", "?"]
        joiner = " because" if texts["question"] == "cause" else ", so"
        return [*choices, Shortenable(_plain(f" {texts['premise']}")), joiner, MASK, "."], []

    def answers(self, texts: Mapping[str, str]) -> Sequence[str]:
        """See Pattern."""
        return [f" {_plain(_lowercase_first(texts[name]))}" for name in ("choice1", "choice2")]


class BoolQ(Pattern):
    """BoolQ: a yes/no question about a passage."""

    numbers = (0, 1, 2, 3, 4, 5)

    def prompt(self, texts: Mapping[str, str]) -> tuple[Parts, Parts]:
        """See Pattern."""
        passage, question = texts["passage"], Shortenable(f" {texts['question']}")
        if self.number < 2:
            return [Shortenable(passage), " Question:", question, "? Answer:", MASK, "."], []
        if self.number < 4:
            return [Shortenable(passage), " Based on the previous passage,", question, "?", MASK, "."], []
        return ["Based on the following passage", question, "?", MASK, ".", Shortenable(f" {passage}")], []

    def answers(self, texts: Mapping[str, str]) -> Sequence[str]:
        """See Pattern."""
        return [" false", " true"] if self.number % 2 else [" No", " Yes"]


class Rte(Pattern):
    """RTE: whether a premise entails a hypothesis."""

    numbers = (0, 1, 2, 3, 4)

    def prompt(self, texts: Mapping[str, str]) -> tuple[Parts, Parts]:
        """See Pattern."""
        premise, hypothesis = texts["premise"], texts["hypothesis"].rstrip(string.punctuation)
        if self.number == 4:
            question: Parts = [" question:", Shortenable(f" {hypothesis}"), " True or False?", " answer:", MASK]
            return [Shortenable(premise), *question], []
        mark = "," if self.number < 2 else "."
        if self.number % 2 == 0:
            between: Parts = [MASK, ",", ' "'] if self.number == 0 else [MASK, '. "']
            return ['"', Shortenable(hypothesis), '" ?'], [*between, Shortenable(premise), '"']
        return [Shortenable(hypothesis), "?"], [MASK, mark, Shortenable(f" {premise}")]

    def answers(self, texts: Mapping[str, str]) -> Sequence[str]:
        """See Pattern."""
        return [" true", " false"] if self.number == 4 else [" Yes", " No"]


class Cb(Rte):
    """CommitmentBank: whether a premise entails a hypothesis, contradicts it, or neither."""

    def prompt(self, texts: Mapping[str, str]) -> tuple[Parts, Parts]:
        """See Pattern."""
        if self.number != 4:
            return super().prompt(texts)
        hypothesis = Shortenable(f" {texts['hypothesis']}")
        question: Parts = [" question:", hypothesis, " true, false or neither?", " answer:", MASK]
        return [Shortenable(texts["premise"]), *question], []

    def answers(self, texts: Mapping[str, str]) -> Sequence[str]:
        """See Pattern."""
        return [" true", " false", " neither"] if self.number == 4 else [" Yes", " No", " Maybe"]


TASKS: dict[str, type[Pattern]] = {"boolq": BoolQ, "cb": Cb, "copa": Copa, "rte": Rte}


def pattern_of(cloze: Cloze, tokenizer: GlmTokenizer, length: int) -> Pattern:
    """Return the pattern of a configuration; raises what ``Pattern`` raises."""
    return TASKS[cloze.task](tokenizer, length, cloze.pattern, block_positions=cloze.block_positions)
