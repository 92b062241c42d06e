"""GPT-NeoX, newest and v2.0, as its guide starts it: `deepy.py train.py -d configs tiny.yml`."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import library_text
from upstream_job import Place, UpstreamJob, free_port

HERE = Path(__file__).parent
LOSS = r"lm_loss(?: value)?: ([0-9.]+E[+-][0-9]+)"
TINY = {
    "pipe-parallel-size": 1,
    "model-parallel-size": 1,
    "num-layers": 2,
    "hidden-size": 32,
    "num-attention-heads": 4,
    "seq-length": 32,
    "max-position-embeddings": 32,
    "pos-emb": "rotary",
    "rotary-pct": 0.25,
    "no-weight-tying": True,
    "gpt-j-residual": True,
    "output-layer-parallelism": "column",
    "use_cpu_initialization": True,  # the same weights on every device
    "attention-dropout": 0,
    "hidden-dropout": 0,
    "optimizer": {"type": "Adam", "params": {"lr": 0.001, "betas": [0.9, 0.95], "eps": 1.0e-8}},
    "min_lr": 0.0001,
    "zero_optimization": {"stage": 0},
    "train_micro_batch_size_per_gpu": 2,
    "gradient_accumulation_steps": 2,
    "gradient_clipping": 1.0,
    "data-impl": "mmap",
    "split": "90,8,2",
    "tokenizer_type": "HFTokenizer",
    "train-iters": 6,
    "lr-decay-iters": 6,
    "lr-decay-style": "cosine",
    "distributed-backend": "nccl",
    "checkpoint-factor": 100,  # v2.0 asks for it also where nothing is saved
    "eval-interval": 3,
    "eval-iters": 1,
    "log-interval": 1,
    "num-workers": 0,
}


# As configs/bf16_125M.yml of v2.0 asks for it, which knows no other way; the newest's is its precision.
BFLOAT16 = {
    "newest": {"precision": "bfloat16"},
    "v2.0": {"fp16": {"enabled": True, "type": "bfloat16", "loss_scale": 0, "hysteresis": 2, "min_loss_scale": 1}},
}
STAGED = {"pipe_parallel_size": 2}
ZERO = {"zero_optimization": {"stage": 1, "reduce_scatter": True, "contiguous_gradients": True}}


def empty(folder: Path) -> str:
    """Remove what an earlier run has saved, which the first part of this one would load, and return the folder."""
    shutil.rmtree(folder, ignore_errors=True)
    return str(folder)


def version_of(code_base: str) -> str:
    """Return ``newest`` or ``v2.0``, for the name of a code base's folder."""
    return code_base.removeprefix("gpt-neox").lstrip("-") or "newest"


def settings(place: Place, ranks: int, changes: dict[str, Any]) -> str:
    """Return a whole configuration of GPT-NeoX, which reads it as YAML: there 1e-08 is a text, a number has a point."""
    data = library_text.write_tokens(place.shared)
    # The order of samples is made once, and kept beside the data.
    for kept in place.shared.glob("*_indexmap_*"):
        kept.unlink()
    precision = BFLOAT16[version_of(place.checkout.name)] if place.dtype == "bfloat16" else {"precision": "fp32"}
    paths = {"data-path": str(data), "vocab-file": str(place.shared / "tokenizer.json")}
    ranks_and_port = {"num_gpus": ranks, "global_num_gpus": ranks, "master_port": free_port()}
    whole = {**TINY, **paths, **precision, **ranks_and_port, **changes}
    return json.dumps(whole, indent=1).replace("1e-08", "1.0e-08")


def deepy(ranks: int, **changes: Any) -> Callable[[Place], Sequence[str]]:
    """Return the command of one training."""

    def command(place: Place) -> Sequence[str]:
        name = {key.replace("_", "-"): value for key, value in changes.items()}
        configuration = place.folder / "tiny.yml"
        # As on the guide's machines: with the line ends of Windows.
        configuration.write_text(settings(place, ranks, name), newline="\r\n")
        return [str(place.checkout / "deepy.py"), str(place.checkout / "train.py"), "-d", str(place.folder), "tiny.yml"]

    return command


# What 20B.yml has and no test machine holds; all else in it stays.
SMALL = {
    "model_parallel_size": 1,
    "num_layers": 2,
    "hidden_size": 32,
    "num_attention_heads": 4,
    "seq_length": 32,
    "max_position_embeddings": 32,
    "gradient_accumulation_steps": 2,
    "split": "90,8,2",
    "train_iters": 4,
    "lr_decay_iters": 4,
    "checkpoint_factor": 2,
    "eval_interval": 2,
    "eval_iters": 1,
    "log_interval": 1,
}


def its_own(configuration: str, ours: dict[str, Any], here: dict[str, Any]) -> Callable[[Place], Sequence[str]]:
    """Return the command of a configuration of its own, small, with ``ours``; what is ``here`` is in a second file."""

    def command(place: Place) -> Sequence[str]:
        import yaml

        saved = empty(place.folder / "its own checkpoints")  # load = save, as on the guide's first day
        paths = {
            "vocab_file": str(place.shared / "tokenizer.json"),
            "data_path": str(library_text.write_tokens(place.shared)),
            "save": saved,
            "load": saved,
        }
        theirs = yaml.safe_load((place.checkout / "configs" / configuration).read_text())
        whole = {**{name.replace("-", "_"): value for name, value in theirs.items()}, **SMALL, **paths, **ours}
        local = {"master_port": free_port(), "use_cpu_initialization": True, **here}
        (place.folder / configuration).write_text(yaml.safe_dump(whole))
        (place.folder / "local.yml").write_text(yaml.safe_dump(local))
        deepy_py, train_py = (str(place.checkout / name) for name in ("deepy.py", "train.py"))
        return [deepy_py, train_py, "-d", str(place.folder), configuration, "local.yml"]

    return command


GUIDES_20B = its_own("20B.yml", {"pipe_parallel_size": 2}, {"num_gpus": 2, "global_num_gpus": 2})
# As in the README: it names a hostfile that nobody has, and no devices. Many CPUs have no fp16 for DeepSpeed.
QUICK_START = its_own("125M.yml", {"fp16": None}, {"tokenizer_type": "HFTokenizer", "precision": "fp32"})


def in_two_parts(
    second: dict[str, Any], slim: bool = False, both: dict[str, Any] = ZERO
) -> Callable[[Place], Sequence[str]]:
    """Return the command of a training of three steps that is saved, and one that begins where it is saved.

    ``slim``: between them optimizer states are removed, as EleutherAI publishes weights. ``both`` are changes of both.
    """

    def command(place: Place) -> Sequence[str]:
        folder = empty(place.folder / "saved")
        first = {"train-iters": 3, "save": folder, "load": folder, "checkpoint-factor": 3}
        for name, changes in (("first.yml", first), ("second.yml", {"load": folder, **second})):
            (place.folder / name).write_text(settings(place, 2, {"pipe-parallel-size": 2, **both, **changes}))
        deepy_py, train_py = (str(place.checkout / name) for name in ("deepy.py", "train.py"))
        start = 'python "$1" "$2" -d "$3"'
        between = 'rm "$3"/saved/global_step3/*zero_pp_rank*' if slim else "true"
        line = f"{start} first.yml && {between} && {start} second.yml"
        return ["bash", "-c", line, "-", deepy_py, train_py, str(place.folder)]

    return command


def converted(tool: str, bound: str, stages: int) -> Callable[[Place], Sequence[str]]:
    """Return the command of a training that ends with an evaluation, the conversion of what it saved, and its check."""

    def command(place: Place) -> Sequence[str]:
        saved = empty(place.folder / "saved")
        # Not the part that transformers turns where none is given, 0.25.
        changes = {
            "train-iters": 3,
            "save": saved,
            "checkpoint-factor": 3,
            "rotary-pct": 0.5,
            "pipe-parallel-size": stages,
        }
        (place.folder / "tiny.yml").write_text(settings(place, stages, changes))
        line = (
            'python "$1/deepy.py" "$1/train.py" -d "$2" tiny.yml | tee "$2/printed.txt" && '
            f'python "$1/{tool}" --input_dir "$2/saved/global_step3" --config_file "$2/tiny.yml" --output_dir "$2/hf" '
            f'&& python "$3" "$2/hf" "$4" "$2/printed.txt" 8 {bound}'
        )
        words = ["bash", "-o", "pipefail", "-c", line, "-", str(place.checkout), str(place.folder)]
        return [*words, str(HERE / "converted.py"), str(library_text.write_tokens(place.shared))]

    return command


# Settings of Ascend's fork, as its configurations have them.
OF_THE_FORK = {"async_tensor_model_parallel_allreduce": True, "use_triangle_attn": True}
# From its default, 2**32, the loss scale would need more steps than these to come down.
SCALE = {"enabled": True, "loss_scale": 0, "initial_scale_power": 10, "hysteresis": 2, "min_loss_scale": 1}
FP16 = {"precision": "fp16", "fp16": SCALE}
FUSED = {"scaled_masked_softmax_fusion": True, "attention_softmax_in_fp32": True}


def jobs(code_base: str) -> tuple[UpstreamJob, ...]:
    """Return the jobs of one version."""
    version = version_of(code_base)

    # v2.0's tool reads what a pipeline saves, which v2.0 makes from two stages on, and writes 16 bits.
    tools = {"newest": ("tools/ckpts/convert_neox_to_hf.py", "1e-6", 1), "v2.0": ("tools/convert_to_hf.py", "1e-3", 2)}

    def job(
        name: str, command: Callable[[Place], Sequence[str]], nproc: int, bound: float = 1e-5, **more: Any
    ) -> UpstreamJob:
        return UpstreamJob(f"{version}-{name}", command, code_base, nproc, loss=LOSS, bound=bound, **more)

    return (
        job("one", deepy(1), 1),
        job("no-pipeline", deepy(1, pipe_parallel_size=0), 1),
        job("stages", deepy(2, **STAGED), 2),
        # As all configurations but 20B.yml have it; the pipeline engine then asks every how many steps.
        job("timed", deepy(2, **STAGED, wall_clock_breakdown=True, steps_per_print=10), 2),
        job("stages-and-model", deepy(4, **STAGED, model_parallel_size=2), 4),
        job("zero1", deepy(2, **ZERO, checkpoint_activations=True), 2),
        # Its own precision, whichever is asked of the run.
        job("fp16", deepy(2, **STAGED, **FP16), 2, 1e-3, dtypes=("float32",)),
        # In fp16, whichever precision is asked of the run.
        job("20B", GUIDES_20B, 2, 1e-3, dtypes=("float32",)),
        job("fused", deepy(1, **FUSED, finetune="False", **OF_THE_FORK), 1),
        # As all of its configurations for Pythia, Llama and Mistral have it; on a GPU it is flash_attn's own.
        job("flash", deepy(1, attention_config=[[["flash"], 2]]), 1, devices=("cpu", "npu-emulated")),
        job("stages-zero1", deepy(2, **STAGED, **ZERO), 2),
        replace(job("resume", in_two_parts({"train-iters": 6}), 2), resumes=f"{version}-stages-zero1"),
        job("finetune", in_two_parts({"train-iters": 3, "finetune": "True"}, slim=True), 2),
        # What it begins with is what it was given only if the optimizer takes its fp32 weights from it.
        job(
            "finetune-fp16", in_two_parts({"train-iters": 3, "finetune": True}, both=FP16), 2, 1e-3, dtypes=("float32",)
        ),
        # Compared with fp32.
        job("converted", converted(*tools[version]), tools[version][-1], dtypes=("float32",)),
    )


JOBS = (
    *jobs("gpt-neox"),
    *jobs("gpt-neox-v2.0"),
    UpstreamJob("newest-quick-start", QUICK_START, "gpt-neox", 1, loss=LOSS, dtypes=("float32",)),
)
