"""Checkpoints of unmodified code bases beside the native model, and conversions of them loaded by upstream again.

    python checkpoints.py FOLDER save [NAME ...]       train a few steps of each code base and keep what it saves
    python checkpoints.py FOLDER compare [NAME ...]    the loss that upstream printed for its weights, and the native
    python checkpoints.py FOLDER back [NAME ...]       the loss that upstream prints for converted weights

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
from glm import jobs as glm
from gpt_neox import jobs as neox
from megatron_deepspeed import jobs as megatron_deepspeed
from megatron_lm import jobs as megatron_lm
from upstream_job import Place, UpstreamJob

from ascend_adapt.checkpoint.detection import open_checkpoint
from ascend_adapt.checkpoint.source import Given
from ascend_adapt.convert.native_logits import native_logits
from ascend_adapt.data.torch_dataset import gpt_dataset

BOUND = 1e-6
SEQUENTIAL = {"pipe_parallel_size": 0}
PLAIN = {"gpt_j_residual": False}
TIED = {"no_weight_tying": False, "pos_emb": "learned", **PLAIN}
GATED = {"norm": "rmsnorm", "activation": "swiglu", "num_kv_heads": 2, "intermediate_size": 96, **PLAIN}
V2 = "gpt-neox-v2.0"
# No step changes a weight, so that upstream validates the weights that it loaded.
RATE = 1e-30
DIVISIBLE = "make-vocab-size-divisible-by"
TO_RANKS = ("--tp", "2")
TO_DIST = ("--to", "megatron-core", "--ckpt-format", "torch_dist")


# Without RMSNorm, which local layers have only with apex.
GATED_CORE = (
    *("--swiglu", "--disable-bias-linear"),
    *("--position-embedding-type", "rope", "--no-rope-fusion"),
    *("--untie-embeddings-and-output-weights", "--group-query-attention", "--num-query-groups", "2"),
)


@dataclass(frozen=True)
class Back:
    """What ``convert`` makes of a checkpoint, and in which settings upstream loads that."""

    words: tuple[str, ...]
    ranks: int = 1
    settings: dict[str, Any] = field(default_factory=dict)
    arguments: tuple[str, ...] = ()


@dataclass(frozen=True)
class Case:
    """A code base, its settings, and how it loads what ``convert`` makes of its checkpoint."""

    code_base: str
    ranks: int
    settings: dict[str, Any] = field(default_factory=dict)
    arguments: tuple[str, ...] = ()
    back: Back | None = None
    saved_by: str | None = None
    """Case whose checkpoint is converted; None: this case saves its own."""


CASES = {
    "neox": Case("gpt-neox", 2, {"model_parallel_size": 2}, back=Back(("--to", "neox"))),
    "neox-plain": Case("gpt-neox", 2, {"model_parallel_size": 2, **PLAIN}),
    "neox-tied": Case(
        "gpt-neox",
        2,
        {"pipe_parallel_size": 2, **neox.ZERO, **TIED},
        back=Back(("--to", "neox", *TO_RANKS), 2, {"model_parallel_size": 2, **TIED}),
    ),
    "neox-sequential": Case(
        "gpt-neox",
        1,
        {**SEQUENTIAL, "bias_gelu_fusion": True},
        back=Back(
            ("--to", "neox", *TO_RANKS, "--pp", "0"),
            2,
            {**SEQUENTIAL, "model_parallel_size": 2, "bias_gelu_fusion": True},
        ),
    ),
    "neox-gated": Case("gpt-neox", 2, {"model_parallel_size": 2, **GATED}, back=Back(("--to", "neox"), 1, GATED)),
    "neox-v2": Case(
        V2,
        4,
        {"model_parallel_size": 2, "pipe_parallel_size": 2},
        back=Back(("--to", "neox", "--pp", "2", "--upstream-version", "v2.0"), 2, {"pipe_parallel_size": 2}),
    ),
    "neox-v2-tied": Case(
        V2,
        2,
        {"model_parallel_size": 2, **TIED},
        back=Back(("--to", "neox", "--upstream-version", "v2.0"), 1, TIED),
    ),
    "bigscience": Case(
        megatron_deepspeed.BIGSCIENCE,
        2,
        arguments=megatron_deepspeed.TP2,
        back=Back(("--to", "megatron", "--pp", "2"), 2, arguments=megatron_deepspeed.PP2),
    ),
    "bigscience-pipeline": Case(
        megatron_deepspeed.BIGSCIENCE,
        2,
        arguments=megatron_deepspeed.PP2,
        back=Back(("--to", "megatron", *TO_RANKS), 2, arguments=megatron_deepspeed.TP2),
    ),
    "bigscience-zero1": Case(
        megatron_deepspeed.BIGSCIENCE,
        2,
        {"engine": True},
        megatron_deepspeed.TP2,
        back=Back(("--to", "megatron-deepspeed", "--pp", "2"), 2, {"engine": True}, megatron_deepspeed.PP2),
    ),
    "glm": Case("GLM", 1, back=Back(("--to", "glm", *TO_RANKS), 2)),
    "glm-ranks": Case("GLM", 2, back=Back(("--to", "glm", "--tp", "1"))),
    **{
        f"megatron-{tag}-{layout}": Case(
            f"Megatron-LM-{tag}",
            2,
            {"layout": layout, "ckpt-format": kind},
            # Rows of padding count in Megatron's loss, so both sizes have as many.
            back=Back(
                ("--to", "megatron-core", *words, "--vocab-size", str(tokens.VOCABULARY), f"--{DIVISIBLE}", step),
                2,
                {"layout": other, DIVISIBLE: step},
            ),
        )
        for tag in ("0.12.0", "0.19.0")
        for layout, kind, other, words, step in (
            ("tp2", "torch_dist", "pp2", ("--pp", "2"), "256"),
            ("pp2", "torch", "tp2", TO_RANKS, "64"),
        )
    },
    **{
        f"megatron-{tag}-{layout}-to-dist": Case(
            f"Megatron-LM-{tag}",
            2,
            back=Back(
                (*TO_DIST, "--vocab-size", str(tokens.VOCABULARY), f"--{DIVISIBLE}", multiple),
                2,
                {"layout": other, DIVISIBLE: step, "ckpt-format": "torch_dist"},
            ),
            saved_by=f"megatron-{tag}-{layout}",
        )
        for tag in ("0.12.0", "0.19.0")
        for layout, other, multiple, step in (("tp2", "pp2", "256", "256"), ("pp2", "tp2", "128", "64"))
    },
    **{
        f"megatron-{tag}-gated": Case(
            f"Megatron-LM-{tag}",
            2,
            {"layout": "tp2", "ckpt-format": "torch"},
            GATED_CORE,
            back=Back(
                (*TO_DIST, "--vocab-size", str(tokens.VOCABULARY), f"--{DIVISIBLE}", "256"),
                2,
                {"layout": "pp2", DIVISIBLE: "256", "ckpt-format": "torch_dist"},
                GATED_CORE,
            ),
        )
        for tag in ("0.12.0", "0.19.0")
    },
}


def job(case: Case, ranks: int, command: Callable[[Place], Sequence[str]]) -> UpstreamJob:
    """Return a job of the case's code base."""
    losses = {"gpt-neox": neox.LOSS, V2: neox.LOSS, "GLM": glm.LOSS}
    loss, needs = losses.get(case.code_base, megatron_deepspeed.LOSS), glm.NEEDS if case.code_base == "GLM" else ()
    variables = {"CUDA_DEVICE_MAX_CONNECTIONS": "1"}
    return UpstreamJob("x", command, case.code_base, ranks, loss=loss, variables=variables, needs=needs)


def saving(case: Case, place: Place) -> Sequence[str]:
    """Return the command that trains a few steps, saves and evaluates."""
    saved = place.folder / "saved"
    if case.code_base.startswith("gpt-neox"):
        return deepy(place, case.ranks, case.settings, {"save": str(saved), "checkpoint-factor": 3})
    if case.code_base == megatron_deepspeed.BIGSCIENCE:
        return bigscience(place, case.ranks, case.settings, (*case.arguments, "--save", str(saved)))
    if case.code_base == "GLM":
        return glm.pretrain(case.ranks, case.ranks)(place)
    more = {"save": saved, "save-interval": 3, "ckpt-format": case.settings["ckpt-format"]}
    return [*megatron(place, case.settings["layout"], more), *case.arguments]


def loading(case: Case, load: Path, place: Place) -> Sequence[str]:
    """Return the command that loads converted weights and evaluates them."""
    given = case.back
    assert given is not None
    if case.code_base.startswith("gpt-neox"):
        rate = {"optimizer": {**neox.TINY["optimizer"], "params": {"lr": RATE}}, "min_lr": 0.0}  # type: ignore[dict-item]
        return deepy(place, given.ranks, given.settings, {**rate, "finetune": True, "load": str(load)})
    if case.code_base == megatron_deepspeed.BIGSCIENCE:
        words = (*given.arguments, "--finetune", "--load", str(load), "--lr", str(RATE), "--min-lr", "0")
        with_engine = ("--no-load-optim", "--override-lr-scheduler") if given.settings else ()
        return bigscience(place, given.ranks, given.settings, (*words, *with_engine))
    if case.code_base == "GLM":
        more = f"--load {load} --finetune --no-load-optim --no-load-lr-scheduler --no-deepspeed-load"
        command = glm.pretrain(given.ranks, given.ranks, more=more)(place)
        configuration = place.folder / "ds.json"  # which has the rate
        configuration.write_text(re.sub(r'"lr": [^,]+', f'"lr": {RATE}', configuration.read_text()))
        return command
    rows = {DIVISIBLE: given.settings[DIVISIBLE]}
    more = {"load": load, "ckpt-format": given.settings.get("ckpt-format", "torch"), "lr": RATE, "min-lr": 0, **rows}
    return [*megatron(place, given.settings["layout"], more), *given.arguments, "--finetune"]


def bigscience(place: Place, ranks: int, settings: dict[str, Any], words: Sequence[str]) -> Sequence[str]:
    """Return the command of bigscience's script, with DeepSpeed's engine if the settings require it."""
    every = (*megatron_deepspeed.SAME, "--eval-iters", "1", *words)
    if settings:
        return megatron_deepspeed.by_deepspeed(ranks, 1, *every)(place)
    return megatron_deepspeed.by_torch(ranks, *every)(place)


def megatron(place: Place, layout: str, more: dict[str, object]) -> list[str]:
    """Return Megatron-LM's command."""
    every = {"data-cache-path": place.folder / "index", "train-iters": 3, **more}
    return [str(place.checkout / "pretrain_gpt.py"), *megatron_lm.flags(place, layout, every)]


def deepy(place: Place, ranks: int, settings: dict[str, Any], more: dict[str, Any]) -> Sequence[str]:
    """Return GPT-NeoX's command with these settings."""
    changes = {"train-iters": 3, "rotary-pct": 0.5, **more, **spelled(settings)}
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


def validation(place: Path) -> float:
    """Return the validation loss that upstream printed."""
    printed = "".join(one.read_text() for one in (place / "output.txt", *sorted(place.glob("run/rank-*.log"))))
    return float(re.findall(r"(?:lm[_ ]loss value|val data \| LM loss): ([0-9.E+-]+)", printed)[0])


def saved_in(place: Path) -> Path:
    """Return the folder that upstream saved in; GLM names one inside it after the time."""
    return next(iter(sorted(place.glob("saved/tiny*"))), place / "saved")


def compare(name: str, case: Case, folder: Path) -> bool:
    """Print upstream's validation loss and the native model's; return whether they are equal."""
    if case.code_base == "GLM":
        print(f"{name}: not compared, because the native model has no block positions")
        return True
    theirs, saved = validation(folder / name), folder / name / "saved"
    batch = samples(name, case, folder)
    ids, labels = (torch.stack([one[part] for one in batch]) for part in ("tokens", "labels"))
    good = True
    for master in (False, True) if any(saved.glob("*/zero_pp_rank_*")) else (False,):
        source = open_checkpoint(saved, Given(master_weights=master))
        logits = native_logits(source.model, source.read, ids)
        ours = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten()).item()
        apart = abs(ours - theirs) / theirs
        what = f"{source.dialect}{', from ZeRO shards' if master else ''}"
        print(f"{name}: {what}, upstream {theirs:.6f}, native {ours:.6f}, {apart:.1e} apart", flush=True)
        good &= apart < BOUND
    return good


def back(name: str, case: Case, folder: Path) -> bool:
    """Print upstream's validation losses of the weights that it saved and of the converted ones; return if equal."""
    if case.back is None:
        return True
    converted, place = folder / f"{name}-converted", folder / f"{name}-back"
    source = folder / (case.saved_by or name)
    shutil.rmtree(converted, ignore_errors=True)
    command = [sys.executable, "-m", "ascend_adapt.cli", "convert", "--input", str(saved_in(source))]
    subprocess.run([*command, "--output", str(converted), *case.back.words], check=True)
    run(job(case, case.back.ranks, lambda place: loading(case, converted, place)), case, place, folder)
    losses = validation(source), validation(place)
    print(f"{name}: of its own {losses[0]:.6f}, of the converted {losses[1]:.6f}", flush=True)
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
        if case.saved_by and action != "back":
            print(f"{name}: has the checkpoint of {case.saved_by}")
        elif action == "save":
            print(
                name,
                run(job(case, case.ranks, lambda place, case=case: saving(case, place)), case, folder / name, folder),
            )
        else:
            good &= {"compare": compare, "back": back}[action](name, case, folder)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]).absolute(), sys.argv[2], sys.argv[3:]))
