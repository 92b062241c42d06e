"""Every tokenizer type of the guides, and equal ids of all engines."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st

from ascend_adapt.data import encoders
from ascend_adapt.data import tokenizer as tokenizer_module
from ascend_adapt.data.encoders import CALLS_BETWEEN_CHECKS, CharLevelEncoder, CheckedEncoder, check_same_ids
from ascend_adapt.data.tokenizer import PROBE, TokenizerRequest, files_read, load_tokenizer
from ascend_adapt.errors import DataError, SettingsError


def ids(loaded, text):
    return loaded.encoder.encode([text])[0].tolist()


@pytest.fixture(scope="module")
def gpt2(gpt2_files):
    vocab, merges = gpt2_files
    return {
        engine: load_tokenizer(TokenizerRequest("GPT2BPETokenizer", vocab, merges, engine))
        for engine in ("hf", "gigatoken", "tiktoken")
    }


@pytest.fixture
def save_tokenizer(tmp_path):
    """Save a small byte-level tokenizer, changed by a function, as tokenizer.json."""

    def save(change=lambda tokenizer: None):
        tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
        tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
        alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
        trainer = tokenizers.trainers.BpeTrainer(vocab_size=300, initial_alphabet=alphabet, show_progress=False)
        tokenizer.train_from_iterator(["the cat sat on the mat", "that is it"] * 5, trainer)
        change(tokenizer)
        tokenizer.save(str(tmp_path / "tokenizer.json"))
        return str(tmp_path / "tokenizer.json")

    return save


@pytest.mark.parametrize("engine", ["hf", "gigatoken", "tiktoken"])
def test_known_ids_of_gpt2(gpt2, engine):
    loaded = gpt2[engine]
    assert (loaded.vocab_size, loaded.eod, loaded.engine) == (50257, 50256, engine)
    assert ids(loaded, "Hello world") == [15496, 995]
    # Megatron's GPT2BPETokenizer does not look for special tokens in the text.
    assert ids(loaded, "<|endoftext|>") == [27, 91, 437, 1659, 5239, 91, 29]


@settings(max_examples=150)
@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=60), max_size=6))
def test_engines_agree_on_any_text(gpt2, texts):
    reference, sizes = gpt2["hf"].encoder.encode(texts)
    for engine in ("gigatoken", "tiktoken"):
        mine, my_sizes = gpt2[engine].encoder.encode(texts)
        assert (mine.tolist(), my_sizes.tolist()) == (reference.tolist(), sizes.tolist())


def test_gigatoken_is_loaded_again_when_its_cache_is_too_large(gpt2, gpt2_files, monkeypatch):
    encoder = load_tokenizer(TokenizerRequest("GPT2BPETokenizer", *gpt2_files, "gigatoken")).encoder._encoder
    first = encoder._tokenizer
    texts = [f"words {number}" for number in range(100)]
    monkeypatch.setattr(encoders, "CHARACTERS_TO_SETTLE", 0)
    encoder.encode(texts)
    encoder.encode(texts)
    assert encoder._tokenizer is first
    monkeypatch.setattr(encoders, "CHARACTERS_REMEMBERED", 100)
    monkeypatch.setattr(encoders, "MEMORY_FOR_WORDS", -(1 << 40))
    tokens, sizes = encoder.encode(texts)
    assert encoder._tokenizer is not first
    for mine in ((tokens, sizes), encoder.encode(texts)):
        assert [part.tolist() for part in mine] == [part.tolist() for part in gpt2["hf"].encoder.encode(texts)]


def test_an_engine_that_differs_is_refused(gpt2, monkeypatch, gpt2_files):
    with pytest.raises(DataError, match="engine wrong: .* expected .* as tokenizers gives"):
        check_same_ids(CharLevelEncoder(), gpt2["hf"].encoder, PROBE, "wrong")
    vocab, merges = gpt2_files
    monkeypatch.setattr(tokenizer_module, "GigatokenEncoder", lambda *arguments: CharLevelEncoder())
    with pytest.raises(DataError, match="engine gigatoken"):
        load_tokenizer(TokenizerRequest("GPT2BPETokenizer", vocab, merges, "gigatoken"))
    assert load_tokenizer(TokenizerRequest("GPT2BPETokenizer", vocab, merges, "auto")).engine == "hf"


def test_an_engine_that_starts_to_differ_is_stopped(gpt2):
    class Tiring:
        def __init__(self):
            self.calls = 0

        def encode(self, texts):
            self.calls += 1
            tokens, sizes = gpt2["hf"].encoder.encode(texts)
            return tokens + (self.calls > 40), sizes

    encoder = CheckedEncoder(Tiring(), gpt2["hf"].encoder, "tiring")
    calls = (encoder.encode(["some text"] * 3) for _ in range(40 + 2 * CALLS_BETWEEN_CHECKS))
    with pytest.raises(DataError, match="engine tiring"):
        list(calls)


@pytest.mark.parametrize("engine", ["hf", "gigatoken"])
def test_any_tokenizer_json(save_tokenizer, engine):
    file = save_tokenizer(lambda tokenizer: tokenizer.add_special_tokens(["<|endoftext|>"]))
    loaded = load_tokenizer(TokenizerRequest("HFTokenizer", file, engine=engine))
    truth = tokenizers.Tokenizer.from_file(file)
    assert loaded.eod == truth.token_to_id("<|endoftext|>") == loaded.vocab_size - 1
    for text in PROBE:
        assert ids(loaded, text) == truth.encode(text).ids


def test_auto_falls_back_where_the_engine_would_differ(save_tokenizer):
    def close_with_special(tokenizer):
        tokenizer.add_special_tokens(["<s>"])
        template = tokenizers.processors.TemplateProcessing("<s> $A", None, [("<s>", tokenizer.token_to_id("<s>"))])
        tokenizer.post_processor = template

    file = save_tokenizer(close_with_special)
    loaded = load_tokenizer(TokenizerRequest("HFTokenizer", file))
    assert loaded.engine == "hf"
    assert ids(loaded, "cat") == tokenizers.Tokenizer.from_file(file).encode("cat").ids
    with pytest.raises(DataError, match="engine gigatoken"):
        load_tokenizer(TokenizerRequest("HFTokenizer", file, engine="gigatoken"))


@pytest.mark.parametrize("change", ["enable_padding", "enable_truncation"])
def test_a_tokenizer_that_changes_documents_is_refused(save_tokenizer, change):
    file = save_tokenizer(
        lambda tokenizer: getattr(tokenizer, change)(**({"max_length": 5} if "trunc" in change else {}))
    )
    with pytest.raises(DataError, match="because it would change documents"):
        load_tokenizer(TokenizerRequest("HFTokenizer", file))


def set_dropout(tokenizer):
    tokenizer.model.dropout = 0.5


def test_bpe_dropout_is_refused(save_tokenizer):
    file = save_tokenizer(set_dropout)
    truth = tokenizers.Tokenizer.from_file(file)
    assert len({tuple(truth.encode("the cat sat on the mat " * 5).ids) for _ in range(20)}) > 1
    with pytest.raises(DataError, match=r"model\.dropout is 0\.5, expected null"):
        load_tokenizer(TokenizerRequest("HFTokenizer", file))


def test_a_file_that_would_take_the_memory_is_refused(tmp_path):
    file = tmp_path / "tokenizer.json"
    with file.open("wb") as stream:
        stream.truncate(1 << 30)
    for kind, named in (("HFTokenizer", file), ("HFGPT2Tokenizer", tmp_path), ("SentencePieceTokenizer", file)):
        with pytest.raises(DataError, match=r"tokenizer\.json: 1073741824 bytes, expected at most 268435456"):
            load_tokenizer(TokenizerRequest(kind, str(named)))


def test_hf_gpt2_from_a_folder(gpt2_files, tmp_path):
    for source, name in zip(gpt2_files, ("vocab.json", "merges.txt"), strict=True):
        (tmp_path / name).symlink_to(source)
    loaded = load_tokenizer(TokenizerRequest("HFGPT2Tokenizer", str(tmp_path)))
    assert (loaded.vocab_size, loaded.eod) == (50258, 50256)
    assert ids(loaded, "Hello<|endoftext|> world<|padding|>") == [15496, 50256, 995, 50257]


def test_characters_are_bytes():
    loaded = load_tokenizer(TokenizerRequest("CharLevelTokenizer"))
    assert (ids(loaded, "aü"), loaded.vocab_size, loaded.eod) == ([97, 195, 188], 512, 0)


def train_sentencepiece(folder, **options):
    import sentencepiece

    (folder / "text").write_text("the cat sat on the mat\nthat is it\n" * 20)
    files = {"input": str(folder / "text"), "model_prefix": str(folder / "m")}
    kind = {"vocab_size": 40, "model_type": "bpe", "minloglevel": 2}
    sentencepiece.SentencePieceTrainer.train(**files, **kind, **options)
    return str(folder / "m.model")


@pytest.fixture(scope="module")
def sentencepiece_model(tmp_path_factory):
    return train_sentencepiece(tmp_path_factory.mktemp("spm"), user_defined_symbols=["<|endoftext|>"])


def test_a_sentencepiece_model_without_end_of_document(tmp_path):
    assert load_tokenizer(TokenizerRequest("SPMTokenizer", train_sentencepiece(tmp_path))).eod is None


def test_sentencepiece_as_in_gpt_neox(sentencepiece_model):
    import sentencepiece

    truth = sentencepiece.SentencePieceProcessor(model_file=sentencepiece_model)
    loaded = load_tokenizer(TokenizerRequest("SPMTokenizer", sentencepiece_model))
    assert (loaded.vocab_size, loaded.eod) == (40, truth.piece_to_id("<|endoftext|>"))
    assert ids(loaded, "the cat") == truth.encode("the cat")


def test_sentencepiece_as_in_megatron(sentencepiece_model):
    import sentencepiece

    truth = sentencepiece.SentencePieceProcessor(model_file=sentencepiece_model)
    loaded = load_tokenizer(TokenizerRequest("SentencePieceTokenizer", sentencepiece_model))
    # <CLS> 40, <SEP> 41, <EOD> 42, <MASK> 43, and <PAD> 44 because the model has none; <s> and </s> are the model's.
    assert (loaded.vocab_size, loaded.eod) == (45, 42)
    expected = [*truth.encode("the"), 42, *truth.encode(" cat"), truth.eos_id(), 43, *truth.encode("")]
    assert ids(loaded, "the<EOD> cat</s><MASK>") == expected


@pytest.mark.parametrize(
    ("request_", "error", "text"),
    [
        (TokenizerRequest("BertTokenizer"), SettingsError, "expected one of GPT2BPETokenizer"),
        (TokenizerRequest("HFTokenizer", engine="fast"), SettingsError, "--engine: 'fast'"),
        (TokenizerRequest("HFTokenizer"), SettingsError, "--vocab-file: not given"),
        (TokenizerRequest("HFTokenizer", "missing.json"), DataError, "no such file"),
        (TokenizerRequest("HFTokenizer", __file__), DataError, "cannot be loaded"),
        (TokenizerRequest("GPT2BPETokenizer", __file__), SettingsError, "--merge-file: not given"),
        (TokenizerRequest("GPT2BPETokenizer", __file__, __file__), DataError, "expected '#version' in the first line"),
        (TokenizerRequest("HFGPT2Tokenizer", "gpt2"), SettingsError, "nothing is downloaded"),
        (TokenizerRequest("SPMTokenizer", __file__), DataError, "cannot be loaded"),
        (TokenizerRequest("CharLevelTokenizer", engine="hf"), SettingsError, "expected auto"),
        (TokenizerRequest("TiktokenTokenizer", "nothing"), SettingsError, "r50k_base"),
        (TokenizerRequest("TiktokenTokenizer", "gpt2", engine="hf"), SettingsError, "it is encoded by tiktoken"),
    ],
)
def test_files_that_cannot_be_loaded(request_, error, text):
    with pytest.raises(error, match=text):
        load_tokenizer(request_)


def test_tiktoken_refuses_a_tokenizer_json(save_tokenizer):
    with pytest.raises(SettingsError, match="expected hf or gigatoken"):
        load_tokenizer(TokenizerRequest("HFTokenizer", save_tokenizer(), engine="tiktoken"))


def test_tiktoken_refuses_ids_out_of_the_order_of_merges(gpt2_files, tmp_path):
    vocabulary = json.loads(Path(gpt2_files[0]).read_text(encoding="utf-8"))
    vocabulary["the"], vocabulary["in"] = vocabulary["in"], vocabulary["the"]
    (tmp_path / "vocab.json").write_text(json.dumps(vocabulary))
    with pytest.raises(DataError, match="do not follow the merges"):
        load_tokenizer(TokenizerRequest("GPT2BPETokenizer", str(tmp_path / "vocab.json"), gpt2_files[1], "tiktoken"))


@pytest.mark.parametrize("damage", [lambda text: text.rstrip(b"\n"), lambda text: text.partition(b"\n")[2]])
def test_merges_that_megatron_would_read_differently(gpt2_files, tmp_path, damage):
    (tmp_path / "merges.txt").write_bytes(damage(Path(gpt2_files[1]).read_bytes()))
    with pytest.raises(DataError, match=r"merges\.txt: expected '#version'"):
        load_tokenizer(TokenizerRequest("GPT2BPETokenizer", gpt2_files[0], str(tmp_path / "merges.txt")))


def test_no_texts_no_ids(gpt2):
    for loaded in gpt2.values():
        tokens, sizes = loaded.encoder.encode([])
        assert (len(tokens), len(sizes), sizes.dtype) == (0, 0, np.int64)


@pytest.mark.parametrize("engine", ["auto", "hf", "tiktoken"])
def test_a_vocabulary_that_would_lose_text(tmp_path, engine):
    (tmp_path / "vocab.json").write_text(json.dumps({letter: number for number, letter in enumerate("abc")}))
    (tmp_path / "merges.txt").write_text("#version: 0.2\n")
    for request in (
        TokenizerRequest("GPT2BPETokenizer", str(tmp_path / "vocab.json"), str(tmp_path / "merges.txt"), engine),
        TokenizerRequest("HFGPT2Tokenizer", str(tmp_path)),
    ):
        with pytest.raises(DataError, match=r"vocab\.json: 253 of the 256 byte symbols are missing"):
            load_tokenizer(request)


def test_errors_of_libraries_are_one_line(tmp_path):
    import tokenizers

    tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0}, unk_token="a")).save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(DataError) as raised:
        load_tokenizer(TokenizerRequest("HFTokenizer", str(tmp_path / "tokenizer.json"), engine="gigatoken"))
    assert "\n" not in str(raised.value)


def test_only_the_files_of_the_tokenizer_are_read(gpt2_files, tmp_path):
    for name, file in zip(("vocab.json", "merges.txt"), gpt2_files, strict=True):
        (tmp_path / name).write_bytes(Path(file).read_bytes())
    (tmp_path / "pytorch_model.bin").touch()
    request = TokenizerRequest("HFGPT2Tokenizer", str(tmp_path))
    assert files_read(request) == [tmp_path / "vocab.json", tmp_path / "merges.txt"]
    assert files_read(TokenizerRequest("TiktokenTokenizer", "gpt2")) == []
    assert files_read(TokenizerRequest("GPT2BPETokenizer", *gpt2_files)) == [Path(file) for file in gpt2_files]
