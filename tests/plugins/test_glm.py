"""The patches of GLM on stand-ins of the functions they target, which have the recorded signatures."""

from __future__ import annotations

import inspect
import pickle
import subprocess
import sys
from functools import partial

import code_base_records
import numpy
import pytest
import torch
from code_bases import code_base
from stand_ins import Site

import ascend_adapt
from ascend_adapt.errors import DataError
from ascend_adapt.testing import upstream_facts

B, N, S, H = 2, 2, 6, 8
# The numbers of 4f61ed72's layer: a mask that multiplies the scores and adds -65504, dropout, and a dense layer.
TRANSFORMER = """
    import torch
    from contextlib import nullcontext
    class Tracker:
        forked = 0
        def fork(self):
            Tracker.forked += 1
            return nullcontext()
    def get_cuda_rng_tracker():
        return Tracker()
    class ParallelSelfAttention(torch.nn.Module):
        def __init__(self, hidden, heads):
            super().__init__()
            self.performer = self.relative_encoding = False
            self.num_attention_heads_per_partition = heads
            self.query_key_value = torch.nn.Linear(hidden, 3 * hidden)
            self.dense = torch.nn.Linear(hidden, hidden)
            self.attention_dropout, self.output_dropout = torch.nn.Dropout(0.0), torch.nn.Dropout(0.0)
        def forward(self, hidden_states, ltor_mask, position_embeddings=None, r_w_bias=None, r_r_bias=None, mem=None):
            length = hidden_states.size(1)
            mixed = self.query_key_value(hidden_states if mem is None else torch.cat((mem, hidden_states), 1))
            heads = self.num_attention_heads_per_partition
            query, key, value = (x.view(*x.shape[:2], heads, -1).transpose(1, 2) for x in mixed.chunk(3, -1))
            scores = query[:, :, -length:] @ key.transpose(-1, -2) / query.shape[-1] ** 0.5
            scores = scores * ltor_mask + -65504.0 * (1.0 - ltor_mask)
            context = (scores.softmax(-1) @ value).transpose(1, 2).flatten(2)
            return self.output_dropout(self.dense(context))
    """
DATA_UTILS = """
    from . import corpora
    def get_dataset(name, tokenizer, pre_tokenize, data_parallel_rank, loader_scatter=None, no_lazy_loader=False,
                    half_lazy_loader=False):
        return corpora.NAMED_CORPORA[name]()
    """
CORPORA = """
    class Pile:
        PATH = "/mnt/train"
        def process_line(self, data, tokenizer, tokenize):
            return [""], [data["text"]], data["meta"]["pile_set_name"]
    class PromptReader:
        def __init__(self, writers=None):
            self.writers = writers
    class Wikipedia(PromptReader):
        PATH = "/root/data/wiki.txt"
    class OpenWebText(PromptReader):
        def __init__(self, *args, **kwargs):
            import fasttext
            super().__init__(*args, **kwargs)
            self.model = fasttext.load_model('/dataset/fd5061f6/english_data/lid.176.bin')
    NAMED_CORPORA = {"pile": Pile, "wikipedia": Wikipedia}
    """


DATASETS = """
    class BlockDataset:
        def __init__(self, ds, tokenizer, max_seq_len=1024, sample_across_doc=True, non_sentence_start=0.0,
                     filter_english=False, **kwargs):
            self.ds, self.filter_english = ds, filter_english
            if self.filter_english:
                import fasttext
                self.model = fasttext.load_model('/mnt/lid.176.bin')
    """
# As fasttext 0.9.3 beside numpy 2: only its predict() fails.
FASTTEXT = """
    class Model:
        class f:
            def predict(text, k, threshold, on_unicode_error):
                assert text.count("\\n") == 1
                return [(0.9, "__label__en" if "the" in text else "__label__de")]
        def predict(self, text, k=1, threshold=0.0, on_unicode_error='strict'):
            raise ValueError("Unable to avoid copy while creating an array as requested.")
    def load_model(path):
        open(path).close()
        return Model()
    """


@pytest.fixture
def glm(site: Site, monkeypatch, bodies_of_stand_ins) -> Site:
    monkeypatch.setenv("ASCEND_ADAPT_PLUGINS", "glm")
    site.write(mpu__transformer=TRANSFORMER, mpu__random="", model__modeling_glm="", data_utils__lazy_loader="")
    site.write(data_utils__corpora=CORPORA, data_utils__datasets=DATASETS)
    site.package("data_utils", DATA_UTILS)
    return site


def separated(*lengths: int) -> torch.Tensor:
    """GLM's mask: all see the first ``length`` tokens, and beyond them those before; 1 = seen."""
    seen = torch.ones(len(lengths), 1, S, S, dtype=torch.float64).tril()
    for row, length in zip(seen, lengths, strict=True):
        row[..., :length] = 1
    return seen


def test_the_stand_ins_have_the_recorded_signatures(glm: Site) -> None:
    from data_utils import get_dataset
    from mpu.transformer import ParallelSelfAttention

    one = code_base("GLM")
    record = upstream_facts.load(code_base_records.path_of(one))
    ours = {"fused_attention": ParallelSelfAttention.forward, "corpus_path": get_dataset}
    known = {patch.name: patch for patch in code_base_records.patches_of(one)}
    for name, function in ours.items():
        (recorded,) = record.of(known[name], one.commit).signatures
        names = [word.partition("=")[0].strip() for word in recorded.strip("()").split(",")]
        assert list(inspect.signature(function).parameters) == names


@pytest.mark.parametrize(
    ("mask", "memory"),
    [(separated(2, 5), 0), (separated(3), 0), (separated(0), 0), (separated(1, 4), 4)],
    ids=["separators", "one separator", "causal", "memory"],
)
def test_the_attention_is_upstreams(glm: Site, mask, memory) -> None:
    torch.manual_seed(0)
    hidden = torch.randn(B, S, H, dtype=torch.float64)
    mem = torch.randn(B, memory, H, dtype=torch.float64) if memory else None
    if memory:
        mask = torch.cat((torch.ones(B, 1, S, memory, dtype=torch.float64), mask), -1)
    found = []
    for device in ("cpu", "cuda"):
        ascend_adapt.enable(device=device)
        from mpu.transformer import ParallelSelfAttention

        torch.manual_seed(1)
        layer = ParallelSelfAttention(H, N).double()
        # As recomputed activations ask for it: twice with one mask.
        result = layer(hidden, mask, mem=mem) + layer(hidden, mask, None, None, None, mem)
        assert ascend_adapt.status()["glm.fused_attention"].state == ("skipped" if device == "cpu" else "applied")
        result.sin().sum().backward()
        found.append([result.detach(), *(one.grad for one in layer.parameters())])
        ascend_adapt.disable()
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs)


def test_a_mask_that_changes_between_batches_counts_anew(glm: Site) -> None:
    ascend_adapt.enable(device="cuda")
    from mpu.transformer import ParallelSelfAttention

    layer, hidden, mask = ParallelSelfAttention(H, N).double(), torch.randn(1, S, H).double(), separated(1)
    first = layer(hidden, mask)
    mask[..., :4] = 1
    assert not torch.allclose(layer(hidden, mask), first)
    torch.testing.assert_close(layer(hidden, separated(1)), first)


def test_dropout_draws_as_upstream_does(glm: Site) -> None:
    ascend_adapt.enable(device="cuda")
    from mpu.transformer import ParallelSelfAttention, Tracker

    layer = ParallelSelfAttention(H, N).double()
    layer.attention_dropout.p = 0.5
    layer(torch.randn(1, S, H).double(), separated(1))
    assert Tracker.forked == 1
    layer.eval()(torch.randn(1, S, H).double(), separated(1))
    assert Tracker.forked == 1


def test_a_checkpoint_with_random_states_loads(glm: Site, tmp_path) -> None:
    source = """
        import torch
        def {name}:
            checkpoint_name = {path}
            sd = torch.load(checkpoint_name, map_location='cpu')
            return sd
        """
    glm.write(
        train_utils=source.format(name="load_pretrained(model, checkpoint_path, args, task_tokens=None)", path="model"),
        utils=source.format(name="load_checkpoint(model, optimizer, lr_scheduler, args)", path="model"),
    )
    path = tmp_path / "checkpoint.pt"
    torch.save({"module": {}, "np_rng_state": numpy.random.RandomState(1).get_state()}, path)
    import train_utils
    import utils

    with pytest.raises(pickle.UnpicklingError, match="Weights only"):
        train_utils.load_pretrained(path, None, None)
    ascend_adapt.enable(device="cpu")
    assert train_utils.load_pretrained(path, None, None)["module"] == {}
    assert utils.load_checkpoint(path, None, None, None)["np_rng_state"][0] == "MT19937"


@pytest.mark.parametrize("backend", ["gloo", "nccl"])
def test_its_own_data_parallelism_asks_for_the_backend(glm: Site, monkeypatch, backend) -> None:
    glm.write(
        model__distributed="""
            import torch.distributed as dist
            class DistributedDataParallel:
                def __init__(self, module):
                    self.warn_on_half = True if dist._backend == dist.dist_backend.GLOO else False
            """
    )
    monkeypatch.setattr(torch.distributed, "get_backend", lambda: backend)
    ascend_adapt.enable(device="cuda")
    from model.distributed import DistributedDataParallel

    assert DistributedDataParallel(None).warn_on_half is (backend == "gloo")
    ascend_adapt.disable()
    with pytest.raises(AttributeError, match="_backend"):
        DistributedDataParallel(None)


def test_a_corpus_is_read_from_the_path_that_is_given(glm: Site, tmp_path) -> None:
    ascend_adapt.enable(device="cpu")
    import data_utils

    path = tmp_path / "00.jsonl"
    path.touch()
    corpus = data_utils.get_dataset(str(path), None, False, 0)
    assert str(path) == corpus.PATH
    assert corpus.process_line({"text": "a"}, None, False) == ([""], ["a"], "text")
    assert corpus.process_line({"text": "a", "meta": {"pile_set_name": "b"}}, None, False)[2] == "b"
    assert (
        data_utils.get_dataset(name="pile", tokenizer=None, pre_tokenize=False, data_parallel_rank=0).PATH
        == "/mnt/train"
    )
    with pytest.raises(KeyError):
        data_utils.get_dataset("no such path", None, False, 0)
    assert "data_utils" in sys.modules


def test_a_named_corpus_in_the_working_folder_is_read_there(glm: Site, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    ascend_adapt.enable(device="cpu")
    import data_utils

    assert data_utils.get_dataset("pile", None, False, 0).PATH == "/mnt/train"
    for name in ("pile", "wikipedia"):
        (tmp_path / name).mkdir()
        assert name == data_utils.get_dataset(name, None, False, 0).PATH
    assert data_utils.get_dataset("pile", None, False, 0).process_line({"text": "a"}, None, False)[2] == "text"
    (tmp_path / "own.lazy").mkdir()  # what GLM has tokenized counts as the corpus at its own path
    monkeypatch.setattr(data_utils.corpora.Wikipedia, "PATH", str(tmp_path / "own.txt"))
    data_utils.corpora.NAMED_CORPORA["wikipedia"] = data_utils.corpora.Wikipedia
    assert str(tmp_path / "own.txt") == data_utils.get_dataset("wikipedia", None, False, 0).PATH


def test_languages_are_recognised_with_the_model_in_the_working_folder(glm: Site, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    ascend_adapt.enable(device="cpu")
    from data_utils.corpora import OpenWebText
    from data_utils.datasets import BlockDataset

    assert not BlockDataset([], None).filter_english
    with pytest.raises(DataError, match=r"--filter-english: package fasttext and fastText's lid.176.bin at /mnt/lid"):
        BlockDataset([], None, filter_english=True)
    glm.write(fasttext=FASTTEXT)
    with pytest.raises(DataError, match=r"openwebtext: fastText's lid.176.bin at /mnt/lid.176.bin or in "):
        OpenWebText()
    (tmp_path / "lid.176.bin").touch()
    for reader in (BlockDataset([1], None, filter_english=True), OpenWebText(writers={})):
        assert [reader.model.predict(text)[0][0] for text in ("the", "der")] == ["__label__en", "__label__de"]
    assert BlockDataset([1], None, filter_english=True).filter_english


def test_a_script_of_its_own_reads_a_checkpoint(tmp_path) -> None:
    """As change_mp.py: a script beside GLM's packages which imports none of them, and calls torch.load itself."""
    for marker in ("mpu/random.py", "model/modeling_glm.py", "data_utils/lazy_loader.py"):
        (tmp_path / marker).parent.mkdir()
        (tmp_path / marker).touch()
    (tmp_path / "change_mp.py").write_text("import sys, torch\nprint(torch.load(sys.argv[1])['random_rng_state'][0])\n")
    path = tmp_path / "checkpoint.pt"
    torch.save({"random_rng_state": (3,), "np_rng_state": numpy.random.RandomState(1).get_state()}, path)
    command = [sys.executable, "-m", "ascend_adapt.launch.cli", "--device", "cpu", "--once"]
    run = partial(subprocess.run, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    job = run([*command, "change_mp.py", str(path)])
    assert (job.returncode, job.stdout.splitlines()[-1]) == (0, "3"), job.stderr
    without = run([*command, "--disable", "glm.tool_checkpoints", "change_mp.py", str(path)])
    assert "Weights only load failed" in without.stderr
