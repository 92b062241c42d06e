from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from native import glm_cases

from ascend_adapt.data import IndexedDataset
from ascend_adapt.errors import DataError
from ascend_adapt.native.parallel import mesh as meshes
from ascend_adapt.native.samples import glm_text
from ascend_adapt.native.samples.glm_loader import BlankBatches, GlmSamples
from ascend_adapt.native.samples.glm_text import documents, load_vocabulary, tokenize
from ascend_adapt.native.samples.preflight import check_data, missing_files


def pile(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def test_documents_are_those_that_glm_chooses(tmp_path):
    kept = [{"text": f"{number}", "meta": {"pile_set_name": "Books3"}} for number in range(3)]
    skipped = [{"text": "code", "meta": {"pile_set_name": "Github"}}, {"text": ""}]
    share = [{"text": "paper", "meta": {"pile_set_name": "ArXiv"}}] * 400
    pile(tmp_path / "00.jsonl", [*kept, *skipped])
    (tmp_path / "more").mkdir()
    pile(tmp_path / "more" / "01.jsonl", [{"text": "\u201cno\u2019 subset"}, *share])
    found = list(documents(str(tmp_path), 1234))
    assert found[:4] == ["0", "1", "2", "\"no' subset"]
    # 400 draws of 0.3, within five standard deviations.
    assert abs(len(found) - 4 - 120) < 46
    assert found == list(documents(str(tmp_path), 1234)) != list(documents(str(tmp_path), 1))


@pytest.mark.parametrize(
    ("line", "message"),
    [("{", r"00\.jsonl:2: is not JSON"), ("[1]", r'00\.jsonl:2: has no "text"'), ('{"text": 1}', r'2: has no "text"')],
)
def test_a_bad_line_is_named_before_and_in_the_run(tmp_path, line, message):
    settings = glm_cases.pretraining(tmp_path)
    path = tmp_path / "00.jsonl"
    path.write_text(f'{{"text": "good"}}\n{line}\n')
    settings = replace(settings, data=replace(settings.data, train=(str(path),)))
    with pytest.raises(DataError, match=message):
        check_data(settings)
    with pytest.raises(DataError, match=message):
        tokenize(str(path), settings.data)
    assert not list(tmp_path.glob("00.jsonl.glm-*"))


def test_missing_text_may_be_on_the_host_of_the_run(tmp_path):
    settings = glm_cases.pretraining(tmp_path)
    settings = replace(settings, data=replace(settings.data, train=("pile",)))
    with pytest.raises(DataError, match="pile: does not exist, expected a .jsonl file .* or a folder"):
        check_data(settings)
    assert missing_files(settings) == ["pile"]


def test_text_is_tokenized_once_and_again_when_it_changes(tmp_path, monkeypatch):
    settings = glm_cases.pretraining(tmp_path)
    path = pile(tmp_path / "00.jsonl", [{"text": "one [MASK]two"}, {"text": "  "}])
    prefix = tokenize(path, settings.data)
    tokenizer = load_vocabulary(settings.data.blanks.vocabulary)
    tokens = IndexedDataset(prefix)
    assert [tokens[number].tolist() for number in range(2)] == [tokenizer.encode("one [MASK]two"), []]
    assert tokenizer.decode(tokens[0]) == "one[MASK]two"
    with monkeypatch.context() as changed:
        changed.setattr(glm_text, "documents", None)
        assert tokenize(path, settings.data) == prefix
    pile(tmp_path / "00.jsonl", [{"text": "three"}])
    assert tokenize(path, settings.data) != prefix


def test_a_resumed_loader_continues_and_never_ends(tmp_path):
    settings, mesh = glm_cases.pretraining(tmp_path), meshes.single(glm_cases.CPU)
    whole, rest = GlmSamples(settings, mesh, "train"), GlmSamples(settings, mesh, "train", 2 * glm_cases.MICRO)
    whole.next(2)
    for mine, theirs in zip(whole.next(3), rest.next(3), strict=True):
        assert all((mine[name] == theirs[name]).all() for name in mine)
    # More than the 1000 samples that upstream has of each document.
    far = BlankBatches(settings, "train", 0)
    last = 1000 * len(far._samples.numbers)
    assert far[last]["loss_mask"].sum() > 0


def test_data_ranks_have_different_micro_batches(tmp_path):
    settings = glm_cases.pretraining(tmp_path, data=2)
    alone = BlankBatches(glm_cases.pretraining(tmp_path), "train", 0)
    for rank in range(2):
        mine = BlankBatches(settings, "train", rank)
        assert glm_cases.rows_digest(mine[3]) == glm_cases.rows_digest(alone[6 + rank])


def test_only_english_documents(tmp_path):
    """The model of languages is asked for each document that is drawn."""
    settings = glm_cases.pretraining(tmp_path)
    batches = BlankBatches(settings, "train", 0)
    seen = []
    batches._samples._is_used = lambda tokens: seen.append(len(tokens)) or len(seen) % 2 == 0
    batches[0]
    assert len(seen) >= 2 * glm_cases.MICRO
    missing = replace(settings.data.blanks, language_model=str(tmp_path / "lid.176.bin"))
    batches = BlankBatches(replace(settings, data=replace(settings.data, blanks=missing)), "train", 0)
    with pytest.raises(DataError, match="--filter-english: .*, expected fasttext and its model"):
        batches[0]


def test_no_room_for_blanks(tmp_path):
    settings = glm_cases.pretraining(tmp_path, "spans")
    batches = BlankBatches(settings, "train", 0)
    batches._samples = [(np.array([1]), np.array([0]))] * 64
    with pytest.raises(DataError, match="none of its samples has room for a blank"):
        batches[0]
