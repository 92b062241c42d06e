"""Both Megatron-DeepSpeed, by the scripts of the guide "Megatron+Deepspeed-Pretrain-GPT2" with a small model."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Sequence
from pathlib import Path

from upstream_job import Place, UpstreamJob, free_port

HERE = Path(__file__).parent
DEEPSPEEDAI, BIGSCIENCE = "Megatron-DeepSpeed", "bigscience-Megatron-DeepSpeed"
END = "<|endoftext|>"
LOSS = r"lm loss: ([0-9.E+-]+)"
VOCABULARY = 1000


def data(place: Place) -> tuple[str, str, str]:
    """Begin anew, and return the data path, the vocabulary and the merges: Python's own library, tokenized once."""
    # Both scripts load what they find where they save.
    shutil.rmtree(place.folder / "checkpoints", ignore_errors=True)
    folder = place.shared / "data"
    # The order of samples is made once, and kept beside the data.
    shutil.rmtree(folder / "index-cache", ignore_errors=True)
    for kept in folder.glob("*_indexmap_*"):
        kept.unlink()
    prefix, vocabulary, merges = folder / "meg-gpt2", folder / "vocab.json", folder / "merges.txt"
    if not (folder / "done").exists():
        folder.mkdir(parents=True, exist_ok=True)
        library = Path(sysconfig.get_paths()["stdlib"])
        texts = [path.read_text(encoding="utf-8", errors="replace") for path in sorted(library.glob("a*.py"))[:12]]
        # Short documents, so that every sequence has an end of a document in it.
        documents = [piece for text in texts for piece in text.split("\n\n") if piece.strip()]
        (folder / "text.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in documents))
        _train_tokenizer(documents, folder)
        words = ["preprocess", "--input", str(folder / "text.jsonl"), "--output-prefix", str(prefix)]
        words += ["--vocab", str(vocabulary), "--merge-file", str(merges), "--tokenizer-type", "GPT2BPETokenizer"]
        words += ["--append-eod", "--dataset-impl", "mmap", "--workers", "1"]
        subprocess.run([sys.executable, "-m", "ascend_adapt.cli", *words], check=True, capture_output=True)
        (folder / "done").touch()
    return f"{prefix}_text_document", str(vocabulary), str(merges)


def _train_tokenizer(texts: Sequence[str], folder: Path) -> None:
    from tokenizers import ByteLevelBPETokenizer

    trained = ByteLevelBPETokenizer()
    trained.train_from_iterator(texts, vocab_size=VOCABULARY - 1, special_tokens=[END], show_progress=False)
    trained.save_model(str(folder))


def by_torch(ranks: int, *arguments: str) -> Callable[[Place], Sequence[str]]:
    """Return the command of the guide's first script, which has torch.distributed.launch in it."""

    def command(place: Place) -> Sequence[str]:
        script = str(HERE / "pretrain_gpt2.sh")
        words = ["bash", script, str(place.checkout), *data(place), str(ranks), str(free_port())]
        return [*words, *_in_the_ranks(place), *arguments, *_precision(place)]

    return command


def by_deepspeed(ranks: int, stage: int, *arguments: str, engine: bool = True) -> Callable[[Place], Sequence[str]]:
    """Return the command of the guide's second script, which has the deepspeed launcher in it.

    As the guide has it, without ``engine``, DeepSpeed starts the ranks and does not train.
    """

    def command(place: Place) -> Sequence[str]:
        configuration = deepspeed_configuration(place, stage)
        script = str(HERE / "pretrain_gpt2_deepspeed.sh")
        words = ["bash", script, str(place.checkout), *data(place), str(ranks), str(free_port()), configuration]
        used = ["--deepspeed", "--zero-stage", str(stage)] if engine else []
        return [*words, *used, *_in_the_ranks(place), *arguments, *_precision(place), *_model(place)]

    return command


def deepspeed_configuration(place: Place, stage: int) -> str:
    """Write DeepSpeed's configuration for a ZeRO stage into the place, and return its path."""
    configuration = place.folder / "deepspeed_config.json"
    content: dict[str, object] = {
        "train_micro_batch_size_per_gpu": place.model.micro_batch if place.model else 2,
        "train_batch_size": 4 * place.model.micro_batch if place.model else 8,
        "steps_per_print": 100,
        "gradient_clipping": 1.0,
        "zero_optimization": {"stage": stage},
    }
    if place.dtype == "bfloat16":
        content["bf16"] = {"enabled": True}
    configuration.write_text(json.dumps(content))
    return str(configuration)


def without_a_shell_script(*arguments: str, launcher: Sequence[str] = ()) -> Callable[[Place], Sequence[str]]:
    """Return the code base's pretrain_gpt.py with ZeRO 1, started by ascend-run itself or by ``launcher``."""

    def command(place: Place) -> Sequence[str]:
        engine = ["--deepspeed", "--zero-stage", "1", "--deepspeed_config", deepspeed_configuration(place, 1)]
        script = [*launcher, str(place.checkout / "pretrain_gpt.py")]
        return [*script, *training(place), *engine, "--checkpoint-activations", *arguments, *_precision(place)]

    return command


def without_the_engine(*arguments: str) -> Callable[[Place], Sequence[str]]:
    """Return a script of our own that trains with Megatron's optimizers, as a user's own script would."""

    def command(place: Place) -> Sequence[str]:
        return [str(HERE / "train.py"), *training(place), *arguments, *_precision(place)]

    return command


def training(place: Place) -> list[str]:
    """Return the arguments of a tiny model and a few steps, for a script that ascend-run starts as ranks."""
    prefix, vocabulary, merges = data(place)
    model = {"num-layers": 2, "hidden-size": 64, "num-attention-heads": 4}
    length = {"seq-length": 32, "max-position-embeddings": 32}
    batch = {"micro-batch-size": 2, "global-batch-size": 8, "train-iters": 8}
    text = {"data-path": prefix, "vocab-file": vocabulary, "merge-file": merges, "data-impl": "mmap"}
    rate = {"lr": 1.5e-3, "min-lr": 1e-5, "lr-decay-style": "cosine", "lr-decay-iters": 320, "clip-grad": 1.0}
    reported = {"log-interval": 1, "eval-interval": 100, "eval-iters": 1, "split": "949,50,1"}
    valued = {**model, **length, **batch, **text, **rate, **reported}
    words = [word for name, value in valued.items() for word in (f"--{name}", str(value))]
    return [*words, *_in_the_ranks(place)]


def _in_the_ranks(place: Place) -> list[str]:
    """Arguments by which the ranks read data themselves: six more processes for each are slow on few cores."""
    words = ["--num-workers", "0"]
    return words + (["--valid-num-workers", "0"] if place.checkout.name == BIGSCIENCE else [])


def _model(place: Place) -> list[str]:
    """Arguments that replace those in the scripts, and pad the vocabulary to GPT-2's."""
    if (model := place.model) is None:
        return []
    sizes = {"num-layers": model.layers, "hidden-size": model.hidden, "num-attention-heads": model.heads}
    length = {"seq-length": model.length, "max-position-embeddings": model.length}
    batch = {"micro-batch-size": model.micro_batch, "global-batch-size": 4 * model.micro_batch}
    run = {"train-iters": model.steps, "lr": 3e-4, "make-vocab-size-divisible-by": 50304 // 2}
    valued = {**sizes, **length, **batch, **run}
    return [word for name, value in valued.items() for word in (f"--{name}", str(value))]


def _precision(place: Place) -> list[str]:
    return ["--bf16"] if place.dtype == "bfloat16" else []


def job(
    name: str,
    code_base: str,
    command: Callable[[Place], Sequence[str]],
    ranks: int = 2,
    bound: float = 1e-4,
    path: Callable[[Place], str] | None = None,
    fp16: bool = False,
) -> UpstreamJob:
    """Return one job, ``fp16`` of its own precision; Megatron prints seven digits of a loss."""
    return UpstreamJob(
        name,
        command,
        code_base=code_base,
        nproc=ranks,
        devices=("cpu", "npu-emulated", "cuda"),
        dtypes=("float32",) if fp16 else ("float32", "bfloat16"),
        loss=LOSS,
        bound=bound,
        path=path,
        any_model=code_base == DEEPSPEEDAI and path is None,
        variables={"CUDA_DEVICE_MAX_CONNECTIONS": "1"},
    )


# Devices draw other random numbers: what is compared between them draws none.
SAME = ("--use-cpu-initialization", "--hidden-dropout", "0", "--attention-dropout", "0")
# Checkpointing of activations without the pipeline needs a method, or deepspeedai raises.
NO_PIPE = ("--no-pipeline-parallel", "--recompute-method", "uniform")
TP2 = ("--tensor-model-parallel-size", "2")
PP2 = ("--pipeline-model-parallel-size", "2")
FP16 = ("--fp16", "--initial-loss-scale", "1024")
RESET = ("--reset-attention-mask", "--reset-position-ids")
# Megatron's own distributed optimizer is for 16 bits.
SHARDS = (*FP16, "--use-distributed-optimizer")

TORCHRUN = ("torchrun", "--nproc-per-node", "2", "--standalone")


def checkout(place: Place) -> str:
    """Return the code base's folder, for a script of our own."""
    return str(place.checkout)


JOBS = (
    job("deepspeedai-zero1", DEEPSPEEDAI, by_deepspeed(2, 1, *NO_PIPE, *SAME)),
    # Below zero.Init even the initialization on the CPU draws its numbers on the device.
    job("deepspeedai-by-ascend-run", DEEPSPEEDAI, without_a_shell_script(*NO_PIPE, *SAME)),
    job("deepspeedai-by-torchrun", DEEPSPEEDAI, without_a_shell_script(*NO_PIPE, *SAME, launcher=TORCHRUN)),
    job("deepspeedai-zero3", DEEPSPEEDAI, by_deepspeed(2, 3, *NO_PIPE, *SAME), bound=1e-2),
    job("deepspeedai-tp2", DEEPSPEEDAI, by_deepspeed(2, 1, *NO_PIPE, *TP2, *SAME)),
    job("deepspeedai-pp2", DEEPSPEEDAI, by_deepspeed(2, 1, *PP2, *SAME)),
    job("deepspeedai-engineless", DEEPSPEEDAI, without_the_engine(*SAME), path=checkout),
    job(
        "deepspeedai-engineless-reset",
        DEEPSPEEDAI,
        without_the_engine(*SAME, *FP16, *RESET),
        path=checkout,
        bound=1e-3,
        fp16=True,
    ),
    job(
        "deepspeedai-engineless-shards",
        DEEPSPEEDAI,
        without_the_engine(*SAME, *SHARDS),
        path=checkout,
        bound=1e-3,
        fp16=True,
    ),
    job("bigscience-one", BIGSCIENCE, by_torch(1, *SAME), ranks=1),
    job("bigscience-one-zero1", BIGSCIENCE, by_deepspeed(1, 1, *SAME), ranks=1),
    job("bigscience-tp2", BIGSCIENCE, by_torch(2, *TP2, *SAME)),
    job("bigscience-reset", BIGSCIENCE, by_torch(1, *RESET, *SAME), ranks=1),
    job("bigscience-reset-zero1", BIGSCIENCE, by_deepspeed(1, 1, *RESET, *SAME), ranks=1),
    job("bigscience-second-script", BIGSCIENCE, by_deepspeed(2, 3, *TP2, *SAME, engine=False)),
    job("bigscience-zero1-tp2", BIGSCIENCE, by_deepspeed(2, 1, *TP2, *SAME)),
    job("bigscience-pp2", BIGSCIENCE, by_deepspeed(2, 1, *PP2, *SAME)),
    # From its default, 2**32, the loss scale would need more steps than these to come down.
    job("bigscience-fp16", BIGSCIENCE, by_torch(2, *TP2, *SAME, *FP16), bound=1e-3, fp16=True),
    job("bigscience-dropout", BIGSCIENCE, by_torch(2, *TP2), bound=1e-2),
    job("deepspeedai-dropout", DEEPSPEEDAI, by_deepspeed(2, 1, *NO_PIPE, *TP2), bound=1e-2),
)
