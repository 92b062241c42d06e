"""GLM's tokenizer: GPT-2's byte-level BPE, and special tokens after its vocabulary.

Source: THUDM/GLM@4f61ed72 data_utils/tokenization.py (GPT2BPETokenizer).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ascend_adapt import regular_files
from ascend_adapt.data.encoders import Encoder
from ascend_adapt.data.tokenizer import END_OF_TEXT, TokenizerRequest, byte_alphabet, load_tokenizer
from ascend_adapt.errors import DataError

# Name, spelling, and whether the token swallows the spaces before it, in the order of ids.
_BLOCK = (
    *(("sop", "<|startofpiece|>", False), ("eop", "<|endofpiece|>", False), ("ENC", "[CLS]", False)),
    *(("MASK", "[MASK]", True), ("sep", "[SEP]", False), ("unk", "[UNK]", False)),
)
_TASK = (("gMASK", "[gMASK]", True), ("sMASK", "[sMASK]", True))
_DECODER = (("dBLOCK", "[dBLOCK]", False),)
_ENDS = ".?!;:"
_PUNCTUATION = str.maketrans({"\u201c": '"', "\u201d": '"', "\u2019": "'", "\u2018": "'", "\u2013": "-"})


def plain_punctuation(text: str) -> str:
    """Replace typographic quotes and dashes with ASCII, as GLM does in its corpora and most of its tasks."""
    return text.translate(_PUNCTUATION)


@dataclass(frozen=True)
class GlmTokenizer:
    """GLM's tokenizer, with the special tokens eos, sop, eop, ENC, MASK, sep, unk, gMASK, sMASK and dBLOCK."""

    encoder: Encoder
    words: Mapping[str, int]
    """The vocabulary in byte-level spelling, without special tokens."""
    special: Mapping[str, int]
    spelled: Mapping[str, str]
    """The name of each special token by its spelling."""
    takes_spaces: frozenset[str]
    """Spellings that swallow the spaces before them."""

    @classmethod
    def load(
        cls, vocab_file: str, merge_file: str, *, task_mask: bool = False, decoder_mask: bool = False
    ) -> GlmTokenizer:
        """Load the tokenizer. ``task_mask`` adds [gMASK] and [sMASK], and ``decoder_mask`` adds [dBLOCK].

        Raises:
            DataError: a file is missing or invalid.
        """
        loaded = load_tokenizer(TokenizerRequest("GPT2BPETokenizer", vocab_file, merge_file, engine="hf"))
        if loaded.eod is None:
            raise DataError(f"{vocab_file}: has no {END_OF_TEXT}, expected GPT-2's vocabulary — add it")
        words: dict[str, int] = json.loads(regular_files.read_text(vocab_file))
        added = [*_BLOCK, *(_TASK if task_mask else ()), *(_DECODER if decoder_mask else ())]
        special = {name: loaded.vocab_size + number for number, (name, _, _) in enumerate(added)}
        return cls(
            loaded.encoder,
            words,
            {"eos": loaded.eod, **special},
            {END_OF_TEXT: "eos", **{spelling: name for name, spelling, _ in added}},
            frozenset(spelling for _, spelling, strips in added if strips),
        )

    @property
    def vocab_size(self) -> int:
        """Number of ids, including special tokens."""
        return len(self.words) + len(self.special) - 1

    def command(self, name: str) -> int:
        """Return the id of a special token.

        Raises:
            DataError: this tokenizer does not have the token.
        """
        if name not in self.special:
            option = {"gMASK": "--task-mask", "sMASK": "--task-mask", "dBLOCK": "--block-mask-prob"}.get(name)
            step = f"add {option}" if option else f"choose from {', '.join(self.special)}"
            raise DataError(f"{name}: is not one of the tokenizer's special tokens — {step}")
        return self.special[name]

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text. Special tokens that are spelled out in the text become their ids."""
        return self.encode_all([text])[0].tolist()  # type: ignore[no-any-return]

    def encode_all(self, texts: Sequence[str]) -> list[NDArray[np.int64]]:
        """Return the ids of each text. A text of spaces has no ids."""
        pieces, owners, ids = [], [], [[] for _ in texts]  # type: ignore[var-annotated]
        for number, text in enumerate(texts):
            for piece in self._pieces(text):
                if piece in self.spelled:
                    ids[number].append(np.array([self.special[self.spelled[piece]]], np.int64))
                else:
                    owners.append((number, len(ids[number])))
                    ids[number].append(None)
                    pieces.append(piece)
        tokens, sizes = self.encoder.encode(pieces)
        for (number, place), own in zip(owners, np.split(tokens, np.cumsum(sizes)[:-1]), strict=False):
            ids[number][place] = own.astype(np.int64)
        return [np.concatenate([np.empty(0, np.int64), *each]) for each in ids]

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of ids, with special tokens spelled out."""
        alphabet = byte_alphabet()
        text, pieces = "", []
        for one in [*ids, None]:
            if one is not None and one not in self._spelling_by_id:
                pieces.append(self._word_by_id[one])
                continue
            letters = "".join(pieces)
            text += bytes(alphabet[letter] for letter in letters).decode("utf-8", "replace")
            text, pieces = text + (self._spelling_by_id[one] if one is not None else ""), []
        return text

    @cached_property
    def sentence_ends(self) -> frozenset[int]:
        """Ids of words with a mark that ends a sentence. As in GLM, a line break does not end one."""
        return frozenset(one for word, one in self.words.items() if any(mark in word for mark in _ENDS))

    @cached_property
    def _word_by_id(self) -> dict[int, str]:
        return {one: word for word, one in self.words.items()}

    @cached_property
    def _spelling_by_id(self) -> dict[int, str]:
        return {self.special[name]: spelling for spelling, name in self.spelled.items()}

    @cached_property
    def _split(self) -> re.Pattern[str]:
        return re.compile(f"({'|'.join(map(re.escape, self.spelled))})")

    def _pieces(self, text: str) -> list[str]:
        """Split a text at special tokens. Tokens that swallow spaces remove them from the end of the piece before."""
        if not text.strip():
            return []
        pieces = self._split.split(text)
        for number in range(1, len(pieces), 2):
            if pieces[number] in self.takes_spaces:
                pieces[number - 1] = pieces[number - 1].rstrip()
        return [piece for piece in pieces if piece]
