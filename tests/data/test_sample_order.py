"""Sample order: equal to the real dataset classes (upstream_order.json), and its dtypes."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from ascend_adapt.data import sample_order
from ascend_adapt.data.indexed_dataset import IndexedDataset
from ascend_adapt.data.sample_order import (
    DIALECTS,
    build_sample_index,
    build_sample_order,
    index_dtype,
    num_epochs,
    samples_available,
    split_sequences,
)
from ascend_adapt.data.torch_dataset import GPTDataset
from ascend_adapt.errors import DataError, SettingsError

FACTS = json.loads(Path(__file__).with_name("upstream_order.json").read_text())
assert set(DIALECTS) < set(FACTS["digests"])


@pytest.mark.parametrize("source", FACTS["digests"])
def test_equal_to_the_real_class_over_the_grid(source, recorder, tmp_path):
    dialect = {"megatron-23.06": "megatron-v2"}.get(source, source)
    compared = 0
    for number, (case, found) in enumerate(zip(recorder.cases(), FACTS["digests"][source], strict=True)):
        sizes = recorder.sizes_of(case["sequences"], case["kind"])
        prefix = str(tmp_path / f"{case['sequences']}{case['kind']}")
        if not Path(prefix + ".idx").exists():
            recorder.write_tokens(prefix, sizes)
        parts = split_sequences(case["split"], len(sizes), dialect)
        for sequences, samples, digest in zip(parts, case["num_samples"], found.split(), strict=True):
            if digest == "-":
                continue
            options = {"seq_length": case["seq_length"], "seed": case["seed"], "dialect": dialect}
            order = build_sample_order(
                sizes, np.arange(sequences.start, sequences.stop), num_samples=samples, **options
            )
            length = len(order.shuffle_index) - DIALECTS[dialect].hides_last_sample
            dataset = GPTDataset(IndexedDataset(prefix), order, seq_length=case["seq_length"], length=length)
            tokens = [dataset.sample(k) for k in recorder.sample_numbers(length)]
            indices = [order.document_index, order.sample_index, order.shuffle_index]
            assert recorder.digest([np.array([length]), *indices, *tokens]) == digest, (number, case, sequences)
            compared += 1
    assert compared > 400


def test_ten_tokens_an_epoch():
    order = build_sample_order(np.array([10], np.int32), [0], seq_length=4, num_samples=5, seed=1)
    assert (order.epochs, len(order.shuffle_index)) == (3, 7)


def test_64_bits_are_chosen_without_building():
    assert index_dtype(3_000_000 * 1000, 1000) == np.int64
    assert index_dtype(2**31 - 1, 2**31 - 1) == np.int32
    assert index_dtype(2**31, 1) == np.int64
    assert num_epochs(3_000_000_000, 2048, 10**12) == 682_667
    assert samples_available(682_667, 3_000_000_000, 2048) == 1_000_000_488_281


def walked(sizes, document_index, seq_length, num_samples, extra):
    """The sample index as its definition says: token by token."""
    places = [(place, offset) for place, number in enumerate(document_index) for offset in range(sizes[number])]
    rows = [(0, 0)]
    for sample in range(1, num_samples + 1):
        place, offset = places[sample * seq_length - (1 - extra)]
        rows.append((place, offset + (1 - extra)))
    return rows


@pytest.mark.parametrize("extra", [0, 1])
@pytest.mark.parametrize("at_once", [1, 3, 1 << 15])
def test_the_sample_index_by_its_definition(extra, at_once, monkeypatch):
    monkeypatch.setattr(sample_order, "SEQUENCES_AT_ONCE", at_once)
    dice = np.random.RandomState(3)
    for _ in range(50):
        sizes = dice.randint(0, 9, 12).astype(np.int32)
        document_index = dice.permutation(np.tile(np.arange(12), 2))
        seq_length = dice.randint(1, 12)
        samples = (int(sizes.sum()) * 2 - extra) // seq_length
        index = build_sample_index(sizes, document_index, seq_length, samples, extra)
        assert index.tolist() == [list(row) for row in walked(sizes, document_index, seq_length, samples, extra)]


def test_a_partial_last_sample():
    # As core_v0.9.0's helpers.build_sample_idx([3, 4], [1, 0], 5, 1, 7, False, 1) has it.
    index = build_sample_index(np.array([3, 4], np.int32), np.array([1, 0]), 5, samples_available(1, 7, 5, False, 1), 1)
    assert index.tolist() == [[0, 0], [1, 1], [1, 2]]


def test_samples_that_do_not_overlap():
    # As core_v0.9.0's helpers.build_sample_idx([3, 4, 5], [0, 1, 2], 4, 1, 12, True, 0) has it.
    index = build_sample_index(np.array([3, 4, 5], np.int32), np.arange(3), 4, samples_available(1, 12, 4, True, 0), 0)
    assert index.tolist() == [[0, 0], [1, 1], [2, 1], [2, 5]]


@pytest.mark.parametrize(("dialect", "threshold"), [("megatron-v2", 799), ("mcore", 799), ("bigscience", 949)])
def test_the_last_epoch_is_shuffled_separately_below_the_threshold(dialect, threshold):
    # 1000 tokens and 999 samples an epoch; two epochs, of the second of which `more` are needed.
    sizes = np.full(100, 10, np.int32)
    for more in (threshold - 1, threshold):
        options = {"seq_length": 1, "seed": 1, "dialect": dialect}
        order = build_sample_order(sizes, np.arange(100), num_samples=999 + more, **options)
        by_itself = sorted(order.document_index[100:].tolist()) == list(range(100))
        assert (order.epochs, by_itself) == (2, more < threshold)
        assert (sorted(order.shuffle_index[:999].tolist()) == list(range(999))) == by_itself


def test_partial_samples_are_counted_in_single_precision():
    # 16777217 has no float32: core_v0.9.0's helpers count one sample less than there is.
    assert samples_available(1, 16_777_218, 2, False, 1) == 8_388_608
    assert samples_available(1, 16_777_200, 2, False, 1) == 8_388_600


@pytest.mark.parametrize(
    ("split", "sequences", "megatron", "mcore"),
    [
        # Where the two rules differ: rounded lengths are added up, or ends are rounded.
        ("949,50,1", 10, [10, 10, 10], [9, 10, 10]),
        ("1/1/1", 5, [1, 3, 5], [2, 3, 5]),
        ("98", 7, [7, 7, 7], [7, 7, 7]),
        ("100,0,0", 3, [3, 3, 3], [3, 3, 3]),
    ],
)
def test_splits(split, sequences, megatron, mcore):
    assert [part.stop for part in split_sequences(split, sequences)] == megatron
    assert [part.stop for part in split_sequences(split, sequences, "mcore")] == mcore


@pytest.mark.parametrize("split", ["", "a,b", "0,0", "-1,2", "1,2,3,4", "nan", "inf,1"])
def test_an_invalid_split(split):
    with pytest.raises(SettingsError, match="--split"):
        split_sequences(split, 10)


def test_too_few_tokens():
    with pytest.raises(DataError, match="1 tokens for samples of 4"):
        build_sample_order(np.array([1], np.int32), [0], seq_length=4, num_samples=5, seed=1)


def test_an_unknown_dialect_and_an_option_it_does_not_have():
    with pytest.raises(SettingsError, match="mt19937"):
        split_sequences("1", 1, "oneflow")
    with pytest.raises(SettingsError, match="use mcore"):
        build_sample_order(np.array([9], np.int32), [0], seq_length=4, num_samples=1, seed=1, extra_token=False)
