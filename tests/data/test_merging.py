"""Merging and inspecting token files."""

from __future__ import annotations

import json

import numpy as np
import pytest

from ascend_adapt.data import IndexedDataset, merge
from ascend_adapt.errors import DataError

ONE, TWO = [[1, 2, 3], [4]], [[], [5, 6], [7]]


def test_sequences_and_documents_follow_one_another(write_tokens, tmp_path):
    first = write_tokens(ONE, "a", doc_idx=np.array([0, 2]))
    second = write_tokens(TWO, "b", doc_idx=np.array([0, 1, 3]))
    assert merge([first, second, first], tmp_path / "sub" / "all") == (4, 11)
    data = IndexedDataset(tmp_path / "sub" / "all")
    assert [sequence.tolist() for sequence in data] == ONE + TWO + ONE
    assert data.doc_idx.tolist() == [0, 2, 3, 5, 7]
    assert sorted(path.name for path in (tmp_path / "sub").iterdir()) == ["all.bin", "all.idx"]


def test_merging_is_as_if_written_at_once(write_tokens, tmp_path):
    merge([write_tokens(ONE, "a"), write_tokens(TWO, "b")], tmp_path / "merged")
    whole = write_tokens(ONE + TWO, "whole")
    for suffix in (".bin", ".idx"):
        assert (tmp_path / f"merged{suffix}").read_bytes() == whole.with_suffix(suffix).read_bytes()


def test_modes_are_kept(write_tokens, tmp_path):
    parts = [write_tokens(ONE, name, modes=np.array([0, mode], np.int8)) for name, mode in (("a", 1), ("b", 2))]
    merge(parts, tmp_path / "all")
    assert IndexedDataset(tmp_path / "all").modes.tolist() == [0, 1, 0, 2]


def test_an_output_that_is_an_input(write_tokens):
    first, second = write_tokens(ONE, "a"), write_tokens(TWO, "b")
    merge([first, second], first)
    assert [sequence.tolist() for sequence in IndexedDataset(first)] == ONE + TWO


@pytest.mark.parametrize(
    ("other", "text"),
    [({"dtype": "<i4"}, "dtype int32, expected uint16"), ({"modes": np.zeros(3, np.int8)}, "modes True")],
)
def test_files_that_do_not_fit_together(write_tokens, tmp_path, other, text):
    with pytest.raises(DataError, match=text):
        merge([write_tokens(ONE, "a"), write_tokens(TWO, "b", **other)], tmp_path / "all")
    assert not (tmp_path / "all.bin").exists()


def test_the_commands(write_tokens, run_command, tmp_path):
    job = run_command(
        "merge", "--input", write_tokens(ONE, "a"), write_tokens(TWO, "b"), "--output-prefix", tmp_path / "c"
    )
    assert job.returncode == 0, job.stderr
    assert job.stdout.decode() == f"{tmp_path}/c: 5 documents, 7 tokens\n"
    job = run_command("inspect", tmp_path / "c")
    shown = json.loads(job.stdout)
    expected = {"format": "mmap", "dtype": "uint16", "documents": 5, "sequences": 5, "tokens": 7, "empty_sequences": 1}
    assert expected.items() <= shown.items()
    assert (shown["largest_token"], shown["first_tokens"], shown["bin_bytes"]) == (7, [1, 2, 3], 14)
    assert shown["tokens_per_sequence"] == {"min": 0, "median": 1.0, "mean": 1.4, "max": 3}


def test_the_commands_refuse_missing_files(run_command, tmp_path):
    for arguments, message in (
        (["inspect", tmp_path / "x"], b"x: does not exist, expected a checkpoint's folder, or token files"),
        (["merge", "--input", tmp_path / "x", "--output-prefix", tmp_path / "y"], b"x.idx: no such file"),
    ):
        job = run_command(*arguments)
        assert job.returncode == 1
        assert message in job.stderr
        assert b"Traceback" not in job.stderr
    assert list(tmp_path.iterdir()) == []
