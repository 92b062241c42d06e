"""Checkpoints of unmodified code bases beside the native model, and conversions of them loaded by upstream again.

    python checkpoints.py FOLDER save [NAME ...]       train a few steps of each code base and keep what it saves
    python checkpoints.py FOLDER compare [NAME ...]    the loss that upstream printed for its weights, and the native
    python checkpoints.py FOLDER back [NAME ...]       upstream's first loss from its own and a converted checkpoint

Code bases are read from ASCEND_ADAPT_UPSTREAMS, as in run.py. Exit code 1 if losses are further apart than BOUND.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tokens
import torch
import upstream_job
from gpt_neox import jobs as neox
from megatron_deepspeed import jobs as megatron_deepspeed
from megatron_lm import jobs as megatron_lm
from upstream_job import Place, UpstreamJob

from ascend_adapt.checkpoint.detection import open_checkpoint
from ascend_adapt.convert.native_logits import native_logits
from ascend_adapt.data.torch_dataset import gpt_dataset

BOUND = 1e-6
SEQUENTIAL = {"pipe_parallel_size": 0}
PLAIN = {"gpt_j_residual": False}
TIED = {"no_weight_tying": False, "pos_emb": "learned", **PLAIN}
GATED = {"norm": "rmsnorm", "activation": "swiglu", "num_kv_heads": 2, "intermediate_size": 96, **PLAIN}
V2 = "gpt-neox-v2.0"


@dataclass(frozen=True)
class Case:
    """A code base, its settings, and the settings in which it loads what ``convert`` makes of its checkpoint."""

    code_base: str
    ranks: int
    settings: dict[str, Any] = field(default_factory=dict)
    arguments: tuple[str, ...] = ()
    back: tuple[int, dict[str, Any], tuple[str, ...]] | None = None


CASES = {
    "neox": Case("gpt-neox", 2, {"model_parallel_size": 2}, back=(1, {}, ())),
    "neox-plain": Case("gpt-neox", 2, {"model_parallel_size": 2, **PLAIN}),
    "neox-tied": Case(
        "gpt-neox",
        2,
        {"pipe_parallel_size": 2, **neox.ZERO, **TIED},
        back=(2, {"model_parallel_size": 2, **TIED}, ("--tp", "2")),
    ),
    "neox-sequential": Case(
        "gpt-neox",
        1,
        {**SEQUENTIAL, "bias_gelu_fusion": True},
        back=(2, {**SEQUENTIAL, "model_parallel_size": 2, "bias_gelu_fusion": True}, ("--tp", "2", "--pp", "0")),
    ),
    "neox-gated": Case("gpt-neox", 2, {"model_parallel_size": 2, **GATED}, back=(1, GATED, ())),
    "neox-v2": Case(
        V2,
        4,
        {"model_parallel_size": 2, "pipe_parallel_size": 2},
        back=(2, {"pipe_parallel_size": 2}, ("--pp", "2", "--upstream-version", "v2.0")),
    ),
    "neox-v2-tied": Case(V2, 2, {"model_parallel_size": 2, **TIED}),
    "bigscience": Case(megatron_deepspeed.BIGSCIENCE, 2, arguments=megatron_deepspeed.TP2),
    "bigscience-pipeline": Case(megatron_deepspeed.BIGSCIENCE, 2, arguments=megatron_deepspeed.PP2),
    "bigscience-zero1": Case(megatron_deepspeed.BIGSCIENCE, 2, {"engine": True}, megatron_deepspeed.TP2),
    **{
        f"megatron-{tag}-{layout}": Case(f"Megatron-LM-{tag}", 2, {"layout": layout, "ckpt-format": kind})
        for tag in ("0.12.0", "0.19.0")
        for layout, kind in (("tp2", "torch_dist"), ("pp2", "torch"))
    },
}


def job(case: Case, ranks: int, command: Callable[[Place], Sequence[str]]) -> UpstreamJob:
    """Return a job of the case's code base."""
    loss = neox.LOSS if case.code_base.startswith("gpt-neox") else megatron_deepspeed.LOSS
    return UpstreamJob("x", command, case.code_base, ranks, loss=loss, variables={"CUDA_DEVICE_MAX_CONNECTIONS": "1"})


def saving(case: Case, place: Place) -> Sequence[str]:
    """Return the command that trains a few steps, saves and evaluates."""
    saved = place.folder / "saved"
    if case.code_base.startswith("gpt-neox"):
        more = {"train-iters": 3, "save": str(saved), "checkpoint-factor": 3, "rotary-pct": 0.5}
        return deepy(place, case.ranks, {**more, **spelled(case.settings)})
    if case.code_base == megatron_deepspeed.BIGSCIENCE:
        words = (*case.arguments, *megatron_deepspeed.SAME, "--eval-iters", "1", "--save", str(saved))
        if case.settings:
            return megatron_deepspeed.by_deepspeed(case.ranks, 1, *words)(place)
        return megatron_deepspeed.by_torch(case.ranks, *words)(place)
    more = {"data-cache-path": place.folder / "index", "save": saved, "save-interval": 3, "train-iters": 3}
    more |= {"ckpt-format": case.settings["ckpt-format"]}
    return [str(place.checkout / "pretrain_gpt.py"), *megatron_lm.flags(place, case.settings["layout"], more)]


def deepy(place: Place, ranks: int, changes: dict[str, Any]) -> Sequence[str]:
    """Return GPT-NeoX's command with these settings."""
    (place.folder / "tiny.yml").write_text(neox.settings(place, ranks, changes))
    scripts = [str(place.checkout / name) for name in ("deepy.py", "train.py")]
    return [*scripts, "-d", str(place.folder), "tiny.yml"]


def spelled(settings: dict[str, Any]) -> dict[str, Any]:
    """Return settings in the spelling of TINY, which has some with dashes."""
    return {name if name in neox.TINY else name.replace("_", "-"): value for name, value in settings.items()}


def samples(name: str, case: Case, folder: Path) -> list[dict[str, torch.Tensor]]:
    """Return the samples of the first batch that upstream validates with."""
    shared = folder / "shared" / case.code_base
    if case.code_base.startswith("gpt-neox"):
        prefix, length, split, dialect, count = shared / "text_text_document", 32, "90,8,2", "neox", 4
    elif case.code_base == megatron_deepspeed.BIGSCIENCE:
        prefix, length, split, dialect, count = (
            *(shared / "data/meg-gpt2_text_document", 32),
            *("949,50,1", "bigscience", 8),
        )
    else:
        prefix, length, split, dialect, count = tokens.python_library(shared), 64, "98,1,1", "mcore", 4
    data, _ = gpt_dataset(
        str(prefix), seq_length=length, num_samples=(None, 8, None), part="valid", split=split, dialect=dialect
    )
    return [data[number] for number in range(count)]


def compare(name: str, case: Case, folder: Path) -> bool:
    """Print upstream's validation loss and the native model's; return whether they are equal."""
    place = folder / name
    printed = "".join(one.read_text() for one in (place / "output.txt", *sorted(place.glob("run/rank-*.log"))))
    theirs = float(re.findall(r"lm[_ ]loss value: ([0-9.E+-]+)", printed)[0])
    source = open_checkpoint(place / "saved")
    batch = samples(name, case, folder)
    ids, labels = (torch.stack([one[part] for one in batch]) for part in ("tokens", "labels"))
    logits = native_logits(source.model, source.read, ids)
    ours = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten()).item()
    apart = abs(ours - theirs) / theirs
    print(f"{name}: {source.dialect}, upstream {theirs:.6f}, native {ours:.6f}, {apart:.1e} apart", flush=True)
    return apart < BOUND


def back(name: str, case: Case, folder: Path) -> bool:
    """Print upstream's first losses from its own and from the converted checkpoint; return whether they are equal."""
    if case.back is None:
        return True
    ranks, settings, words = case.back
    converted = folder / f"{name}-converted"
    shutil.rmtree(converted, ignore_errors=True)
    command = [sys.executable, "-m", "ascend_adapt.cli", "convert", "--input", str(folder / name / "saved")]
    subprocess.run([*command, "--output", str(converted), "--to", "neox", *words], check=True)
    losses = []
    for number, (count, load, own) in enumerate(
        ((case.ranks, folder / name / "saved", case.settings), (ranks, converted, settings))
    ):

        def loading(place: Place, count: int = count, load: Path = load, own: dict[str, Any] = own) -> Sequence[str]:
            more = {"finetune": True, "train-iters": 1, "load": str(load), "rotary-pct": 0.5}
            return deepy(place, count, {**more, **spelled(own)})

        losses.append(run(job(case, count, loading), case, folder / f"{name}-back-{number}", folder)[0])
    print(f"{name}: from its own {losses[0]:.6f}, from the converted {losses[1]:.6f}", flush=True)
    return abs(losses[0] - losses[1]) / losses[0] < BOUND


def run(job: UpstreamJob, case: Case, place: Path, folder: Path) -> tuple[float, ...]:
    """Run a job in ``place`` and return its losses."""
    shared = folder / "shared" / case.code_base
    shared.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(place, ignore_errors=True)
    checkout = job.checkout(os.environ)
    assert checkout is not None
    ended = upstream_job.run(job, Place(place, shared, checkout, "cpu", "float32"))
    if ended.problems:
        raise SystemExit(f"{place.name}: {ended.problems}")
    return ended.losses


def main(folder: Path, action: str, names: Sequence[str]) -> int:
    """Do one of the three for some cases, or all."""
    good = True
    for name in names or CASES:
        case = CASES[name]
        if action == "save":
            print(
                name,
                run(job(case, case.ranks, lambda place, case=case: saving(case, place)), case, folder / name, folder),
            )
        else:
            good &= {"compare": compare, "back": back}[action](name, case, folder)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]).absolute(), sys.argv[2], sys.argv[3:]))
