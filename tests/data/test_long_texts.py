"""Cuts of long texts change no ids; nothing is cut without that proof."""

from __future__ import annotations

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, normalizers, pre_tokenizers, processors

from ascend_adapt.data import long_texts
from ascend_adapt.data.encoders import HFEncoder
from ascend_adapt.data.long_texts import KNOWN_WORDS, PART_LENGTH, part_function, parts_of
from ascend_adapt.data.tokenizer import TokenizerRequest, load_tokenizer

# What words begin and end with in the expressions, and letters, marks and digits of many kinds.
PIECES = st.sampled_from(
    [
        "a",
        "It",
        "'s",
        "'ll",
        "'",
        "re",
        "7",
        "123",
        "½",
        "é",
        "e\u0301",
        "ﬁ",
        "ß",
        "Ж",
        "字",
        "、",
        "。",
        "，",
        "か",
        "ｶ",
        "한",
        "ع",
    ]
    + [
        " ",
        "  ",
        "\t",
        "\n",
        "\r\n",
        "\u3000",
        "\u00a0",
        "\u200d",
        ".",
        ",",
        "...",
        "--",
        "😀",
        "<|e|>",
        "  x",
        "_",
        "\x00",
    ]
)
TEXTS = st.lists(st.one_of(PIECES, st.characters(exclude_categories=["Cs"])), max_size=60).map("".join)


def byte_level(words=None, change=lambda tokenizer: None):
    """A small tokenizer whose words are GPT-2's, or those of an expression."""
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    last = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=words is None)
    split = [] if words is None else [pre_tokenizers.Split(tokenizers.Regex(words), "isolated")]
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*split, last])
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=400, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(["It's 123 a, b. 字字、か é It'll re a\n a  x"] * 9, trainer)
    tokenizer.add_special_tokens(["<|e|>"])
    tokenizer.add_tokens(["  "])
    change(tokenizer)
    return tokenizer


TOKENIZERS = {words: byte_level(words) for words in (None, *sorted(KNOWN_WORDS))}
TOKENIZERS["NFC"] = byte_level(change=lambda tokenizer: setattr(tokenizer, "normalizer", normalizers.NFC()))


@pytest.mark.parametrize("words", TOKENIZERS)
@settings(max_examples=400)
@given(text=TEXTS)
def test_parts_have_the_ids_of_the_full_text(words, text):
    tokenizer = TOKENIZERS[words]
    cut = part_function(tokenizer)
    assert cut is parts_of
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(long_texts, "PART_LENGTH", 2)
        parts = cut(text)
    assert "".join(parts) == text
    assert [number for part in parts for number in tokenizer.encode(part).ids] == tokenizer.encode(text).ids


def test_long_texts_are_cut_and_short_ones_are_not(gpt2_files):
    assert parts_of("") == [""]
    assert parts_of("word " * 3) == ["word " * 3]
    parts = parts_of("word " * PART_LENGTH)
    assert len(parts) >= 4
    assert max(map(len, parts)) <= PART_LENGTH + 5
    assert parts_of("#" * 3 * PART_LENGTH) == ["#" * 3 * PART_LENGTH]
    vocab, merges = gpt2_files
    tokenizer = load_tokenizer(TokenizerRequest("GPT2BPETokenizer", vocab, merges, "hf")).encoder._tokenizer
    texts = ["", "def f(x):\n    return 'it''s', x\n" * 5000, "a", "字，" * 40_000, ""]
    tokens, sizes = HFEncoder(tokenizer).encode(texts)
    truth = [tokenizer.encode(text).ids for text in texts]
    assert tokens.tolist() == [number for row in truth for number in row]
    assert sizes.tolist() == [len(row) for row in truth]


class Before014:
    """The interface of tokenizers 0.13, of the guides' time."""

    def __init__(self, tokenizer):
        self.now = tokenizer

    def __getattr__(self, name):
        if name in ("encode_batch_fast", "get_added_tokens_decoder"):
            raise AttributeError(name)
        return getattr(self.now, name)


def test_an_older_library_gives_the_same_ids_of_parts():
    tokenizer = byte_level()
    assert part_function(Before014(tokenizer)) is parts_of
    texts = ["It's 123 a, b. " * PART_LENGTH, "", "a  x"]
    ours, theirs = (HFEncoder(one).encode(texts) for one in (Before014(tokenizer), tokenizer))
    assert [part.tolist() for part in ours] == [part.tolist() for part in theirs]


def closes_with_special(tokenizer):
    special = ("<|e|>", tokenizer.token_to_id("<|e|>"))
    tokenizer.post_processor = processors.TemplateProcessing("<|e|> $A", None, [special])


@pytest.mark.parametrize(
    ("words", "change"),
    [
        (None, closes_with_special),
        (None, lambda tokenizer: setattr(tokenizer, "normalizer", normalizers.NFKC())),
        (None, lambda tokenizer: setattr(tokenizer, "pre_tokenizer", pre_tokenizers.Metaspace())),
        (None, lambda tokenizer: setattr(tokenizer, "pre_tokenizer", pre_tokenizers.ByteLevel())),
        (None, lambda tokenizer: setattr(tokenizer, "pre_tokenizer", None)),
        (None, lambda tokenizer: setattr(tokenizer, "model", tokenizers.models.WordLevel({"a": 0}, unk_token="a"))),
        (None, lambda tokenizer: tokenizer.add_tokens(["a b"])),
        (None, lambda tokenizer: tokenizer.add_tokens([AddedToken("<x>", lstrip=True)])),
        (None, lambda tokenizer: tokenizer.add_tokens([AddedToken("<x>", single_word=True)])),
        (r"\w+ ?|.", lambda tokenizer: None),
    ],
)
def test_nothing_is_cut_where_it_is_not_proven(words, change):
    assert part_function(byte_level(words, change))("word " * PART_LENGTH) == ["word " * PART_LENGTH]
