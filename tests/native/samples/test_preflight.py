from __future__ import annotations

import numpy as np
import pytest
from native.configurations import config

from ascend_adapt.data import gpt_dataset
from ascend_adapt.data.token_index import write_index
from ascend_adapt.errors import DataError
from ascend_adapt.native.samples.loader import is_evaluated
from ascend_adapt.native.samples.preflight import check_data


@pytest.fixture
def tokens(tmp_path):
    """Write documents of the given lengths, and return their prefix."""

    def write(*lengths, largest=200, name="text"):
        prefix = tmp_path / name
        ids = np.full(sum(lengths), largest, dtype=np.uint16)
        ids.tofile(f"{prefix}.bin")
        with open(f"{prefix}.idx", "wb") as stream:
            write_index(stream, np.dtype(np.uint16), np.array(lengths, np.int32))
        return str(prefix)

    return write


def run(*train, split="8,1,1", **more):
    data = {"train": train, "split": split, **more.pop("data", {})}
    return config(data=data, eval_iterations=more.pop("eval_iterations", 1), **more)


def test_enough_of_everything(tokens):
    check_data(run(tokens(*[40] * 10)))
    check_data(run("0.5", tokens(*[40] * 10), "0.5", tokens(*[50] * 10, name="more")))


@pytest.mark.parametrize(
    ("lengths", "split", "message"),
    [
        ([10, 10], "1,0,0", r"20 tokens for train, expected at least 33 for a sample"),
        ([40, 40, 5], "1,1,1", r"5 tokens for test, expected at least 33"),
    ],
)
def test_too_few_tokens_are_reported_with_numbers(tokens, lengths, split, message):
    with pytest.raises(DataError, match=message):
        check_data(run(tokens(*lengths), split=split))


def test_only_megatron_core_refuses_a_part_that_the_split_leaves_empty(tokens):
    data = {"order": "mcore"}
    with pytest.raises(DataError, match="none of its 2 sequences is in valid with split 98,1,1"):
        check_data(run(tokens(40, 40), split="98,1,1", data=data))
    for order in ("neox", "megatron-v2", "bigscience"):
        found = run(tokens(40, 40), split="98,1,1", data={"order": order})
        check_data(found)
        assert [part for part in ("valid", "test") if is_evaluated(found, part)] == []
    # Upstream's blend asserts as many datasets as weights.
    with pytest.raises(DataError, match="text: none of its 2 sequences is in"):
        check_data(run("1", tokens(40, 40), "1", tokens(*[40] * 10, name="more")))


def test_gpt_neox_repeats_what_is_shorter_than_a_sample(tokens):
    found = run(tokens(40, 40, 5), split="1,1,1", data={"order": "neox"})
    check_data(found)
    dataset, _ = gpt_dataset(
        found.data.train, seq_length=32, num_samples=(4, 4, 4), part="test", split="1,1,1", dialect="neox"
    )
    assert len(dataset) >= 4
    assert dataset[3]["tokens"].tolist() == [200] * 32


def test_a_part_that_nobody_reads_may_be_empty(tokens):
    check_data(run(tokens(40, 40), split="98,1,1", eval_iterations=0))
    check_data(run(tokens(40, 40), split="1,0,0"))
    check_data(run(tokens(40, 40), split="98,1,1", eval_interval=0))


def test_every_dataset_of_a_blend_is_checked(tokens):
    with pytest.raises(DataError, match="short: 8 tokens for train"):
        check_data(run("0.9", tokens(*[40] * 10), "0.1", tokens(*[1] * 10, name="short"), split="8,1,1"))


def test_weights_may_be_left_to_the_number_of_documents(tokens):
    prefixes = [tokens(*[40] * 10), tokens(*[40] * 20, name="more")]
    check_data(run(*prefixes, data={"weight_by_documents": 0.3}))


def test_parts_with_files_of_their_own(tokens):
    data = {"valid": (tokens(40, name="valid"),), "test": (tokens(4, name="test"),)}
    with pytest.raises(DataError, match="test: 4 tokens for test"):
        check_data(run(tokens(40), data=data))
    check_data(run(tokens(40), data=data, eval_iterations=0))
    check_data(run(tokens(40), data={"valid": data["valid"]}))


def test_token_id_outside_the_embedding_table(tokens):
    with pytest.raises(DataError, match="contains token id 300, expected ids below 256, the rows of the embedding"):
        check_data(run(tokens(*[40] * 10, largest=300)))


def test_no_token_files(tmp_path):
    with pytest.raises(DataError, match="missing"):
        check_data(run(str(tmp_path / "missing")))
