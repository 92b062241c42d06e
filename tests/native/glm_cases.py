"""Small GLM runs on fixed text: a vocabulary of bytes and a few words, the project's licence, and made-up examples."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from native.fixed_text import END, LICENCE
from native.small_models import GPT2, config

from ascend_adapt.config.glm_config import BlankInfilling, Cloze, GlmVocabulary
from ascend_adapt.config.train_config import Batch, Checkpoint, Data, Logging, Schedule, TrainConfig
from ascend_adapt.native import loop
from ascend_adapt.native.finetuning.cloze_batches import collate
from ascend_adapt.native.finetuning.patterns import TASKS
from ascend_adapt.native.finetuning.run import FinetuningRun
from ascend_adapt.native.parallel import mesh as meshes
from ascend_adapt.native.samples.cloze_examples import read_examples
from ascend_adapt.native.samples.glm_loader import BlankBatches
from ascend_adapt.native.samples.glm_text import load_vocabulary, tokenize
from ascend_adapt.native.step.trainer import Trainer

WORDS = (" No", " Yes", " Maybe", " true", " false", " neither", " the", " of")
LENGTH, STEPS, MICRO = 64, 50, 4
CPU = torch.device("cpu")
MIXED = {"bert_prob": 0.5, "gap_sentence_prob": 0.3, "gpt_min_ratio": 0.25, "short_seq_prob": 0.2}
SETTINGS = {
    "mixed": MIXED,
    "spans": {"bert_prob": 1.0, "single_span_prob": 0.3, "random_position": True},
    "ends": {"bert_prob": 0.0, "gpt_infill_prob": 0.3, "shuffle_blocks": False, "non_sentence_start": 0.5},
    "one document": {**MIXED, "sample_one_document": True, "random_samples": True},
}
CHOICES = (
    ("The file was empty.", "The reader returned nothing.", "The reader was slow.", "effect", 0),
    ("The module was imported twice.", "It ran twice!", "it ran once.", "effect", 1),
    ("The test failed.", "The value was wrong.", "The value was right.", "cause", 0),
)
ENTAILMENTS = (
    ("A thread waited for \u201cthe lock\u201d.", "The lock was held.", 0),
    ("It may rain, or it may not.", "It rains", 1),
    ("No test failed. " * 8, "A test failed.", 1),
)


def vocabulary(folder: Path) -> GlmVocabulary:
    """Write a vocabulary of the bytes and WORDS, in GPT-2's files."""
    from tokenizers.pre_tokenizers import ByteLevel

    letters = [*sorted(ByteLevel.alphabet()), END]
    merges: list[str] = []
    for word in WORDS:
        spelled = word.replace(" ", "\u0120")
        for end in range(2, len(spelled) + 1):
            merge = f"{spelled[: end - 1]} {spelled[end - 1]}"
            if merge not in merges:
                merges.append(merge)
                letters.append(spelled[:end])
    folder.mkdir(parents=True, exist_ok=True)
    files = folder / "vocab.json", folder / "merges.txt"
    files[0].write_text(json.dumps({letter: number for number, letter in enumerate(letters)}))
    files[1].write_text("#version: 0.2\n" + "\n".join(merges) + "\n")
    return GlmVocabulary(*map(str, files), task_mask=True)


def write_text(folder: Path) -> Path:
    """Write the paragraphs of the licence as documents."""
    path = folder / "licence.jsonl"
    paragraphs = [one for one in LICENCE.read_text(encoding="utf-8").split("\n\n") if one.strip()]
    path.write_text("".join(json.dumps({"text": one}) + "\n" for one in paragraphs))
    return path


def write_examples(folder: Path) -> Path:
    """Write train.jsonl, val.jsonl and test.jsonl of each task into a folder of its name."""
    rows = {
        "copa": [
            dict(zip(("premise", "choice1", "choice2", "question", "label"), one, strict=True)) for one in CHOICES
        ],
        "boolq": [{"passage": one, "question": two, "label": label == 0} for one, two, label in ENTAILMENTS],
        "rte": [
            {"premise": one, "hypothesis": two, "label": ("entailment", "not_entailment")[label]}
            for one, two, label in ENTAILMENTS
        ],
        "cb": [
            {"premise": one, "hypothesis": two, "label": ("entailment", "contradiction")[label]}
            for one, two, label in ENTAILMENTS
        ],
    }
    for task, examples in rows.items():
        (folder / task).mkdir(parents=True, exist_ok=True)
        lines = [json.dumps({**one, "idx": number}) for number, one in enumerate(examples)]
        for name in ("train", "val", "test"):
            (folder / task / f"{name}.jsonl").write_text("\n".join(lines) + "\n")
    return folder


def model(words: GlmVocabulary):
    """The model of these cases: two layers of small_models' GPT-2, with block positions."""
    ids = load_vocabulary(words).vocab_size
    return replace(
        GPT2,
        positions="block",
        ffn_hidden_size=128,
        max_positions=2 * LENGTH + 1,
        vocab_size=ids,
        padded_vocab_size=-(-ids // 128) * 128,
    )


def pretraining(folder: Path, settings: str = "mixed", **parallel) -> TrainConfig:
    """A pretraining run on the licence; its text is tokenized."""
    words = vocabulary(folder)
    made = config(model(words), **parallel)
    data = Data(
        train=(str(write_text(folder)),),
        seq_length=LENGTH,
        split="8,1,1",
        num_workers=0,
        blanks=BlankInfilling(words, **SETTINGS[settings]),
    )
    tokenize(data.train[0], data)
    ranks = made.parallel.data
    return replace(made, dialect="glm", data=data, batch=Batch(MICRO, 1, MICRO * ranks), iterations=STEPS)


def cloze(folder: Path, task: str = "copa", pattern: int = 0, **more) -> Cloze:
    """A task on the made-up examples."""
    examples = len(CHOICES) * 2 if task == "copa" else len(ENTAILMENTS)
    return Cloze(task, str(write_examples(folder) / task), vocabulary(folder), examples, pattern=pattern, **more)


def cloze_batch(settings: Cloze, length: int = 2 * LENGTH):
    """All training examples of a task as one batch."""
    pattern = TASKS[settings.task](load_vocabulary(settings.vocabulary), length, settings.pattern)
    examples = read_examples(settings, "train")
    return collate([pattern.rows(one) for one in examples], [one.label for one in examples], examples=1)


def rows_digest(batch) -> str:
    """Return a digest of the rows of a batch, which does not depend on their padding."""
    kept = []
    for row in range(len(batch["tokens"])):
        used = int(batch["loss_mask"][row].nonzero().max()) + 1 if batch["loss_mask"][row].any() else 0
        for name in ("tokens", "position_ids", "block_position_ids", "loss_mask"):
            kept.append(batch[name][row, :used].long().tolist())
        counted = batch["loss_mask"][row].bool()
        kept += [batch["labels"][row][counted].tolist(), int(batch["prefix"][row])]
    return digest(kept)


def digest(content: Iterable) -> str:
    """Return a digest of numbers in lists."""
    return hashlib.sha256(json.dumps(content, default=int).encode()).hexdigest()[:16]


def blank_batches(folder: Path, settings: str) -> BlankBatches:
    """Return the micro batches of a setting."""
    return BlankBatches(pretraining(folder, settings), "train", 0)


def samples_digest(batches: BlankBatches) -> str:
    """Return a digest of the first samples of documents."""
    return digest([[np.asarray(part).tolist() for part in batches._samples[number]] for number in range(40)])


def trainer(settings: TrainConfig) -> Trainer:
    """Return a trainer of one process."""
    return Trainer(settings, meshes.single(CPU))


def pretraining_batch(settings: TrainConfig, number: int):
    """Batch ``number`` of the first data-parallel rank."""
    return BlankBatches(settings, "train", 0)[number]


def losses(settings: TrainConfig, steps: int = STEPS) -> list[float]:
    """Return the losses of training on one process."""
    alone, batches = trainer(settings), BlankBatches(settings, "train", 0)
    return [alone.step([batches[number]], 1, 3e-3, 0.1).loss for number in range(steps)]


def finetuning(folder: Path, task: str = "copa", more: dict | None = None, **parallel) -> TrainConfig:
    """Three epochs of finetuning on the made-up examples; of the last batch of each one place is empty."""
    settings = cloze(folder, task, epochs=3, **(more or {}))
    made = config(model(settings.vocabulary), **parallel)
    ranks, micro = made.parallel.data, 4 // made.parallel.data
    steps = settings.epochs * settings.micro_batches(micro, ranks)
    return replace(
        made,
        dialect="glm",
        data=Data(train=(), seq_length=2 * LENGTH, split="1", num_workers=0),
        batch=Batch(micro, 1, micro * ranks),
        schedule=Schedule(dialect="glm", lr=3e-3, style="linear", unit="iterations", warmup=1, decay=steps),
        logging=Logging(format="glm", interval=1),
        checkpoint=Checkpoint(save=str(folder / "saved" / task), at_end=False),
        iterations=steps,
        eval_interval=0,
        cloze=settings,
    )


class Log:
    """A log of a run that is kept in memory."""

    def __init__(self) -> None:
        self.losses: list[float] = []
        self.lines: list[str] = []

    def say(self, text: str) -> None:
        """Keep a line."""
        self.lines.append(text)

    def step(self, metrics) -> None:
        """Keep the loss of an iteration."""
        self.losses.append(metrics.lm_loss)

    def evaluation(self, iteration: int, part: str, loss: float) -> None:
        """Keep the loss of an evaluation."""
        self.losses.append(loss)


def pretrain(settings: TrainConfig, run_dir: Path) -> Log:
    """Pretrain on this rank, and return the log."""
    log = Log()
    loop.train(settings, run_dir, log)
    return log


def finetune(settings: TrainConfig, run_dir: Path) -> Log:
    """Finetune on this rank, and return the log."""
    log = Log()
    loop.train(settings, run_dir, log, kind=FinetuningRun)
    return log
