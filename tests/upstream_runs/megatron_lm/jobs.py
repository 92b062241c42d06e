"""Megatron-LM's own pretrain_gpt.py at three tags: tensor and pipeline parallel, distributed optimizer, resumed."""

from __future__ import annotations

import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence

import tokens
from upstream_job import Place, UpstreamJob

TAGS = ("0.12.0", "0.14.0", "0.19.0")
LAYOUTS = {"tp2": (2, 1), "pp2": (1, 2), "tp2-pp2": (2, 2)}
STEPS = 6
MODEL = {
    "num-layers": 2,
    "hidden-size": 128,
    "num-attention-heads": 4,
    "seq-length": 64,
    "max-position-embeddings": 64,
    "transformer-impl": "local",
    "attention-dropout": 0,
    "hidden-dropout": 0,
}
TRAINING = {
    "micro-batch-size": 2,
    "global-batch-size": 4,
    "train-iters": STEPS,
    "lr": 1e-3,
    "min-lr": 1e-4,
    "lr-decay-iters": STEPS,
    "lr-warmup-iters": 1,
    "weight-decay": 0.1,
    "clip-grad": 1.0,
    "eval-iters": 1,
    "eval-interval": 100,
    "log-interval": 1,
    "split": "98,1,1",
    "num-workers": 0,
    "seed": 1234,
}
SWITCHES = (
    "use-cpu-initialization",  # the same weights on every device
    "use-distributed-optimizer",
    "recompute-activations",
    # TransformerEngine and apex are not installed, as on an NPU.
    "no-persist-layer-norm",
    "no-gradient-accumulation-fusion",
)


def flags(place: Place, layout: str, more: Mapping[str, object]) -> list[str]:
    """Return the arguments of pretrain_gpt.py."""
    tensor, pipeline = LAYOUTS[layout]
    parallel = {"tensor-model-parallel-size": tensor, "pipeline-model-parallel-size": pipeline}
    # Newer tags look for GPT-2's vocabulary on the network; this one has its ids, and its end of a document.
    text = {
        "data-path": tokens.python_library(place.shared),
        "tokenizer-type": "NullTokenizer",
        "vocab-size": tokens.VOCABULARY - 1,
    }
    valued = {**MODEL, **TRAINING, **parallel, **text, **more}
    words = [word for name, value in valued.items() for word in (f"--{name}", str(value))]
    return [*words, *(f"--{one}" for one in SWITCHES), *(["--bf16"] if place.dtype == "bfloat16" else [])]


def pretrain(place: Place, layout: str) -> Sequence[str]:
    """Return pretrain_gpt.py, run through."""
    return [str(place.checkout / "pretrain_gpt.py"), *flags(place, layout, {"data-cache-path": place.folder / "index"})]


def resumed(place: Place, layout: str) -> Sequence[str]:
    """Return a shell script that stops after half of the steps, after a save, and resumes from there."""
    tensor, pipeline = LAYOUTS[layout]
    kept = place.folder / "checkpoints"
    shutil.rmtree(kept, ignore_errors=True)  # of a run before: this one starts from scratch
    more = {"data-cache-path": place.folder / "index", "save": kept, "load": kept, "save-interval": STEPS // 2}
    processes = f"--nproc-per-node={tensor * pipeline}"
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", processes]
    lines = ["set -e"]
    for half in ({"exit-interval": STEPS // 2}, {}):
        script = [str(place.checkout / "pretrain_gpt.py"), *flags(place, layout, {**more, **half})]
        lines.append(shlex.join([*torchrun, *script]))
    path = place.folder / "pretrain.sh"
    path.write_text("\n".join(lines) + "\n")
    return ["bash", str(path)]


def job(tag: str, layout: str, what: str = "") -> UpstreamJob:
    """Return one tag in one layout of ranks."""
    tensor, pipeline = LAYOUTS[layout]
    command = resumed if what == "resumed" else pretrain
    return UpstreamJob(
        "-".join(filter(None, (tag, layout, what))),
        lambda place: command(place, layout),
        code_base=f"Megatron-LM-{tag}",
        nproc=tensor * pipeline,
        loss=r"lm loss: ([0-9.E+-]+)",
        bound=1e-5,
        resumes=f"{tag}-{layout}" if what == "resumed" else "",
        # Megatron's own scripts set it.
        variables={"CUDA_DEVICE_MAX_CONNECTIONS": "1"},
    )


JOBS = (
    *(job(tag, layout) for tag in TAGS for layout in ("tp2", "pp2")),
    *(job(tag, "tp2", "resumed") for tag in TAGS),
    job(TAGS[-1], "tp2-pp2"),
)
