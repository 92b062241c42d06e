"""Record learning rates, weight decays and initial deviations as upstream's own code computes them.

    python tests/native/record_upstream_schedules.py CHECKOUT CHECKOUT CHECKOUT CHECKOUT CHECKOUT CHECKOUT

of gpt-neox@9610391a and @ea7aefd8, Megatron-LM@v2.5, bigscience Megatron-DeepSpeed@8387ae17, Megatron-LM@core_v0.9.0
and @d98e8a64, in this order. Only the modules with the arithmetic are run; what they import of the rest is a
stand-in. Writes tests/native/upstream_schedules.json. OneFlow's rates are its C++ kernels' and are not recorded here.
"""

from __future__ import annotations

import importlib.util
import itertools
import json
import sys
import types
from pathlib import Path
from unittest import mock

import torch

OUTPUT = Path(__file__).with_name("upstream_schedules.json")
LENGTHS = [(0, 1000, 1000), (100, 1000, 1200), (37.5, 750, 900), (10, 300, 1000)]  # warm-up, decay, last progress
STAND_INS = ["megatron", *(f"megatron.core{name}" for name in ("", ".optimizer", ".utils"))]
STAND_INS += [f"megatron.core.optimizer.{name}" for name in ("optimizer", "optimizer_config")]


def load(path: Path) -> types.ModuleType:
    for name in STAND_INS:
        sys.modules[name] = mock.MagicMock()
    arguments = types.SimpleNamespace(lr_decay_tokens=None, consumed_train_tokens=0)
    sys.modules["megatron"].get_args = lambda: arguments
    spec = importlib.util.spec_from_file_location("upstream", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def points(last: float) -> list[int]:
    return sorted({0, 1, 2, 9, 10, 11, 36, 37, 38, 99, 100, 101, *range(0, int(last) + 1, 50), int(last)})


def neox(source: str, dialect: str, checkout: Path) -> list[dict]:
    module = load(checkout / "megatron" / "learning_rates.py")
    rows = []
    for style, (warmup, decay, last) in itertools.product(("constant", "linear", "cosine", "exponential"), LENGTHS):
        group = {"lr": 0.0}
        annealing = module.AnnealingLR(
            types.SimpleNamespace(param_groups=[group]), 6e-4, warmup, decay, style, 0, min_lr=6e-5
        )
        rates = []
        for progress in points(last):
            annealing.step(progress)
            rates.append(group["lr"])
        schedule = {"dialect": dialect, "lr": 6e-4, "min_lr": 6e-5, "style": style, "unit": "iterations"}
        rows.append(row(source, {**schedule, "warmup": warmup, "decay": decay}, points(last), rates))
    return rows


def classic(source: str, checkout: Path) -> list[dict]:
    module = load(checkout / "megatron" / "learning_rates.py")
    rows = []
    for style, (warmup, decay, last) in itertools.product(("constant", "linear", "cosine"), LENGTHS):
        group = {"lr": 0.0}
        annealing = module.AnnealingLR(types.SimpleNamespace(param_groups=[group]), 6e-4, 6e-5, warmup, decay, style)
        rates = []
        for progress in points(last):
            annealing.num_steps = progress
            annealing.step(0)
            rates.append(group["lr"])
        schedule = {"dialect": "megatron", "lr": 6e-4, "min_lr": 6e-5, "style": style}
        rows.append(row(source, {**schedule, "warmup": warmup, "decay": decay}, points(last), rates))
    return rows


def core(source: str, checkout: Path, wsd_styles: tuple[str, ...]) -> list[dict]:
    module = load(checkout / "megatron" / "core" / "optimizer_param_scheduler.py")
    styles = [(style, "exponential") for style in ("constant", "linear", "cosine", "inverse-square-root")]
    rows = []
    for (style, wsd), (warmup, decay, last), raised in itertools.product(
        [*styles, *(("WSD", wsd) for wsd in wsd_styles)], LENGTHS, ("constant", "linear", "cosine")
    ):
        weight = (0.1, 0.1) if raised == "constant" else (0.01, 0.1)
        group = {"lr": 0.0, "weight_decay": 0.0}
        scheduler = module.OptimizerParamScheduler(
            types.SimpleNamespace(param_groups=[group]),
            init_lr=1e-5,
            max_lr=6e-4,
            min_lr=6e-5,
            lr_warmup_steps=warmup,
            lr_decay_steps=decay,
            lr_decay_style=style,
            start_wd=weight[0],
            end_wd=weight[1],
            wd_incr_steps=800,
            wd_incr_style=raised,
            wsd_decay_steps=decay // 4,
            lr_wsd_decay_style=wsd,
        )
        rates, decays = [], []
        for progress in points(last):
            scheduler.num_steps = progress
            scheduler.step(0)
            rates.append(group["lr"])
            decays.append(group["weight_decay"])
        schedule = {
            "dialect": "megatron",
            "lr": 6e-4,
            "min_lr": 6e-5,
            "style": style,
            "warmup": warmup,
            "decay": decay,
            "init_lr": 1e-5,
            "wsd_style": wsd,
            "wsd_decay": decay // 4,
            "start_weight_decay": weight[0],
            "end_weight_decay": weight[1],
            "weight_decay_style": raised,
            "weight_decay_over": 800,
        }
        rows.append({**row(source, schedule, points(last), rates), "weight_decay": decays})
    return rows


def row(source: str, schedule: dict, progress: list[int], rates: list[float]) -> dict:
    return {"source": source, "schedule": schedule, "progress": progress, "lr": rates}


def deviations(source: str, checkout: Path, names: list[str]) -> list[dict]:
    """Return the deviation each of GPT-NeoX's rules gives a normal distribution."""
    module = load(checkout / "megatron" / "model" / "init_functions.py")
    rows = []
    for name, (hidden, layers) in itertools.product(names, [(6144, 44), (768, 12), (64, 2)]):
        given = types.SimpleNamespace(
            init_method=name,
            output_layer_init_method=name,
            init_method_std=0.02,
            num_layers=layers,
            hidden_size=hidden,
            use_mup=False,
            mup_init_scale=1.0,
        )
        with mock.patch.object(torch.nn.init, "normal_") as filled:
            module.get_init_methods(given)[0](torch.empty(2, 2))
        std = filled.call_args.kwargs["std"]
        rows.append({"source": source, "rule": name, "hidden": hidden, "layers": layers, "std": std})
    return rows


def megatron_deviations(source: str, checkout: Path) -> list[dict]:
    module = load(checkout / "megatron" / "model" / "utils.py")
    rows = []
    for hidden, layers in [(1024, 24), (768, 12)]:
        for rule, method in (
            ("init_method", module.init_method_normal(0.02)),
            ("scaled_init_method", module.scaled_init_method_normal(0.02, layers)),
        ):
            with mock.patch.object(torch.nn.init, "normal_") as filled:
                method(torch.empty(2, 2))
            std = filled.call_args.kwargs["std"]
            rows.append({"source": source, "rule": rule, "hidden": hidden, "layers": layers, "std": std})
    return rows


def main(checkouts: list[Path]) -> None:
    neox_v2, neox_newest, v2_5, bigscience, core_v0_9_0, newest = checkouts
    rules = ["normal", "scaled_normal", "wang_init", "small_init"]
    styles = ("exponential", "linear", "cosine")
    recorded = {
        "schedules": [
            *neox("gpt-neox@9610391a", "neox-v2", neox_v2),
            *neox("gpt-neox@ea7aefd8", "neox", neox_newest),
            *classic("Megatron-LM@v2.5", v2_5),
            *classic("Megatron-DeepSpeed@8387ae17", bigscience),
            *core("Megatron-LM@core_v0.9.0", core_v0_9_0, styles),
            *core("Megatron-LM@d98e8a64", newest, (*styles, "minus_sqrt")),
        ],
        "deviations": [
            *deviations("gpt-neox@9610391a", neox_v2, rules),
            *deviations("gpt-neox@ea7aefd8", neox_newest, [*rules, "single_residual_scaled_normal"]),
            *megatron_deviations("Megatron-LM@v2.5", v2_5),
        ],
    }
    lines = [f'"{part}": [\n' + ",\n".join(json.dumps(one) for one in rows) + "\n]" for part, rows in recorded.items()]
    OUTPUT.write_text("{\n" + ",\n".join(lines) + "\n}\n")
    print({part: len(rows) for part, rows in recorded.items()})


if __name__ == "__main__":
    main([Path(word) for word in sys.argv[1:]])
