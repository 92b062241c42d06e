"""Data of GLM's recipe: vocabulary, training texts with blanks, and the examples of a task.

Source of the derivations: THUDM/GLM@4f61ed72 arguments.py, configure_data.py and finetune_glm.py.
"""

from __future__ import annotations

from pathlib import Path

from ascend_adapt import regular_files
from ascend_adapt.config.glm_config import MULTI_TOKEN, BlankInfilling, Cloze, GlmVocabulary
from ascend_adapt.config.train_config import Batch, Data
from ascend_adapt.errors import ConfigError
from ascend_adapt.recipes.options import Options

LANGUAGE_MODELS = ("/mnt/lid.176.bin", "/dataset/fd5061f6/english_data/lid.176.bin", "lid.176.bin")
"""Paths of fastText's language identification model: where GLM expects it, and where its guide puts it."""
_VOCABULARY = Path(".pytorch_pretrained_bert")


def vocabulary(options: Options) -> GlmVocabulary:
    """GPT-2's vocabulary with GLM's own symbols; raises ConfigError."""
    kind = options("tokenizer_model_type", "gpt2")
    folder = _VOCABULARY if kind == "gpt2" else Path(kind)
    names = ("gpt2-vocab.json", "gpt2-merges.txt") if kind == "gpt2" else ("vocab.json", "merges.txt")
    words, merges = files = [folder / name for name in names]
    for file in files:
        if not file.is_file():
            raise ConfigError(
                f"{file}: no such file, expected GPT-2's vocabulary and merges — run in GLM's folder, or give "
                "a folder with vocab.json and merges.txt as --tokenizer-model-type"
            )
    uses_blocks = options("block_mask_prob") > 0 or options("context_mask_ratio") > 0
    return GlmVocabulary(
        str(words.absolute()), str(merges.absolute()), task_mask=options("task_mask"), decoder_mask=uses_blocks
    )


def data(options: Options, vocabulary: GlmVocabulary, cloze: Cloze | None, cache: str | None) -> Data:
    """Training texts, and how blanks in them are chosen; raises ConfigError."""
    length = options.size("seq_length")
    if cloze is not None:
        return Data(train=(), seq_length=length, split="1", seed=options("seed"), num_workers=0)
    texts = {name: tuple(map(str, options(name, ()))) for name in ("train_data", "valid_data", "test_data")}
    if not texts["train_data"]:
        raise ConfigError("--train-data: is not given, expected .jsonl files or folders of them — add it")
    return Data(
        train=texts["train_data"],
        valid=texts["valid_data"],
        test=texts["test_data"],
        seq_length=length,
        split=options("split"),
        seed=options("seed"),
        num_workers=options("num_workers"),
        cache=cache,
        blanks=_blanks(options, vocabulary),
    )


def _blanks(options: Options, vocabulary: GlmVocabulary) -> BlankInfilling:
    return BlankInfilling(
        vocabulary=vocabulary,
        bert_prob=options("bert_prob"),
        gap_sentence_prob=options("gap_sentence_prob"),
        gap_sentence_ratio=options("gap_sentence_ratio"),
        gpt_infill_prob=options("gpt_infill_prob"),
        gpt_min_ratio=options("gpt_min_ratio"),
        average_block_length=options("avg_block_length"),
        short_seq_prob=options("short_seq_prob"),
        single_span_prob=options("single_span_prob"),
        block_mask_prob=options("block_mask_prob"),
        context_mask_ratio=options("context_mask_ratio"),
        shuffle_blocks=not options("no_shuffle_block"),
        block_positions=not options("no_block_position"),
        random_position=options("random_position"),
        non_sentence_start=options("non_sentence_start"),
        sample_one_document=options("sample_one_document"),
        random_samples=options("shuffle"),
        language_model=_language_model() if options("filter_english") else None,
    )


def _language_model() -> str:
    found = next((path for path in LANGUAGE_MODELS if Path(path).is_file()), None)
    if found is None:
        raise ConfigError(
            "--filter-english: fastText's lid.176.bin was not found, expected it in the working folder — "
            "put it there, or leave the option out"
        )
    return str(Path(found).absolute())


def cloze(options: Options, vocabulary: GlmVocabulary, batch: Batch) -> Cloze:
    """Examples of the finetuning task; raises ConfigError."""
    task, folder = options("task").lower(), options.required("data_dir")
    if options("multi_token") and task not in MULTI_TOKEN:
        raise ConfigError(f"--multi-token: with {task}, whose answers are single tokens — leave it out")
    file = Path(folder) / "train.jsonl"
    if not file.is_file():
        raise ConfigError(f"{file}: no such file, expected the training examples of {task} — correct --data-dir")
    lines = sum(1 for line in regular_files.read_bytes(file).splitlines() if line.strip())
    return Cloze(
        task=task,
        folder=str(Path(folder).absolute()),
        vocabulary=vocabulary,
        # COPA's examples are also trained on with their choices swapped.
        examples=2 * lines if task == "copa" else lines,
        epochs=options.size("epochs"),
        pattern=options("pattern_id"),
        loss=options("loss_func"),
        length_penalty=options("length_penalty"),
        metric=options("validation_metric"),
        eval_micro=options("eval_batch_size", 0),
        eval_epochs=options("eval_epoch"),
        block_positions=not options("no_block_position"),
        validates=not options("no_validation"),
        tests_validation_set=options("eval_valid"),
    )
