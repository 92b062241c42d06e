"""GLM 4f61ed72 through its own shell scripts, as its guide starts it."""

from __future__ import annotations

import json
import pickle
import shlex
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import library_text
import numpy
from upstream_job import Place, UpstreamJob, free_port

# Of its requirements.txt, what both scripts import.
NEEDS = ("tensorboardX", "boto3", "nltk", "sklearn", "pandas", "scipy", "unidecode")
LOSS = r"(?i)lm loss:? ([0-9.]+E[+-][0-9]+)"
MODEL = "--block-lm --num-layers 2 --hidden-size 32 --num-attention-heads 4 --max-position-embeddings 128"
TOKENIZER = "--tokenizer-type GPT2BPETokenizer --tokenizer-model-type gpt2 --task-mask"
NO_DROPOUT = "--hidden-dropout 0 --attention-dropout 0"


def configuration(place: Place, stage: int) -> Path:
    """Write DeepSpeed's part of the configuration."""
    made = {
        "train_micro_batch_size_per_gpu": 2,
        "gradient_accumulation_steps": 1,
        "steps_per_print": 100,
        "gradient_clipping": 1.0,
        "optimizer": {"type": "Adam", "params": {"lr": 1e-3, "weight_decay": 0.1, "betas": [0.9, 0.98], "eps": 1e-6}},
        "zero_optimization": {"stage": stage},
        "bf16": {"enabled": place.dtype == "bfloat16"},
    }
    path = place.folder / "ds.json"
    path.write_text(json.dumps(made))
    return path


def prepare(place: Place, script: str) -> None:
    """Lay the folder out as GLM's scripts expect it: the script beside the vocabulary."""
    library_text.write_tokenizer(place.folder / ".pytorch_pretrained_bert")
    link = place.folder / script
    if not link.is_symlink():
        link.symlink_to(place.checkout / script)


def write_lazy_corpus(place: Place) -> Path:
    """Write documents, and beside them the tokens that GLM would write, in the documents' order.

    GLM tokenizes in a hundred processes and keeps the order in which they finish, so that no two corpora of it, and
    no two losses, are equal.
    """
    corpus = library_text.write_documents(place.shared / "00.jsonl", length=1500)
    tokens = corpus.with_suffix(".lazy")
    if not tokens.exists():
        documents = [json.loads(line)["text"] for line in corpus.read_text().splitlines()]
        tokenizer = library_text.tokenizer(place.folder / ".pytorch_pretrained_bert")
        ids = [one.ids for one in tokenizer.encode_batch(documents)]
        tokens.mkdir()
        (tokens / "text").write_bytes(numpy.array([one for text in ids for one in text], numpy.int32).tobytes())
        (tokens / "text.len.pkl").write_bytes(pickle.dumps([len(text) for text in ids]))
        (tokens / "prompt").touch()
        (tokens / "prompt.len.pkl").write_bytes(pickle.dumps([0] * len(ids)))
    return corpus


def write_documents(place: Place) -> Path:
    """Write documents that GLM tokenizes itself."""
    return library_text.write_documents(place.shared / "tokenized_by_glm.jsonl", length=1500)


def pretrain(
    ranks: int,
    model_parallel: int,
    stage: int = 0,
    more: str = "",
    iterations: int = 5,
    sourced: str = "tiny.sh",
    recomputed: bool = True,
    write_corpus: Callable[[Place], Path] = write_lazy_corpus,
) -> Callable[[Place], Sequence[str]]:
    """Return the command of scripts/ds_pretrain_nvidia.sh with a tiny model in the configuration that it sources."""

    def command(place: Place) -> Sequence[str]:
        prepare(place, "pretrain_glm.py")
        corpus = write_corpus(place)
        options = f"""\
            {MODEL} {TOKENIZER} {NO_DROPOUT} --bert-prob 0.5 --gap-sentence-prob 0.3 --avg-block-length 3
            --gpt-min-ratio 0.25 --block-mask-prob 0.1 --short-seq-prob 0.02 --experiment-name tiny
            --model-parallel-size {model_parallel} --seq-length 64 --train-iters {iterations} --log-interval 1
            --eval-interval 1000 --eval-iters 1 --resume-dataloader --train-data {corpus} --no-lazy-loader
            --num-workers 0 --split 949,50,1 --distributed-backend nccl --lr 1e-3 --lr-decay-style cosine
            --lr-decay-iters 10 --warmup 0 --save {place.folder / "saved"} {more}
            {"--checkpoint-activations" if recomputed else ""}
            --deepspeed --deepspeed_config {configuration(place, stage)}"""
        words = " ".join(options.split())
        settings = place.folder / sourced
        settings.write_text(f'NUM_WORKERS=1\nNUM_GPUS_PER_WORKER={ranks}\ngpt_options="{words}"\n')
        return ["bash", str(place.checkout / "scripts" / "ds_pretrain_nvidia.sh"), str(settings)]

    return command


def in_two_parts(more: str) -> Callable[[Place], Sequence[str]]:
    """Return the command of a pretraining of three steps, and one of five that loads what it saved, with ``more``."""

    def command(place: Place) -> Sequence[str]:
        shutil.rmtree(
            place.folder / "saved", ignore_errors=True
        )  # its name has the time in it, and must be the only one
        first = pretrain(1, 1, iterations=3, sourced="first.sh")(place)
        load = f"--load $(ls -d {place.folder}/saved/tiny*) {more}"
        return ["bash", "-c", f"{shlex.join(first)} && {shlex.join(pretrain(1, 1, more=load)(place))}"]

    return command


CHOICES = (
    ("The file was empty.", "The reader returned nothing.", "The reader was slow.", "effect", 0),
    ("The module was imported twice.", "It ran twice.", "It ran once.", "effect", 1),
    ("The test failed.", "The value was wrong.", "The value was right.", "cause", 0),
    ("The lock was held.", "A thread waited.", "A thread continued.", "effect", 0),
)


def write_questions(place: Place, times: int) -> Path:
    """Write a set in COPA's format, its questions repeated."""
    data = place.folder / "COPA"
    data.mkdir(exist_ok=True)
    names = ("premise", "choice1", "choice2", "question", "label")
    rows = [{**dict(zip(names, row, strict=True)), "idx": number} for number, row in enumerate(CHOICES * times)]
    for name in ("train", "val", "test"):
        (data / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return data


def finetune_by_script(place: Place) -> Sequence[str]:
    """Return the command of scripts/ds_finetune_superglue.sh, which has eight ranks and fp16 in it."""
    prepare(place, "finetune_glm.py")
    tasks = place.folder / "config_tasks"
    tasks.mkdir(exist_ok=True)
    (tasks / "config_blocklm_10B.json").write_text(
        json.dumps({**json.loads(configuration(place, 2).read_text()), "fp16": {"enabled": True, "loss_scale": 1024}})
    )
    (tasks / "model.sh").write_text(f'MODEL_ARGS="{MODEL} {TOKENIZER} {NO_DROPOUT}"\nMODEL_TYPE=tiny\n')
    train = "--lr-decay-style linear --warmup 0.1"
    common = (
        f"--log-interval 1 --eval-interval 1000 --eval-iters 1 --save-interval 10000 --save {place.folder}/finetuned"
    )
    settings = {
        "EXPERIMENT_NAME": "copa",
        "TASK_NAME": "COPA",
        "DATA_PATH": str(write_questions(place, 8)),
        "MAX_SEQ_LEN": 64,
        "XXLARGE_EPOCH": 2,
        "TRAIN_ARGS": train,
        "COMMON_ARGS": common,
    }
    (tasks / "task.sh").write_text("".join(f'{name}="{value}"\n' for name, value in settings.items()))
    script = place.checkout / "scripts" / "ds_finetune_superglue.sh"
    return ["bash", str(script), str(tasks / "model.sh"), str(tasks / "task.sh")]


def finetune(ranks: int, model_parallel: int) -> Callable[[Place], Sequence[str]]:
    """Return the command of a pretraining, and of a finetune for COPA of what it saved."""

    def command(place: Place) -> Sequence[str]:
        first = pretrain(ranks, model_parallel)(place)
        prepare(place, "finetune_glm.py")
        data = write_questions(place, 1)
        options = f"""\
            {MODEL} {TOKENIZER} {NO_DROPOUT} --cloze-eval --finetune --task COPA --data-dir {data} --seq-length 64
            --experiment-name copa --save {place.folder / "finetuned"} --checkpoint-activations --eval-batch-size 4
            --model-parallel-size {model_parallel} --num-workers 0 --no-load-optim --no-load-lr-scheduler
            --lr-decay-style linear --warmup 0.1 --pattern-id 0 --epochs 2 --log-interval 1 --eval-interval 1000
            --eval-iters 1 --save-interval 10000 --save-epoch 1000 --overwrite --distributed-backend nccl
            --deepspeed --deepspeed_config {place.folder / "ds.json"}"""
        started = f"deepspeed --num_gpus {ranks} --master_port {free_port()}"
        second = f"{started} finetune_glm.py {' '.join(options.split())}"
        script = place.folder / "finetune.sh"
        script.write_text(f'{shlex.join(first)} && {second} --load-pretrained "$(ls -d saved/tiny*)"\n')
        return ["bash", str(script)]

    return command


def job(name: str, command: Callable[[Place], Sequence[str]], ranks: int) -> UpstreamJob:
    return UpstreamJob(name, command, "GLM", ranks, loss=LOSS, bound=1e-5, needs=NEEDS)


JOBS = (
    job("pretrain", pretrain(1, 1), 1),
    job("pretrain-tokenized-by-glm", pretrain(1, 1, write_corpus=write_documents), 1),
    job("pretrain-model-parallel", pretrain(2, 2), 2),
    # Not to the losses of the uninterrupted one: GLM does not save the state that its masks are drawn from.
    job("pretrain-resumed", in_two_parts(""), 1),
    job("pretrain-from-weights", in_two_parts("--no-deepspeed-load --no-load-optim --no-load-lr-scheduler"), 1),
    # COPA's loss is a small difference of logits: in bfloat16 it has one digit.
    replace(job("finetune", finetune(1, 1), 1), dtypes=("float32",)),
    replace(job("finetune-model-parallel", finetune(2, 2), 2), dtypes=("float32",)),
    job("pretrain-zero1", pretrain(2, 1, stage=1, more="--deepspeed-activation-checkpointing"), 2),
    replace(
        job("finetune-script", finetune_by_script, 8),
        devices=("cpu", "npu-emulated"),  # a GPU for each of eight ranks
        dtypes=("float32",),  # the script says --fp16
        bound=1e-2,
    ),
)
