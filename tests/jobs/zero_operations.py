"""A DeepSpeed job that trains each of VARIANTS twice: without and with the patches of its optimizer for GPUs.

Usage: zero_operations.py, under ascend-run on a CPU, for which these patches are skipped. Prints one line of JSON: the
variants in which a bit of a loss, gradient norm, weight or master weight differs, the number of operations after the
backward pass without and with the patches, and the applied patches.
"""

import contextlib
import dataclasses
import importlib
import json
import pkgutil
import types

import deepspeed
import torch
from packaging.version import Version
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import ascend_adapt
from ascend_adapt_plugins import deepspeed_runtime

HIDDEN, LAYERS, MICRO_BATCH, STEPS, POISONED = 8, 6, 2, 4, 1
ELEMENTS = LAYERS * (HIDDEN + 1) * HIDDEN
SMALL = {"reduce_bucket_size": ELEMENTS // 5}
VARIANTS = {
    "1": {"stage": 1},
    "1, small buckets": {"stage": 1, **SMALL},
    "1, buckets smaller than a parameter": {"stage": 1, "reduce_bucket_size": HIDDEN + 1},
    "1, round robin": {"stage": 1, "round_robin_gradients": True},
    "1, not contiguous": {"stage": 1, "contiguous_gradients": False},
    "2": {"stage": 2},
    "2, small buckets": {"stage": 2, **SMALL},
    "2, overlapped": {"stage": 2, "overlap_comm": True},
}
BF16_SINCE = "0.17.2"  # before it, bf16 with ZeRO-1 has another optimizer


@contextlib.contextmanager
def patched():
    """Apply DeepSpeedZeroOptimizer's patches for GPUs on this CPU, and yield the names of the applied ones."""
    modules = [importlib.import_module(f"{deepspeed_runtime.__name__}.{one.name}") for one in
               pkgutil.iter_modules(deepspeed_runtime.__path__)]  # fmt: skip
    found = [
        value
        for module in modules
        for value in vars(module).values()
        if isinstance(value, ascend_adapt.Patch)
        and ":DeepSpeedZeroOptimizer." in str(value.target)
        and value.without == "slower"
    ]
    plugin = types.ModuleType("on_this_cpu")
    on_cpu = [dataclasses.replace(one, devices=frozenset({"cpu"})) for one in found]
    plugin.register_patches = ascend_adapt.hookimpl(lambda: on_cpu)
    with ascend_adapt.enabled(plugins=[plugin]) as status:
        yield sorted(one.patch for one in status.outcomes if one.plugin == "on_this_cpu" and one.state == "applied")


class Operations(TorchDispatchMode):
    """Counts operations."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        self.count += 1
        return operation(*args, **(kwargs or {}))


def train(zero, dtype):
    """Return all numbers of a training run, and its number of operations after the backward passes."""
    rank = torch.distributed.get_rank()
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(HIDDEN, HIDDEN) for _ in range(LAYERS)))
    weights = [one for one in model.parameters() if one.ndim > 1]
    groups = [{"params": weights}, {"params": [one for one in model.parameters() if one.ndim == 1], "weight_decay": 0}]
    weights[2].tensor_model_parallel = True  # counted like all others, as there is one model-parallel rank
    config = {
        "train_micro_batch_size_per_gpu": MICRO_BATCH,
        "gradient_accumulation_steps": 2,
        "gradient_clipping": 0.1,
        "zero_optimization": zero,
        "zero_allow_untested_optimizer": True,
        "bf16": {"enabled": dtype == torch.bfloat16},
    }
    optimizer = torch.optim.AdamW(groups, lr=1e-2)
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
    poison = {"now": False}

    def poisoned(gradient):
        return gradient.index_put((torch.tensor(1), torch.tensor(2)), torch.tensor(float("nan"), dtype=gradient.dtype))

    weights[3].register_hook(lambda gradient: poisoned(gradient) if poison["now"] else gradient)
    reduce, operations = engine.allreduce_gradients, Operations()

    def counted(*args, **kwargs):
        with operations:
            return reduce(*args, **kwargs)

    engine.allreduce_gradients = counted
    generator, numbers = torch.Generator().manual_seed(rank), []
    for step in range(STEPS):
        poison["now"] = step == POISONED and rank == 0
        for _ in range(2):
            x = torch.randn(MICRO_BATCH, HIDDEN, generator=generator).to(dtype)
            loss = (engine(x) - x).float().square().mean()
            engine.backward(loss)
            with operations:
                engine.step()
            numbers.append(loss.item().hex())
        numbers.append(float(engine.get_global_grad_norm()).hex())
    kept = [*engine.module.parameters(), *engine.optimizer.single_partition_of_fp32_groups]
    return [*numbers, *(one.detach().float().tolist() for one in kept)], operations.count


def main():
    deepspeed.init_distributed()
    dtypes = [torch.float32] + [torch.bfloat16] * (Version(deepspeed.__version__) >= Version(BF16_SINCE))
    cases = {f"{name}, {dtype}": (zero, dtype) for name, zero in VARIANTS.items() for dtype in dtypes}
    expected = {name: train(dict(zero), dtype) for name, (zero, dtype) in cases.items()}
    with patched() as applied:
        measured = {name: train(dict(zero), dtype) for name, (zero, dtype) in cases.items()}
    differ = [
        name for name in cases if repr(measured[name][0]) != repr(expected[name][0])
    ]  # repr, because NaN differs from itself
    counts = {name: (expected[name][1], measured[name][1]) for name in cases}
    gathered = [None] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(gathered, differ)
    if torch.distributed.get_rank() == 0:
        printed = {"deepspeed": deepspeed.__version__, "differ": gathered, "operations": counts, "applied": applied}
        print(json.dumps(printed))


main()
