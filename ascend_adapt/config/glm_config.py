"""GLM settings: vocabulary, blank infilling, and cloze tasks for finetuning.

Defaults are those of THUDM/GLM@4f61ed72 arguments.py.
"""

from __future__ import annotations

from dataclasses import dataclass

from ascend_adapt.config.checks import Problems, at_least, one_of
from ascend_adapt.errors import ConfigError

CHOICES = {"boolq": 2, "cb": 3, "copa": 2, "rte": 2}
"""Number of answers to choose from, by task."""
MULTI_TOKEN = ("copa",)
"""Tasks whose answers span several tokens. A batch then has one row per answer, else one row per example."""
CLOZE_LOSSES = ("cross_entropy", "hinge", "generative", "mix")
METRICS = {"boolq": ("accuracy",), "cb": ("accuracy", "f1-macro"), "copa": ("accuracy",), "rte": ("accuracy",)}
"""Metrics of each task; the first chooses the best epoch unless ``Cloze.metric`` names another."""


@dataclass(frozen=True)
class GlmVocabulary:
    """GPT-2's vocabulary and merges, and GLM's special tokens after them.

    ``task_mask`` adds [gMASK] and [sMASK], ``decoder_mask`` adds [dBLOCK].
    """

    vocab_file: str
    merge_file: str
    task_mask: bool = False
    decoder_mask: bool = False


@dataclass(frozen=True)
class BlankInfilling:
    """Blank infilling: how documents are sampled, and how blanks are chosen.

    The blanks of a batch are short spans with probability ``bert_prob``, sentences with ``gap_sentence_prob``, else one
    long span at the end. ``language_model`` is fastText's lid.176.bin, given to keep only English documents.
    ``random_samples`` draws document samples with replacement (--shuffle).
    """

    vocabulary: GlmVocabulary
    bert_prob: float = 0.5
    gap_sentence_prob: float = 0.0
    gap_sentence_ratio: float = 0.15
    gpt_infill_prob: float = 0.5
    gpt_min_ratio: float = 0.5
    average_block_length: int = 3
    short_seq_prob: float = 0.0
    single_span_prob: float = 0.0
    block_mask_prob: float = 0.0
    context_mask_ratio: float = 0.0
    shuffle_blocks: bool = True
    block_positions: bool = True
    random_position: bool = False
    non_sentence_start: float = 0.0
    sample_one_document: bool = False
    random_samples: bool = False
    language_model: str | None = None

    def __post_init__(self) -> None:
        problems = Problems()
        for name in (
            *("bert_prob", "gap_sentence_prob", "gap_sentence_ratio", "gpt_infill_prob", "gpt_min_ratio"),
            *("short_seq_prob", "single_span_prob", "block_mask_prob", "context_mask_ratio", "non_sentence_start"),
        ):
            if not 0 <= getattr(self, name) <= 1:
                with problems:
                    raise ConfigError(f"{name}: {getattr(self, name)}, expected 0 to 1 — correct it")
        with problems:
            if self.bert_prob + self.gap_sentence_prob > 1 + 1e-9:
                raise ConfigError(
                    f"bert_prob {self.bert_prob} + gap_sentence_prob {self.gap_sentence_prob}: above 1, expected at "
                    "most 1, because one long span has the remaining probability — lower one of them"
                )
        with problems:
            at_least("average_block_length", self.average_block_length, 1)
        problems.raise_all()


@dataclass(frozen=True)
class Cloze:
    """A SuperGLUE task as a cloze: ``folder`` holds train.jsonl, val.jsonl and test.jsonl.

    ``examples`` is the number of training examples per epoch. ``metric`` chooses the best epoch; the default is the
    task's first metric in METRICS.
    """

    task: str
    folder: str
    vocabulary: GlmVocabulary
    examples: int
    epochs: int = 1
    pattern: int = 0
    loss: str = "cross_entropy"
    length_penalty: float = 0.0
    metric: str | None = None
    eval_micro: int = 0
    """Validation batch size of each rank, in examples; 0 means the micro batch size."""
    eval_epochs: int = 1
    """Number of epochs between validations."""
    block_positions: bool = True
    validates: bool = True
    tests_validation_set: bool = False
    """Whether the final test uses the validation set (--eval-valid), whose labels are known."""

    def __post_init__(self) -> None:
        problems = Problems()
        with problems:
            one_of("task", self.task, CHOICES)
        with problems:
            one_of("loss_func", self.loss, CLOZE_LOSSES)
        for name in ("examples", "epochs", "eval_epochs"):
            with problems:
                at_least(name, getattr(self, name), 1)
        with problems:
            at_least("length_penalty", self.length_penalty, 0)
        if self.metric is not None and self.task in METRICS:
            with problems:
                one_of("validation_metric", self.metric, METRICS[self.task])
        problems.raise_all()

    @property
    def rows(self) -> int:
        """Number of batch rows per example."""
        return CHOICES[self.task] if self.task in MULTI_TOKEN else 1

    def micro_batches(self, micro: int, data_ranks: int) -> int:
        """Number of micro batches per epoch on each data-parallel rank; the last one may have fewer examples."""
        on_rank = -(-self.examples // data_ranks)
        return -(-on_rank // micro)
