"""Comparison of GLM's own code, which beside_glm.py has made importable, with the native trainer."""

from __future__ import annotations

import contextlib
import json
from types import SimpleNamespace

import blocklm_utils
import mpu
import torch
import torch.distributed as dist
from data_utils.datasets import BlockDataset, split_ds
from data_utils.tokenization import GPT2BPETokenizer
from model import GLMForMultiTokenCloze, GLMForSingleTokenCloze, GLMModel
from mpu.random import CudaRNGStatesTracker
from native import glm_cases
from native.glm_cases import LENGTH, MICRO, SETTINGS, STEPS
from tasks.data_utils import my_collate
from tasks.superglue.dataset import PROCESSORS
from tasks.superglue.pvp import PVPS

from ascend_adapt.checkpoint.canonical import heads
from ascend_adapt.checkpoint.dialects.glm import glm_name
from ascend_adapt.checkpoint.qkv import reordered
from ascend_adapt.native.finetuning.objective import ClozeObjective
from ascend_adapt.native.finetuning.patterns import TASKS
from ascend_adapt.native.parallel import mesh as meshes
from ascend_adapt.native.samples.glm_text import documents
from ascend_adapt.native.step.trainer import Trainer

LR, DECAY, CLIP = 3e-3, 0.1, 1.0
CudaRNGStatesTracker.fork = lambda self, *_: contextlib.nullcontext()
torch.utils.data.Sampler.__init__ = lambda self, *_: None  # torch 2.13 takes no data source any more


class Kept:
    """A loss that keeps the scores."""

    def __init__(self, kept):
        self._kept = kept

    def __call__(self, scores, answers):
        self._kept.append(scores)
        return scores.sum()


class Texts:
    """The documents, as GLM's own lazy loader gives them."""

    is_lazy = True

    def __init__(self, path, tokenizer):
        self._ids = [tokenizer.EncodeAsIds(text).tokenization for text in documents(str(path), 1234)]

    def __len__(self):
        return len(self._ids)

    def get_text_len(self, number):
        return len(self._ids[number])

    def __getitem__(self, number):
        return {"tokens": self._ids[number], "loss_masks": [1] * len(self._ids[number])}


class Batches:
    """GLM's batches of one setting."""

    def __init__(self, settings, tokenizer, path):
        self._settings = {**settings}
        is_random = self._settings.pop("random_samples", False)
        one, start = (self._settings.pop(name, 0) for name in ("sample_one_document", "non_sentence_start"))
        train = split_ds(Texts(path, tokenizer), [0.8, 0.1, 0.1])[0]
        self.samples = BlockDataset(train, tokenizer, LENGTH, sample_across_doc=not one, non_sentence_start=start)
        eod = tokenizer.get_command("eos").Id
        own = {
            {"average_block_length": "average_block_length"}.get(name, name): one
            for name, one in self._settings.items()
        }
        self._blanks = blocklm_utils.ConstructBlockStrategy(
            SimpleNamespace(eod_token=eod), tokenizer, LENGTH, task_mask=True, **own
        )
        self._blanks.rank, self._blanks.world_size = 0, 1
        self._random = None
        if is_random:
            from data_utils.samplers import RandomSampler

            self._random = list(RandomSampler(self.samples, replacement=True, num_samples=32 * 40))

    def __getitem__(self, number):
        places = range(number * MICRO, (number + 1) * MICRO)
        if self._random is not None:
            places = [self._random[place] for place in places]
        self._blanks.count = number
        found = self._blanks.construct_blocks([self.samples[place] for place in places])
        return {
            "tokens": found["text"],
            "labels": found["target"],
            "loss_mask": found["loss_mask"],
            "position_ids": found["position_id"][:, 0],
            "block_position_ids": found["position_id"][:, 1],
            "prefix": found["attention_mask"],
        }


def arguments(**more):
    names = "continuous_prompt sentinel_token no_block_position masked_lm few_superglue unidirectional wsc_negative"
    return SimpleNamespace(
        **{**dict.fromkeys(names.split(), False), "task_mask": True, "prefix_prompt": 0, "loss_func": "cross_entropy"},
        max_position_embeddings=2 * LENGTH,
        **more,
    )


def cloze_batch(task, pattern, folder, tokenizer):
    """Return GLM's batch of all training examples, and whether answers are texts."""
    args = arguments(task=task)
    processor = PROCESSORS[task](args)
    examples = processor.get_train_examples(str(folder / task))
    pvp = PVPS[task](args, tokenizer, processor.get_labels(), 2 * LENGTH, pattern_id=pattern)
    return my_collate([pvp.encode(one) for one in examples]), pvp.is_multi_token


def as_rows(batch):
    flat = {name: batch[name] for name in ("text", "target", "logit_mask", "position", "mask")}
    if batch["text"].dim() == 3:
        flat = {name: each.reshape(-1, *each.shape[2:]) for name, each in flat.items()}
    targets = flat["target"] if flat["target"].shape == flat["text"].shape else torch.zeros_like(flat["text"])
    return {
        "tokens": flat["text"],
        "labels": targets,
        "loss_mask": flat["logit_mask"],
        "position_ids": flat["position"][:, 0],
        "block_position_ids": flat["position"][:, 1],
        "prefix": flat["mask"].flatten(),
    }


@torch.no_grad()
def copy(trainer, upstream):
    """Fill GLM's parameters on this rank with ours."""
    ours = {glm_name(one.name): one.local for one in trainer.parameters}
    own_heads = heads(trainer.config.model).of_rank(dist.get_world_size())
    for name, parameter in upstream.named_parameters():
        values = ours.pop(name)
        if "query_key_value" in name:
            values = reordered(values, own_heads, "grouped", "block")
        parameter.copy_(values)
    assert not ours, f"not copied: {ours.keys()}"


def glm_model(settings, *, parallel_output):
    model = settings.model
    return GLMModel(
        model.num_layers,
        model.padded_vocab_size,
        model.hidden_size,
        model.num_heads,
        0.0,
        0.0,
        0.0,
        model.max_positions - 1,
        0,
        False,
        block_position_encoding=True,
        parallel_output=parallel_output,
    )


def pretraining_loss(logits, batch):
    each = mpu.vocab_parallel_cross_entropy(logits.contiguous().float(), batch["labels"])
    mask = batch["loss_mask"].view(-1).float()
    return (each.view(-1) * mask).sum() / mask.sum()


def positions(batch):
    return torch.stack([batch["position_ids"], batch["block_position_ids"]], 1)


def forward(module, batch):
    return module(batch["tokens"], positions(batch), batch["prefix"])[0]


def main(folder):
    dist.init_process_group("gloo")
    ranks = dist.get_world_size()
    mpu.initialize_model_parallel(ranks)
    own = folder / str(dist.get_rank())
    settings = glm_cases.pretraining(own, "mixed", tensor=ranks)
    tokenizer = GPT2BPETokenizer(str(own), add_block_symbols=True, add_task_mask=True)
    facts = {"samples": {}, "batches": {}, "rows": {}, "ranks": ranks}
    for name, each in SETTINGS.items():
        batches = Batches(each, tokenizer, own / "licence.jsonl")
        samples = [batches.samples[number] for number in range(40)]
        facts["samples"][name] = glm_cases.digest(
            [[one["text"].tolist(), one["loss_mask"].tolist()] for one in samples]
        )
        facts["batches"][name] = [glm_cases.rows_digest(batches[number]) for number in range(30)]
    mesh = meshes.build(settings.parallel, torch.device("cpu"))
    trainer = Trainer(settings, mesh)
    decoder = trainer.decoders[0]
    facts["logits"], facts["scores"] = compare_scores(settings, trainer, own, tokenizer, facts)

    upstream = glm_model(settings, parallel_output=True)
    copy(trainer, upstream)
    batches = Batches(SETTINGS["mixed"], tokenizer, own / "licence.jsonl")
    with torch.no_grad():
        theirs, ours = (
            forward(upstream, batches[0]),
            decoder(
                batches[0]["tokens"],
                **{n: t for n, t in batches[0].items() if n not in ("tokens", "labels", "loss_mask")},
            ),
        )
    facts["logits"]["pretraining"] = (theirs - ours).abs().max().item()
    facts["size of logits"] = theirs.abs().max().item()
    named = list(upstream.parameters())
    for one in named:
        one.model_parallel = getattr(one, "model_parallel", False)
    groups = [
        {"params": [one for one in named if one.dim() > 1], "weight_decay": DECAY},
        {"params": [one for one in named if one.dim() < 2], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=LR)
    facts["upstream"], facts["native"] = [], []
    for number in range(STEPS):
        batch = batches[number]
        loss = pretraining_loss(forward(upstream, batch), batch)
        loss.backward()
        mpu.clip_grad_norm(named, CLIP)
        optimizer.step()
        optimizer.zero_grad()
        facts["upstream"].append(loss.item())
        facts["native"].append(trainer.step([{**batch, "loss_mask": batch["loss_mask"].float()}], 1, LR, DECAY).loss)
    if dist.get_rank() == 0:
        print(json.dumps(facts))
    dist.destroy_process_group()


def compare_scores(settings, trainer, folder, tokenizer, facts):
    """Return the largest differences of logits and scores by task; GLM's and ours are of the same weights."""
    logits, scores = {}, {}
    for task, kind in TASKS.items():
        glm_cases.cloze(folder, task)
        for pattern in kind.numbers:
            batch, is_text = cloze_batch(task, pattern, folder, tokenizer)
            rows = as_rows(batch)
            facts["rows"][f"{task} {pattern}"] = glm_cases.rows_digest(rows)
        module = glm_model(settings, parallel_output=False)
        copy(trainer, module)
        wrapped = (GLMForMultiTokenCloze if is_text else GLMForSingleTokenCloze)(module)
        mine = glm_cases.cloze(folder, task, kind.numbers[-1])
        ours = glm_cases.cloze_batch(mine)
        decoder = trainer.decoders[0].eval()
        with torch.no_grad():
            theirs = wrapped(batch["text"], batch["position"], batch["mask"], batch["target"], batch["logit_mask"])[0]
            words = None if is_text else batch["target"][0].tolist()
            objective = ClozeObjective(mine, theirs.shape[-1], words)
            seen = []
            objective._loss = Kept(seen)
            decoder.objective = objective
            decoder(**{"x" if name == "tokens" else name: each for name, each in ours.items()})
            decoder.objective = None
        scores[task] = (seen[0] - theirs).abs().max().item()
        logits[task] = abs_difference(forward(module, rows), decoder, rows)
    return logits, scores


@torch.no_grad()
def abs_difference(theirs, decoder, rows):
    ours = decoder(rows["tokens"], **{name: rows[name] for name in ("position_ids", "block_position_ids", "prefix")})
    ours = mpu.gather_from_model_parallel_region(ours)
    return (theirs - ours).abs().max().item()
