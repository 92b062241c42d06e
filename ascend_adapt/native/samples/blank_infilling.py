"""GLM's blank infilling: turns samples of documents into batches with masked spans that the model fills in.

A row is part A, the text with a mask for each span, then part B: the spans in random order, each after [sop]. Its
targets are the spans, each followed by [eop]. A token of part B has the position of its mask; block positions count
inside a span.

Source: THUDM/GLM@4f61ed72 blocklm_utils.py (ConstructBlockStrategy); the random draws and their order are the same,
except for [dBLOCK] inside spans, which upstream draws from Python's global generator, and around masks, which it draws
from a set.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ascend_adapt.config.train_config import BlankInfilling
from ascend_adapt.data.glm_tokenizer import GlmTokenizer

Ids = NDArray[np.int64]
Sample = tuple[Ids, Ids]
"""Tokens and loss mask."""
Span = tuple[int, int]
_MAX_BLOCK_LENGTH = 40
_BERT_RATIO = 0.15
_CONTEXT_RANGE = 3
_SHORTEST = 32


@dataclass(frozen=True)
class Row:
    """One row of a batch; all arrays are int64 [length], ``prefix`` is the length of part A."""

    tokens: Ids
    labels: Ids
    loss_mask: Ids
    position_ids: Ids
    block_position_ids: Ids
    prefix: int


class Blanks:
    """Converts samples to rows; all random draws of a batch depend only on its number."""

    def __init__(self, settings: BlankInfilling, tokenizer: GlmTokenizer, length: int) -> None:
        self.settings, self.length = settings, length
        command = tokenizer.command
        self.eos, self.sop, self.eop, self.start = (command(name) for name in ("eos", "sop", "eop", "ENC"))
        self.mask = command("MASK")
        has_task_masks = "gMASK" in tokenizer.special
        self.masks = {
            "bert": self.mask,
            "generation": command("gMASK") if has_task_masks else self.mask,
            "sentence": command("sMASK") if has_task_masks else self.mask,
        }
        uses_blocks = settings.block_mask_prob > 0 or settings.context_mask_ratio > 0
        self.hidden = command("dBLOCK") if uses_blocks else self.eos
        self._hidden_dice = random.Random()
        self._sentence_ends = tokenizer.sentence_ends
        self._lengths = range(1, _MAX_BLOCK_LENGTH)
        rate = settings.average_block_length
        self._weights = [math.exp(n * math.log(rate) - rate - math.lgamma(n + 1)) for n in self._lengths]

    def rows(self, samples: Sequence[Sample], number: int) -> list[Row]:
        """Return the rows of batch ``number``: several for short samples, none for a sample without room for spans."""
        settings, dice = self.settings, random.Random(number)
        self._hidden_dice = random.Random(f"{number} [dBLOCK]")
        if dice.random() < settings.short_seq_prob:
            samples = self._split(samples, dice)
        samples = [(tokens, mask) for tokens, mask in samples if len(tokens) > 2]
        is_single = dice.random() < settings.single_span_prob
        kind = 0.0 if is_single else dice.random()
        if kind < settings.bert_prob:
            rows = [self._spans(tokens, dice, is_single=is_single) for tokens, _ in samples]
        elif kind < settings.bert_prob + settings.gap_sentence_prob:
            rows = [self._sentences(tokens, dice) for tokens, _ in samples]
        else:
            rows = self._generations(samples, dice)
        return [row for row in rows if row is not None]

    def _spans(self, tokens: Ids, dice: random.Random, *, is_single: bool) -> Row | None:
        lengths: list[int] = []
        while not lengths if is_single else sum(lengths) < int(_BERT_RATIO * len(tokens)):
            lengths.append(dice.choices(self._lengths, weights=self._weights)[0])
        return self._blanked(tokens, lengths, dice, "bert")

    def _blanked(self, tokens: Ids, lengths: list[int], dice: random.Random, task: str) -> Row | None:
        dice.shuffle(lengths)
        spans = self._placed(tokens, lengths, dice)
        return None if len(spans) < len(lengths) else self._row(tokens, spans, dice, task)

    def _placed(self, tokens: Ids, lengths: list[int], dice: random.Random) -> list[Span]:
        """Place spans of these lengths in the documents of a sample, shorter documents first, without touching."""
        dice.shuffle(lengths)
        ends = [-1, *np.flatnonzero(tokens == self.eos).tolist()]
        documents, last = [], len(tokens)
        for end in reversed(ends):
            begin = end + 2 if end + 1 < len(tokens) and tokens[end + 1] == self.start else end + 1
            length = last - begin
            documents.append((begin, length - 1 if last == len(tokens) and length > 0 else length))
            last = end
        documents.sort(key=lambda one: one[1])
        spans: list[Span] = []
        used = 0
        for number, (begin, length) in enumerate(documents):
            is_last = number == len(documents) - 1
            room = length if is_last else int(length * _BERT_RATIO)
            count = total = 0
            while used + count < len(lengths):
                if lengths[used + count] + total + (count if is_last else 0) > room:
                    break
                total += lengths[used + count]
                count += 1
            if count:
                spans += _apart(lengths[used : used + count], length, begin, dice)
                used += count
        return spans

    def _sentences(self, tokens: Ids, dice: random.Random) -> Row:
        sentences: list[Span] = []
        begin = 1 if tokens[0] == self.start else 0
        for place, token in enumerate(tokens.tolist()):
            if token in self._sentence_ends:
                if begin < place + 1:
                    sentences.append((begin, place + 1))
                begin = place + 1
            elif token == self.eos:
                begin = place + 1
        if begin < len(tokens):
            sentences.append((begin, len(tokens)))
        dice.shuffle(sentences)
        chosen: list[Span] = []
        for span in sentences:
            chosen.append(span)
            if sum(end - first for first, end in chosen) >= int(self.settings.gap_sentence_ratio * len(tokens)):
                break
        return self._row(tokens, chosen, dice, "sentence")

    def _generations(self, samples: Sequence[Sample], dice: random.Random) -> list[Row | None]:
        sizes = [len(tokens) for tokens, _ in samples]
        if not sizes:
            return []
        shortest = int(self.settings.gpt_min_ratio * min(sizes))
        longest = dice.randint(shortest, max(shortest, max(sizes) - 2))
        rows: list[Row | None] = []
        for tokens, mask in samples:
            length = min(longest, len(tokens) - 2)
            ends = np.flatnonzero(tokens == self.eos)
            has_several_documents = len(ends) > 0 and ends[0] != len(tokens) - 1
            if has_several_documents or dice.random() < self.settings.gpt_infill_prob:
                rows.append(self._continuation(tokens, mask, len(tokens) - length))
            else:
                rows.append(self._blanked(tokens, [length], dice, "generation"))
        return rows

    def _continuation(self, tokens: Ids, mask: Ids, division: int) -> Row:
        """Return a row whose blank is all text after ``division``, without [eop]."""
        source, target = tokens[:division], tokens[division:]
        blank = self.masks["generation"]
        positions = np.arange(len(tokens) + 1)
        positions[division + 1 :] = division
        inside = np.arange(len(target) + 1) if self.settings.block_positions else np.ones(len(target) + 1, np.int64)
        if not self.settings.block_positions:
            inside[0] = 0
        return Row(
            tokens=np.concatenate([source, [blank, self.sop], target[:-1]]),
            labels=np.concatenate([source, [blank], target]),
            loss_mask=np.concatenate([np.zeros(division + 1, np.int64), mask[division:]]),
            position_ids=positions,
            block_position_ids=np.concatenate([np.zeros(division, np.int64), inside]),
            prefix=division + 1,
        )

    def _row(self, tokens: Ids, spans: list[Span], dice: random.Random, task: str) -> Row:
        settings = self.settings
        counted = np.ones(len(tokens), np.int64)
        for begin, end in spans:
            counted[begin + 1 : end] = 0
        positions = np.cumsum(counted) - 1
        if settings.random_position and positions[-1] < self.length - 1:
            positions = positions + dice.randrange(0, self.length - int(positions[-1]))
        if settings.shuffle_blocks:
            dice.shuffle(spans)
        else:
            spans.sort()
        after = _Parts()
        for begin, end in spans:
            inside = np.arange(1, end - begin + 2) if settings.block_positions else np.ones(end - begin + 1, np.int64)
            places = np.append(positions[begin:end], positions[begin])
            span = self._with_hidden(tokens[begin:end]) if task == "bert" else tokens[begin:end]
            after.add(np.append(self.sop, span), np.append(tokens[begin:end], self.eop), places, inside)
        spans.sort()
        before, texts, last = _Parts(), [], 0
        for begin, end in spans:
            texts.append((before.length, before.length + begin - last))
            before.add_source(tokens[last:begin], positions[last:begin])
            before.add_source(np.array([self.masks[task]]), positions[begin : begin + 1])
            last = end
        if last < len(tokens):
            texts.append((before.length, before.length + len(tokens) - last))
            before.add_source(tokens[last:], positions[last:])
        prefix = before.length
        row = before.followed_by(after)
        if task == "bert" and settings.context_mask_ratio > 0:
            self._hide_context(row.tokens, texts, int(settings.context_mask_ratio * len(tokens)), dice)
        row.loss_mask[:prefix] = 0
        return row

    def _with_hidden(self, span: Ids) -> Ids:
        """Replace tokens of a span's input by [dBLOCK]."""
        if not self.settings.block_mask_prob:
            return span
        return np.where([self._hidden_dice.random() < self.settings.block_mask_prob for _ in span], self.hidden, span)

    def _hide_context(self, tokens: Ids, texts: Iterable[Span], count: int, dice: random.Random) -> None:
        """Replace tokens near masks by [dBLOCK]."""
        near: set[int] = set()
        for begin, end in texts:
            if begin:
                near.update(range(begin, min(end, begin + _CONTEXT_RANGE)))
            if end:
                near.update(range(max(begin, end - _CONTEXT_RANGE), end))
        for place in dice.sample(sorted(near), min(count, len(near))):
            tokens[place] = self.hidden

    def _split(self, samples: Sequence[Sample], dice: random.Random) -> list[Sample]:
        """Split each sample into several short ones."""
        target = dice.randrange(min(_SHORTEST, self.length - 2), self.length - 1)
        pieces: list[Sample] = []
        for tokens, mask in samples:
            tokens, mask = tokens[1:], mask[1:]
            for _ in range((self.length - 1) // target):
                begin, end = 0, len(tokens)
                if target < len(tokens):
                    begin, end = self._short(tokens, target, dice)
                pieces.append((np.append(self.start, tokens[begin:end]), np.append(0, mask[begin:end])))
        return pieces

    def _short(self, tokens: Ids, target: int, dice: random.Random) -> Span:
        begin = dice.randrange(0, len(tokens) - target)
        while begin > 0 and (tokens[begin] == self.eos or not self._is_border(tokens[begin - 1])):
            begin -= 1
        end = begin + target
        while end > begin and not self._is_border(tokens[end - 1]):
            end -= 1
        return begin, end if end - begin >= target // 2 else begin + target

    def _is_border(self, token: int) -> bool:
        return int(token) in self._sentence_ends or token == self.eos


class _Parts:
    """Arrays of a row before they are concatenated."""

    def __init__(self) -> None:
        self._tokens: list[Ids] = []
        self._labels: list[Ids] = []
        self._positions: list[Ids] = []
        self._inside: list[Ids] = []
        self.length = 0

    def add(self, tokens: Ids, labels: Ids, positions: Ids, inside: Ids) -> None:
        self._tokens.append(tokens)
        self._labels.append(labels)
        self._positions.append(positions)
        self._inside.append(inside)
        self.length += len(tokens)

    def add_source(self, tokens: Ids, positions: Ids) -> None:
        self.add(tokens, tokens, positions, np.zeros(len(tokens), np.int64))

    def followed_by(self, after: _Parts) -> Row:
        joined = [
            np.concatenate(mine + theirs).astype(np.int64)
            for mine, theirs in (
                (self._tokens, after._tokens),
                (self._labels, after._labels),
                (self._positions, after._positions),
                (self._inside, after._inside),
            )
        ]
        tokens, labels, positions, inside = joined
        return Row(tokens, labels, np.ones(len(tokens), np.int64), positions, inside, self.length)


def _apart(lengths: Sequence[int], length: int, offset: int, dice: random.Random) -> list[Span]:
    """Place spans in ``length`` tokens from ``offset``, with at least one token between them."""
    free = length - sum(lengths) - len(lengths) + 1
    places = sorted(dice.randrange(free + 1) for _ in lengths)
    spans = []
    for place, size in zip(places, lengths, strict=True):
        spans.append((offset + place, offset + place + size))
        offset += size + 1
    return spans
