"""Record the sample orders of the dataset classes of Megatron and its forks, as digests for test_sample_order.py.

    python tests/data/record_upstream_order.py megatron-v2=DIR megatron-23.06=DIR ... > upstream_order.json

Each DIR is a checkout of the commit in COMMITS whose helpers.cpp is built (`make`, or g++ with pybind11). 23.06 also
imports apex: empty stand-ins do. The token files that the classes read are made here, from cases().
"""

from __future__ import annotations

import ast
import hashlib
import itertools
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

COMMITS = {
    "megatron-v2": "NVIDIA/Megatron-LM v2.5",
    "megatron-23.06": "NVIDIA/Megatron-LM 23.06",
    "bigscience": "bigscience-workshop/Megatron-DeepSpeed 8387ae17",
    "mcore": "NVIDIA/Megatron-LM core_v0.9.0",
    "neox": "EleutherAI/gpt-neox 9610391a",
}
PARTS = ("train", "valid", "test")
BLENDS = [([1.0], 10), ([0.5, 0.5], 1001), ([0.2, 0.3, 0.5], 5000), ([1 / 3] * 3, 4000), ([0.01, 0.6, 0.09, 0.3], 9999)]


def cases():
    """The grid: (sequences, kind of sizes, seq_length, samples of train, valid and test, seed, split)."""
    shapes = [(40, "plain"), (400, "plain"), (400, "with_empty"), (400, "short"), (3, "long"), (60, "empty_ends")]
    for (sequences, kind), seq_length, epochs, seed, split in itertools.product(
        shapes, (16, 33), (0.4, 1.05, 2.5, 2.9, 6.3), (1234, 7), ("949,50,1", "6/3/1", "100,0,0")
    ):
        tokens = int(sizes_of(sequences, kind).sum())
        yield {
            "sequences": sequences,
            "kind": kind,
            "seq_length": seq_length,
            "num_samples": [max(1, int(epochs * tokens // seq_length)), 20, 7],
            "seed": seed,
            "split": split,
        }


def sizes_of(sequences, kind):
    """The sizes of a case, int32 [sequences]."""
    random = np.random.RandomState(sequences)
    if kind == "short":
        return random.randint(1, 4, sequences).astype(np.int32)
    if kind == "long":
        return random.randint(3000, 9000, sequences).astype(np.int32)
    sizes = random.randint(1, 200, sequences).astype(np.int32)
    if kind == "with_empty":
        sizes[random.rand(sequences) < 0.2] = 0
    if kind == "empty_ends":
        sizes[[0, 1, sequences // 2, -2, -1]] = 0
    return sizes


def digest(arrays):
    """Equal for arrays of equal numbers of any dtype."""
    flat = b"".join(np.ascontiguousarray(array, dtype=np.int64).tobytes() for array in arrays)
    return hashlib.sha256(flat).hexdigest()[:16]


def record(dialect, source):
    """Yield for each case the digests of train, valid and test, - if there is no such dataset."""
    sys.path.insert(0, source)
    for name in ("float", "int", "bool", "object"):  # names that numpy removed and these code bases use
        vars(np).setdefault(
            name, __builtins__.__dict__[name] if hasattr(__builtins__, "__dict__") else __builtins__[name]
        )
    open_splits = {"mcore": splits_of_mcore, "neox": splits_of_neox}.get(dialect, splits_of_megatron)
    with tempfile.TemporaryDirectory() as folder:
        for number, case in enumerate(cases()):
            prefix = f"{folder}/{number}"
            write_tokens(prefix, sizes_of(case["sequences"], case["kind"]))
            found = [
                digest_of(dataset, [getattr(dataset, name) for name in index_names(dialect)]) if dataset else "-"
                for dataset in open_splits(prefix, case, dialect)
            ]
            yield " ".join(found)


def digest_of(dataset, indices):
    """A digest of the length, the indices (document, sample, shuffle) and the tokens of some samples."""
    tokens = [tokens_of(dataset, k) for k in sample_numbers(len(dataset))]
    return digest([np.array([len(dataset)]), *indices, *tokens])


def sample_numbers(length):
    """Some samples of a dataset, the first and last among them."""
    return sorted({0, length // 2, length - 1}) if length else []


def index_names(dialect):
    long = ("document_index", "sample_index", "shuffle_index")
    return long if dialect == "mcore" else ("doc_idx", "sample_idx", "shuffle_idx")


def tokens_of(dataset, k):
    sample = dataset[k]
    if "text" in sample:
        return np.asarray(sample["text"])
    return np.append(sample["tokens"].numpy(), sample["labels"].numpy()[-1])


def write_tokens(prefix, sizes):
    from ascend_adapt.data.token_index import write_index

    tokens = (np.arange(int(sizes.sum())) % 65000).astype("<u2")
    Path(prefix + ".bin").write_bytes(tokens.tobytes())
    with open(prefix + ".idx", "wb") as stream:
        write_index(stream, tokens.dtype, sizes)


def alone():
    """A one-process job on a CPU."""
    import torch

    if torch.distributed.is_initialized():
        return
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29511", RANK="0", WORLD_SIZE="1", LOCAL_RANK="0")
    torch.distributed.init_process_group("gloo")
    torch.cuda.LongTensor = torch.LongTensor


def splits_of_megatron(prefix, case, dialect):
    alone()
    from megatron.data import gpt_dataset
    from megatron.data.dataset_utils import get_train_valid_test_split_
    from megatron.data.indexed_dataset import make_dataset

    group = type("Group", (), {"__getattr__": lambda self, name: lambda *args, **kwargs: None})()
    gpt_dataset.mpu = group
    indexed = make_dataset(prefix, "mmap", True)
    bounds = get_train_valid_test_split_(case["split"], len(indexed.sizes))
    for part, begin, end, samples in zip(PARTS, bounds, bounds[1:], case["num_samples"], strict=False):
        if end <= begin or not usable(indexed.sizes[begin:end]):
            yield None
            continue
        documents = np.arange(begin, end, dtype=np.int32)
        arguments = [documents, indexed, *([case["split"]] if dialect == "megatron-23.06" else [])]
        yield unless_refused(
            gpt_dataset.GPTDataset, part, prefix, *arguments, samples, case["seq_length"], case["seed"]
        )


def splits_of_neox(prefix, case, dialect):
    alone()
    from megatron.data import gpt2_dataset
    from megatron.data.data_utils import get_train_valid_test_split_
    from megatron.data.indexed_dataset import make_dataset

    gpt2_dataset.mpu = type("Group", (), {"__getattr__": lambda self, name: lambda *args, **kwargs: None})()
    indexed = make_dataset(prefix, "mmap", True)
    bounds = get_train_valid_test_split_(case["split"], len(indexed.sizes))
    for part, begin, end, samples in zip(PARTS, bounds, bounds[1:], case["num_samples"], strict=False):
        if end <= begin or not usable(indexed.sizes[begin:end]):
            yield None
            continue
        documents = np.arange(begin, end, dtype=np.int32)
        yield gpt2_dataset.GPT2Dataset(part, prefix, documents, indexed, samples, case["seq_length"], case["seed"])


def splits_of_mcore(prefix, case, dialect):
    alone()
    from megatron.core.datasets.blended_megatron_dataset_builder import BlendedMegatronDatasetBuilder
    from megatron.core.datasets.gpt_dataset import GPTDataset, GPTDatasetConfig

    sizes = sizes_of(case["sequences"], case["kind"])
    tokenizer = type("Tokenizer", (), {"eod": 65001, "pad": 65002, "unique_identifiers": {}})()
    config = GPTDatasetConfig(
        random_seed=case["seed"],
        sequence_length=case["seq_length"],
        blend=([prefix], None),
        split=case["split"].replace("/", ","),
        path_to_cache=prefix + "_cache",
        tokenizer=tokenizer,
        reset_position_ids=False,
        reset_attention_mask=False,
        eod_mask_loss=False,
    )
    ends = np.cumsum([0.0, *(float(part) for part in case["split"].replace("/", ",").split(","))])
    bounds = [round(end * len(sizes)) for end in ends / ends[-1]]
    shares = np.diff(ends)
    parts = zip(shares, bounds, bounds[1:], strict=False)
    if any(share and not usable(sizes[begin:end]) for share, begin, end in parts):
        yield from (None, None, None)  # the builder makes all or none, and never ends where there are no tokens
        return
    yield from BlendedMegatronDatasetBuilder(GPTDataset, case["num_samples"], lambda: True, config).build()


def usable(sizes):
    """Whether the helpers of these code bases stay inside their arrays, which they do not check."""
    return int(sizes.sum()) > 40


def unless_refused(dataset, *arguments):
    """None where the class asserts that the last epoch may not need one sample more than an epoch has."""
    try:
        return dataset(*arguments)
    except AssertionError:
        return None


def blends(source):
    """The digests of what helpers.build_blending_indices gives for BLENDS."""
    sys.path.insert(0, f"{source}/megatron/core/datasets")
    import helpers

    found = []
    for weights, size in BLENDS:
        datasets, numbers = np.zeros(size, np.int16), np.zeros(size, np.int64)
        helpers.build_blending_indices(datasets, numbers, np.array(weights), len(weights), size, False)
        found.append(digest([datasets, numbers]))
    return found


SAMPLER = "megatron/legacy/data/data_samplers.py"


def cyclic_cases():
    """Arguments of cyclic samplers: total and consumed samples, micro batch, rank, ranks, whether sharded."""
    for (total, micro, ranks), steps, sharded in itertools.product(
        ((101, 2, 2), (64, 4, 1), (1000, 3, 5), (7, 1, 3), (30, 5, 2)), (0, 1, 5, 23), (True, False)
    ):
        for rank in range(ranks):
            yield total, steps * micro * ranks, micro, rank, ranks, sharded


def cyclic(source):
    """The digests of what the class of Megatron core_v0.9.0 gives until the end of the epoch, for cyclic_cases()."""
    import torch

    tree = ast.parse(Path(source, SAMPLER).read_text())
    wanted = {"MegatronPretrainingRandomSampler", "RandomSeedDataset"}
    tree.body = [part for part in tree.body if isinstance(part, ast.ClassDef) and part.name in wanted]
    names = {"torch": torch, "Dataset": torch.utils.data.Dataset}
    exec(compile(tree, SAMPLER, "exec"), names)  # the module itself imports all of Megatron
    sampler = names["MegatronPretrainingRandomSampler"]
    found = []
    for total, consumed, micro, rank, ranks, sharded in cyclic_cases():
        batches = list(sampler(None, total, consumed, micro, rank, ranks, sharded))
        # Without sharding some ranks may have a step more than others: it is left out.
        steps = total // (micro * ranks)
        left = steps - consumed // (micro * ranks) % steps
        assert len(batches) - left in (0, not sharded)
        found.append(digest([np.array(batch) for batch in batches[:left]]))
    return found


def main(arguments):
    if arguments[0] == "--cyclic":
        json.dump(cyclic(arguments[1]), sys.stdout)
        return
    if arguments[0] == "--blends":
        json.dump(blends(arguments[1]), sys.stdout)
        return
    if arguments[0] == "--one":
        out = os.dup(1)
        os.dup2(2, 1)  # the classes print
        with open(out, "w") as stream:
            json.dump(list(record(*arguments[1:])), stream)
        return
    facts = {"made by": "python tests/data/record_upstream_order.py DIALECT=DIR ...", "commits": COMMITS, "digests": {}}
    for argument in arguments:
        dialect, _, source = argument.partition("=")
        command = [sys.executable, __file__, "--one", dialect, source]
        facts["digests"][dialect] = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
        if dialect == "mcore":
            for more in ("blends", "cyclic"):
                command = [sys.executable, __file__, f"--{more}", source]
                facts[more] = json.loads(subprocess.check_output(command))
    print(json.dumps(facts, indent=0))


if __name__ == "__main__":
    main(sys.argv[1:])
