"""Samples for torch's DataLoader: masks, blends, the index cache, and an order independent of the ranks."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import resource
from pathlib import Path

import numpy as np
import pytest
import torch

from ascend_adapt.data import CyclicSampler, IndexedDataset, ResumableSampler, gpt_dataset, weights_by_documents
from ascend_adapt.data.blending import (
    blend_order,
    document_weights,
    exhaustive_blend_order,
    normalised,
    parse_blend,
    samples_to_ask_for,
)
from ascend_adapt.data.document_masks import loss_mask, masked_out, position_ids
from ascend_adapt.data.index_cache import IndexCache, builds_index_cache
from ascend_adapt.data.megatron_helpers import helpers_module
from ascend_adapt.data.sample_order import build_sample_order
from ascend_adapt.data.torch_dataset import GPTDataset
from ascend_adapt.errors import DataError, SettingsError

FACTS = json.loads(Path(__file__).with_name("upstream_order.json").read_text())
E = 99
NEOX_WEIGHTS = {
    1.0: [0.4954954954954954, 0.4549549549549549, 0.04954954954954955],
    0.3: [0.12324838644870928, 0.5671656639253286, 0.30958594962596214],
}


@pytest.fixture
def prefix(write_tokens):
    dice = np.random.RandomState(4)
    return str(write_tokens([[*dice.randint(0, 90, dice.randint(0, 40)), E] for _ in range(60)]))


def open_train(prefix, **options):
    return gpt_dataset(prefix, **{"seq_length": 16, "num_samples": (200, 20, 10), "split": "8,1,1", **options})


def test_positions_and_masks_of_two_documents():
    tokens = np.array([5, 6, E, 7, 8])
    assert position_ids(tokens, E).tolist() == [0, 1, 2, 0, 1]
    hidden = masked_out(tokens, E)
    assert hidden[3].tolist() == [True, True, True, False, True]
    assert hidden[2].tolist() == [False, False, False, True, True]
    assert loss_mask(tokens, E).tolist() == [1, 1, 0, 1, 1]
    assert position_ids(tokens).tolist() == [0, 1, 2, 3, 4]
    assert masked_out(tokens).tolist() == np.triu(np.ones((5, 5), bool), 1).tolist()


@pytest.mark.parametrize("tokens", [[E], [E, E, 1], [1, E], [E, 1, E, E, 2]])
def test_positions_as_in_megatron(tokens):
    tokens = np.array(tokens)
    expected = np.arange(len(tokens))
    before = 0
    for end in np.flatnonzero(tokens == E):
        expected[end + 1 :] -= end + 1 - before
        before = end + 1
    assert position_ids(tokens, E).tolist() == expected.tolist()


def test_a_sample_is_input_and_labels(prefix):
    dataset, _ = open_train(prefix)
    text = dataset.sample(3)
    sample = dataset[3]
    assert sample.keys() == {"tokens", "labels", "position_ids", "loss_mask"}
    assert sample["tokens"].tolist() == text[:-1].tolist()
    assert sample["labels"].tolist() == text[1:].tolist()
    assert (sample["tokens"].dtype, sample["loss_mask"].dtype, len(text)) == (torch.int64, torch.float32, 17)


def test_resetting_at_document_ends(prefix):
    options = {"eod": E, "reset_position_ids": True, "reset_attention_mask": True, "eod_mask_loss": True}
    sample = next(sample for sample in open_train(prefix, **options)[0] if E in sample["tokens"][:-1])
    tokens = sample["tokens"].numpy()
    assert sample["masked_out"].numpy().tolist() == masked_out(tokens, E).tolist()
    assert sample["position_ids"].tolist() == position_ids(tokens, E).tolist()
    assert (sample["loss_mask"] == 0).tolist() == (tokens == E).tolist()
    with pytest.raises(SettingsError, match="end-of-document id"):
        open_train(prefix, eod_mask_loss=True)


def test_without_an_extra_token_the_last_label_does_not_count(prefix):
    sample = open_train(prefix, dialect="mcore", extra_token=False)[0][0]
    assert len(sample["tokens"]) == 16
    assert sample["labels"].tolist() == [*sample["tokens"][1:].tolist(), 0]
    assert sample["loss_mask"].tolist() == [1.0] * 15 + [0.0]


def test_a_partial_validation_sample_is_padded(write_tokens):
    tokens = IndexedDataset(write_tokens([[1, 2, 3, 4], [5, 6, 7]]))
    options = {"seq_length": 4, "num_samples": None, "seed": 1, "dialect": "mcore", "drop_last_partial_sequence": False}
    dataset = GPTDataset(tokens, build_sample_order(tokens.sizes, np.arange(2), **options), seq_length=4)
    assert len(dataset) == 2
    partial = next(sample for sample in dataset if sample["loss_mask"].sum() < 4)
    assert partial["loss_mask"].tolist() == [1.0, 1.0, 0.0, 0.0]
    assert partial["labels"].tolist()[2:] == [0, 0]


def test_only_validation_ends_in_a_partial_sample(prefix):
    for part, partial in (("train", False), ("valid", True), ("test", False)):
        options = {"dialect": "mcore", "part": part, "seq_length": 15, "num_samples": (None, None, None)}
        whole = open_train(prefix, **options)[0]
        asked = open_train(prefix, drop_last_partial_sequence=False, **options)[0]
        assert len(asked) - len(whole) == partial


def test_gpt_neox_hides_the_last_sample(prefix):
    neox, megatron = (open_train(prefix, dialect=dialect)[0] for dialect in ("neox", "megatron-v2"))
    assert len(neox) == len(megatron) - 1
    with pytest.raises(IndexError):
        neox[len(neox)]


@pytest.mark.parametrize(("micro", "ranks"), [(1, 1), (2, 1), (1, 4), (2, 2), (4, 3)])
def test_a_step_is_the_same_samples_however_it_is_shared(micro, ranks):
    samplers = [
        ResumableSampler(101, micro_batch_size=micro, data_parallel_rank=rank, data_parallel_size=ranks)
        for rank in range(ranks)
    ]
    steps = [[k for batch in step for k in batch] for step in zip(*samplers, strict=True)]
    assert [k for step in steps for k in step] == list(range(101 // (micro * ranks) * micro * ranks))
    assert len(steps) == len(samplers[0])


@pytest.mark.parametrize("consumed", [0, 8, 40, 96, 101])
def test_the_sampler_resumes_anywhere(consumed):
    whole = list(ResumableSampler(101, micro_batch_size=2, data_parallel_rank=1, data_parallel_size=2))
    rest = ResumableSampler(
        101, consumed_samples=consumed, micro_batch_size=2, data_parallel_rank=1, data_parallel_size=2
    )
    assert list(rest) == whole[consumed // 4 :]
    assert list(rest) == list(rest)


def test_invalid_sampler_arguments():
    for options in (
        {"consumed_samples": -1},
        {"micro_batch_size": 0},
        {"data_parallel_rank": 2, "data_parallel_size": 2},
    ):
        with pytest.raises(SettingsError):
            ResumableSampler(10, **options)


def test_the_cyclic_order_is_megatrons(recorder):
    found = []
    for total, consumed, micro, rank, ranks, sharded in recorder.cyclic_cases():
        sampler = CyclicSampler(
            total,
            consumed_samples=consumed,
            micro_batch_size=micro,
            data_parallel_rank=rank,
            data_parallel_size=ranks,
            data_sharding=sharded,
        )
        found.append(recorder.digest([np.array(batch) for batch in itertools.islice(sampler, len(sampler))]))
    assert len(set(found)) > 60
    assert found == FACTS["cyclic"]


@pytest.mark.parametrize("sharded", [True, False])
def test_the_cyclic_sampler_resumes_across_epochs(sharded):
    def take(count, consumed=0, rank=0):
        options = {"micro_batch_size": 2, "data_parallel_rank": rank, "data_parallel_size": 2}
        sampler = CyclicSampler(13, consumed_samples=consumed, data_sharding=sharded, **options)
        return list(itertools.islice(sampler, count))

    whole = take(9)
    assert all(take(9 - step, consumed=4 * step) == whole[step:] for step in range(9))
    assert whole[:3] != whole[3:6]
    for epoch in range(3):
        of_all = [number for rank in (0, 1) for batch in take(9, rank=rank)[3 * epoch :][:3] for number in batch]
        assert len(set(of_all)) == 12


def test_invalid_cyclic_sampler_arguments(prefix):
    with pytest.raises(SettingsError, match="total_samples: 3, expected at least 4"):
        CyclicSampler(3, micro_batch_size=2, data_parallel_size=2)
    with pytest.raises(SettingsError, match="consumed_samples: 6, expected a multiple of the step 4"):
        CyclicSampler(13, consumed_samples=6, micro_batch_size=2, data_parallel_size=2)
    with pytest.raises(SettingsError, match="dataloader_type: 'random'"):
        open_train(prefix, dataloader_type="random")
    assert isinstance(open_train(prefix, dataloader_type="cyclic")[1], CyclicSampler)


def test_weights_by_the_number_of_documents(write_tokens):
    prefixes = [str(write_tokens([[1]] * count, f"d{count}")) for count in (100, 10, 1)]
    # As gpt-neox ea7aefd8 weights_by_num_docs([100, 10, 1], alpha) gives them.
    assert weights_by_documents(prefixes) == NEOX_WEIGHTS[1.0]
    assert weights_by_documents(prefixes, alpha=0.3) == NEOX_WEIGHTS[0.3]
    assert weights_by_documents(prefixes[:1]) == [1.0]
    for counts in ([0, 0], [5, 0]):
        with pytest.raises(SettingsError, match="weights: "):
            document_weights(counts, 1.0)


def test_a_loader_with_workers_gives_the_order(prefix):
    dataset, sampler = open_train(prefix, micro_batch_size=3, consumed_samples=6)
    loader = torch.utils.data.DataLoader(dataset, batch_sampler=sampler, num_workers=1)
    first = next(iter(loader))
    assert first["tokens"].tolist() == [dataset[k]["tokens"].tolist() for k in (6, 7, 8)]


def test_blends_as_the_helpers_make_them(recorder):
    found = []
    for weights, size in recorder.BLENDS:
        found.append(recorder.digest(blend_order(weights, size)))
    assert found == FACTS["blends"]


def greedy(weights, size, limits=None):
    """The helpers' definition: each sample from the dataset that is furthest behind, the first in a tie."""
    taken = [0] * len(weights)
    order = []
    for sample in range(size):
        left = [dataset for dataset in range(len(weights)) if limits is None or taken[dataset] < limits[dataset]]
        lags = [weights[dataset] * max(float(sample), 1.0) - taken[dataset] for dataset in left]
        dataset = left[lags.index(max(lags))]
        order.append((dataset, taken[dataset]))
        taken[dataset] += 1
    return order


@pytest.mark.parametrize(("datasets", "size"), [(1, 10), (2, 40_000), (240, 2_000)])
def test_blends_larger_than_a_block_are_bit_equal(datasets, size):
    dice = np.random.RandomState(datasets)
    for weights in (dice.random_sample(datasets) ** 3, np.ones(datasets)):
        weights = normalised(list(weights), one_by_one=False)
        assert list(zip(*map(np.ndarray.tolist, blend_order(weights, size)), strict=True)) == greedy(weights, size)
    sizes = dice.randint(0, 2 * size // datasets, datasets).tolist()
    shares = [one / float(sum(sizes)) for one in sizes]
    exhaustive = zip(*map(np.ndarray.tolist, exhaustive_blend_order(sizes)), strict=True)
    assert list(exhaustive) == greedy(shares, sum(sizes), sizes)


def test_index_building_reports_progress(write_tokens, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("ascend_adapt.data.index_progress.SECONDS_BEFORE_FIRST_LINE", 0.0)
    monkeypatch.setattr("ascend_adapt.data.index_progress.SECONDS_BETWEEN_LINES", 0.0)
    words = ["1", str(write_tokens([[1] * 50] * 10, "a")), "3", str(write_tokens([[1] * 50] * 10, "b"))]
    open_train(words, cache=tmp_path / "c")
    lines = capsys.readouterr().err
    assert "(2 of 2)" in lines
    assert "blending 2 token files, 100% of" in lines
    open_train(words, cache=tmp_path / "c", rank=1)
    assert not capsys.readouterr().err


def test_open_token_files_and_indices_hold_no_descriptors(write_tokens, tmp_path):
    words = [word for number in range(20) for word in ("1", str(write_tokens([[1] * 50] * 10, f"d{number}")))]
    before = len(os.listdir("/proc/self/fd"))
    dataset, _ = open_train(words, cache=tmp_path / "c")
    assert len(os.listdir("/proc/self/fd")) == before
    assert int(dataset[len(dataset) - 1]["tokens"].sum()) == 16


@contextlib.contextmanager
def no_more_descriptors():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_too_many_open_files_is_reported_at_once(prefix, tmp_path):
    cache = IndexCache(tmp_path / "c", builds=True)
    cache.load({"n": 1}, lambda: ARRAYS)
    waiting = IndexCache(tmp_path / "c", builds=False)  # for half an hour
    message = r"Too many open files \(this process may have 3; raise the limit, such as with `ulimit -n 65536`\)"
    with no_more_descriptors(), pytest.raises(DataError, match=message):
        waiting.load({"n": 1}, refuse)
    with no_more_descriptors(), pytest.raises(DataError, match=message):
        IndexedDataset(prefix)


def test_an_exhaustive_blend_takes_everything():
    datasets, numbers = exhaustive_blend_order([5, 0, 20])
    assert np.bincount(datasets, minlength=3).tolist() == [5, 0, 20]
    assert numbers[datasets == 2].tolist() == list(range(20))
    # As core_v0.9.0 has it for sizes 5 and 20.
    assert datasets[:7].tolist() == [2, 0, 2, 2, 2, 0, 2]


def test_a_blended_dataset(write_tokens):
    prefixes = [str(write_tokens([[number] * 50] * 10, f"d{number}")) for number in (1, 2)]
    dataset, _ = open_train(["0.25", prefixes[0], "0.75", prefixes[1]], num_samples=(40, 4, 4), dialect="mcore")
    assert len(dataset) == 40
    datasets, _ = blend_order([0.25, 0.75], 40)
    assert [int(sample["tokens"][0]) for sample in dataset] == (datasets + 1).tolist()
    # Each dataset has 24 samples an epoch of its train part; Megatron v2 blends as many as there are in all.
    older, _ = open_train(["0.25", prefixes[0], "0.75", prefixes[1]], num_samples=(40, 4, 4))
    assert len(older) == 24 + 49


def test_blends_request_half_a_percent_more():
    assert [samples_to_ask_for(1000, weight) for weight in (0.25, 1.0, 0.001)] == [252, 1005, 2]


@pytest.mark.parametrize("words", [["a", "b"], ["0.5", "a", "0.5"], ["-1", "a", "2", "b"], ["0", "a", "0", "b"], []])
def test_an_invalid_blend(words):
    with pytest.raises(SettingsError, match="--data-path"):
        parse_blend(words)


def test_weights_are_normalised():
    assert parse_blend(["1", "a", "3", " b "]) == ([1.0, 3.0], ["a", "b"])
    for one_by_one in (True, False):
        assert normalised([1.0, 3.0], one_by_one=one_by_one) == [0.25, 0.75]


@pytest.mark.parametrize(
    ("rank", "local_rank", "shared", "builds"),
    [(8, 0, False, True), (8, 0, True, False), (9, 1, False, False), (9, 1, True, False), (0, 0, True, True)],
)
def test_which_rank_builds_the_cache(prefix, tmp_path, rank, local_rank, shared, builds, monkeypatch):
    assert builds_index_cache(rank, local_rank, shared) == builds
    monkeypatch.setattr("ascend_adapt.data.torch_dataset.IndexCache", impatient)
    options = {"rank": rank, "local_rank": local_rank, "shared_storage": shared, "cache": tmp_path / "cache"}
    if builds:
        open_train(prefix, **options)
        assert len(list((tmp_path / "cache").iterdir())) == 1
    else:
        with pytest.raises(DataError, match="is the storage shared by all hosts"):
            open_train(prefix, **options)
        assert not (tmp_path / "cache").exists()


def impatient(folder, *, builds):
    return IndexCache(folder, builds=builds, wait_seconds=0)


def refuse():
    raise AssertionError("built again")


ARRAYS = {"a": np.arange(5, dtype=np.int32), "b": np.ones((2, 3))}


def test_the_cache_is_built_once_and_validated(tmp_path):
    cache = IndexCache(tmp_path / "c", builds=True)
    cache.load({"n": 1}, lambda: ARRAYS)
    again = cache.load({"n": 1}, refuse)
    assert again["a"].tolist() == [0, 1, 2, 3, 4]
    assert not again["a"].flags.writeable
    with pytest.raises(AssertionError, match="built again"):
        cache.load({"n": 2}, refuse)
    assert len(list((tmp_path / "c").iterdir())) == 1


@pytest.mark.parametrize("damage", ["cut", "other type", "no description", "gone", "another's"])
def test_a_damaged_cache_is_built_again(tmp_path, damage):
    cache = IndexCache(tmp_path / "c", builds=True)
    cache.load({"n": 1}, lambda: ARRAYS)
    (place,) = (tmp_path / "c").iterdir()
    if damage == "cut":
        (place / "a.npy").write_bytes((place / "a.npy").read_bytes()[:-1])
    elif damage == "other type":
        np.save(place / "a.npy", np.arange(5.0))
    elif damage == "no description":
        (place / "description.json").write_text("{")
    elif damage == "gone":
        (place / "b.npy").unlink()
    else:
        described = (place / "description.json").read_text()
        (place / "description.json").write_text(described.replace("1", "2"))
    with pytest.raises(DataError, match="no valid index cache"):
        IndexCache(tmp_path / "c", builds=False, wait_seconds=0).load({"n": 1}, refuse)
    assert cache.load({"n": 1}, lambda: ARRAYS)["a"].tolist() == [0, 1, 2, 3, 4]
    assert cache.load({"n": 1}, refuse)["b"].shape == (2, 3)


def test_an_unfinished_cache_has_no_final_name(tmp_path, monkeypatch):
    def save(path, array):
        assert all(folder.name.startswith(".unfinished-") for folder in (tmp_path / "c").iterdir())
        raise OSError(28, "No space left on device", str(path))

    monkeypatch.setattr(np, "save", save)
    with pytest.raises(DataError, match="No space left on device, expected to write the index cache there"):
        IndexCache(tmp_path / "c", builds=True).load({"n": 1}, lambda: ARRAYS)
    assert list((tmp_path / "c").iterdir()) == []


def test_other_token_files_under_the_same_name_have_another_order(write_tokens, tmp_path):
    first = open_train(str(write_tokens([[1] * 30] * 40)), cache=tmp_path / "c")[0]
    second = open_train(str(write_tokens([[1] * 29] * 40)), cache=tmp_path / "c")[0]
    assert len(list((tmp_path / "c").iterdir())) == 2
    assert len(first) != len(second)


def test_a_part_without_sequences(prefix):
    with pytest.raises(DataError, match="no sequence in test by --split 1"):
        open_train(prefix, split="1", part="test")
    with pytest.raises(SettingsError, match="expected one of train"):
        open_train(prefix, part="training")


def test_the_helpers_without_a_compiler():
    sizes = np.array([3, 4, 5], np.int32)
    old = helpers_module("megatron.data.helpers")
    index = old.build_sample_idx(sizes, np.arange(3, dtype=np.int32), 4, 1, 12)
    assert (index.dtype, index.tolist()) == (np.int32, [[0, 0], [1, 1], [2, 1]])
    core = helpers_module("megatron.core.datasets.helpers", sample_index_dtype="int64")
    index = core.build_sample_idx(sizes, np.arange(3, dtype=np.int32), 4, 1, 12, True, 0)
    assert (index.dtype, index.tolist()) == (np.int64, [[0, 0], [1, 1], [2, 1], [2, 5]])
    datasets, numbers = np.zeros(6, np.uint8), np.zeros(6, np.int64)
    old.build_blending_indices(datasets, numbers, np.array([0.5, 0.5]), 2, 6, True)
    assert (datasets.tolist(), numbers.tolist()) == ([0, 1, 0, 1, 0, 1], [0, 0, 1, 1, 2, 2])
    core.build_exhaustive_blending_indices(datasets, numbers, np.array([4, 2]), 2)
    assert np.bincount(datasets).tolist() == [4, 2]
    with pytest.raises(DataError, match="compile Megatron's helpers"):
        old.build_mapping()
