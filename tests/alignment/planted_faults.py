"""Numerical faults, planted in the training run of small_training: what a port to another device gets wrong."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as multiprocessing
from alignment.small_training import (
    IGNORED,
    LENGTH,
    Decoder,
    Rotary,
    Run,
    adamw,
    batches,
    groups,
)
from torch import nn
from torch.nn import functional


@dataclass(frozen=True)
class Fault:
    """A fault: the run that has it, and where it should be found."""

    name: str
    module: str
    run: Run
    step: int = 1
    clean: Run = field(default_factory=Run)
    instead: str = ""
    """The module that is named instead, where the recording cannot show which of two it is."""


def forward_of(module: nn.Module, forward: Callable[..., Any]) -> None:
    module.forward = forward  # type: ignore[method-assign]


def in_module(name: str, path: str, change: Callable[[Any], object], **run: Any) -> Fault:
    """Return a fault that changes one module after the model was built."""
    return Fault(name, path, Run(plant=lambda model: change(model.get_submodule(path)), **run))


def set_to(attribute: str, value: Any) -> Callable[[Any], None]:
    return lambda module: setattr(module, attribute, value)


@torch.no_grad()
def transpose(module: nn.Linear) -> None:
    module.weight.copy_(module.weight.t().clone())


@torch.no_grad()
def swap_heads(module: nn.Linear) -> None:
    module.weight.copy_(module.weight.view(4, -1, module.weight.shape[1]).flip(0).flatten(0, 1))


def bf16_product(module: nn.Linear) -> None:
    forward_of(
        module,
        lambda x: functional.linear(x.bfloat16(), module.weight.bfloat16(), module.bias.bfloat16()).float(),
    )


def interleaved(x: torch.Tensor) -> torch.Tensor:
    return torch.stack([-x[..., 1::2], x[..., ::2]], -1).flatten(-2)


def rotate_pairs(module: Rotary) -> None:
    forward_of(module, lambda x: x * module.cos + interleaved(x) * module.sin)


def draw_before(module: nn.Module) -> None:
    inner = module.forward
    forward_of(module, lambda x: (torch.rand(1), inner(x))[1])


def untie(model: Decoder) -> None:
    model.head.weight = nn.Parameter(model.words.weight.detach().clone())


def no_residual_gradient(module: nn.Module) -> None:
    module.residual = lambda x: x.detach()


class Half(torch.autograd.Function):
    """Identity whose gradient is halved."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        return grad / 2


class WithoutBiasGradient(torch.autograd.Function):
    """A linear layer whose backward forgets the bias."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x, weight)
        return functional.linear(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, ...]:
        x, weight = ctx.saved_tensors
        return grad @ weight, grad.flatten(0, -2).t() @ x.flatten(0, -2), torch.zeros(weight.shape[0])


def halve_input_gradient(module: nn.Module) -> None:
    inner = module.forward
    forward_of(module, lambda x: inner(Half.apply(x)))


def halve_activation_gradient(module: nn.Module) -> None:
    inner = module.activation
    module.activation = lambda x: Half.apply(inner(x))


def forget_bias_gradient(module: nn.Linear) -> None:
    forward_of(module, lambda x: WithoutBiasGradient.apply(x, module.weight, module.bias))


def next_token_visible(module: Any) -> None:
    module.masked_out = lambda: torch.ones(LENGTH, LENGTH, dtype=torch.bool).triu(2)


def nothing_masked(module: Any) -> None:
    module.masked_out = lambda: torch.zeros(LENGTH, LENGTH, dtype=torch.bool)


def wrong_heads(module: Any) -> None:
    module.heads = lambda x: x.view(*x.shape[:2], -1, 4).transpose(2, 3).transpose(1, 2)


def shift_positions(model: Decoder) -> None:
    model.position_ids = lambda: torch.arange(1, LENGTH + 1)


def stale_rotary(model: Decoder, step: int) -> None:
    if step == 1:
        model.blocks[1].attention.rotary.cos.copy_(Rotary(8, base=500.0).cos)


def restore_weight(model: Decoder, step: int) -> None:
    """What a forgotten copy of master weights does."""
    if step == 1:
        model.blocks[0].mlp.up.weight.data.mul_(0).add_(0.01)


def other_batch_at(step: int) -> Callable[[int], list[Any]]:
    return lambda number: batches(number + 1 if number == step else number)


def shifted_labels(step: int) -> list[Any]:
    return [(ids, labels.roll(1, 1)) for ids, labels in batches(step)]


def padding_counts(step: int) -> list[Any]:
    return [(ids, labels.masked_fill(labels == IGNORED, 0)) for ids, labels in batches(step)]


def clear_between(model: Decoder, index: int) -> None:
    if index == 0:
        model.zero_grad()


def clear_nothing(optimizer: torch.optim.Optimizer) -> None:
    """Gradients of earlier steps are kept."""


def smoothed(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORED, label_smoothing=0.1)


class SkipsBiasCorrection(torch.optim.AdamW):
    """Adam without the correction of its averages' bias, under the same name."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            first, second = group["betas"]
            for one in group["params"]:
                state = self.state[one]
                for name in ("exp_avg", "exp_avg_sq"):
                    state.setdefault(name, torch.zeros_like(one))
                state["exp_avg"].lerp_(one.grad, 1 - first)
                state["exp_avg_sq"].mul_(second).addcmul_(one.grad, one.grad, value=1 - second)
                one.mul_(1 - group["lr"] * group["weight_decay"])
                one.addcdiv_(state["exp_avg"], state["exp_avg_sq"].sqrt() + group["eps"], value=-group["lr"])


SkipsBiasCorrection.__name__ = "AdamW"


class DecaysGradient(torch.optim.AdamW):
    """AdamW whose decay is added to the gradient, as in Adam, with the hyperparameters of AdamW."""

    def step(self, closure: Any = None) -> None:
        decays = [group["weight_decay"] for group in self.param_groups]
        for group in self.param_groups:
            for one in group["params"]:
                one.grad.add_(one.data, alpha=group["weight_decay"])
            group["weight_decay"] = 0.0
        super().step()
        for group, decay in zip(self.param_groups, decays, strict=True):
            group["weight_decay"] = decay


DecaysGradient.__name__ = "AdamW"


class RoundsWeights(torch.optim.AdamW):
    """AdamW on weights that are rounded to bfloat16 after each step: small updates are lost."""

    def step(self, closure: Any = None) -> None:
        super().step()
        for group in self.param_groups:
            for one in group["params"]:
                one.data.copy_(one.data.bfloat16().float())


RoundsWeights.__name__ = "AdamW"


class ForgetsSecondAverage(torch.optim.AdamW):
    """AdamW that computes with another beta2 than its settings say."""

    def step(self, closure: Any = None) -> None:
        betas = [group["betas"] for group in self.param_groups]
        for group in self.param_groups:
            group["betas"] = (group["betas"][0], 0.999)
        super().step()
        for group, before in zip(self.param_groups, betas, strict=True):
            group["betas"] = before


ForgetsSecondAverage.__name__ = "AdamW"


def optimizer(kind: type[torch.optim.Optimizer], **settings: Any) -> Run:
    return Run(optimizer=lambda model: kind(groups(model), **{"lr": 1e-3, "betas": (0.9, 0.95), **settings}))


def decay_everything(model: nn.Module) -> torch.optim.Optimizer:
    found = adamw(model)
    found.param_groups[1]["weight_decay"] = 0.1
    return found


def freeze(module: nn.LayerNorm) -> None:
    module.weight.requires_grad_(False)


RECOMPUTED = Run(recompute=True)

FAULTS = [
    in_module("norm eps 1e-6 for 1e-5", "blocks.1.norm2", set_to("eps", 1e-6)),
    in_module(
        "RMS norm for layer norm",
        "blocks.0.norm1",
        lambda one: forward_of(
            one, lambda x: x * (x.square().mean(-1, keepdim=True) + 1e-5).rsqrt() * one.weight + one.bias
        ),
    ),
    in_module(
        "norm without its weight",
        "norm",
        lambda one: forward_of(one, lambda x: functional.layer_norm(x, x.shape[-1:]) + one.bias),
    ),
    in_module("causal mask dropped", "blocks.1.attention", nothing_masked),
    in_module("causal mask off by one", "blocks.0.attention", next_token_visible),
    in_module("attention without 1/sqrt(d)", "blocks.0.attention", set_to("scale", 1.0)),
    in_module(
        "softmax in bfloat16", "blocks.1.attention", set_to("softmax", lambda x: x.bfloat16().softmax(-1).float())
    ),
    in_module("heads split along the wrong axis", "blocks.0.attention", wrong_heads),
    in_module("wrong rotary base", "blocks.0.attention.rotary", lambda one: one.__init__(8, base=1e6)),
    in_module("rotary pairs interleaved", "blocks.1.attention.rotary", rotate_pairs),
    in_module("weight transposed", "blocks.1.attention.o_proj", transpose),
    in_module("weight with its heads permuted", "blocks.0.attention.q_proj", swap_heads),
    in_module(
        "bias missing",
        "blocks.0.attention.v_proj",
        lambda one: forward_of(one, lambda x: functional.linear(x, one.weight)),
    ),
    in_module("product accumulated in bfloat16", "blocks.1.mlp.down", bf16_product),
    in_module(
        "tanh GELU for exact GELU",
        "blocks.0.mlp",
        set_to("activation", lambda x: functional.gelu(x, approximate="tanh")),
    ),
    in_module("residual dropped", "blocks.1", set_to("residual", torch.zeros_like)),
    in_module(
        "NaN from overflow in fp16", "blocks.1.mlp", set_to("activation", lambda x: (x * 1e5).half().float() * 1e-5)
    ),
    in_module("random numbers shifted", "blocks.1.dropout", draw_before),
    in_module("dropout 0.2 for 0.1", "blocks.0.dropout", set_to("p", 0.2)),
    in_module("dropout in eval mode", "blocks.0.dropout", lambda one: one.eval()),
    Fault("positions off by one", "Decoder", Run(plant=shift_positions)),
    in_module("final norm skipped", "norm", lambda one: forward_of(one, lambda x: x)),
    Fault("head no longer tied", "words", Run(plant=untie)),
    Fault("initialised from another seed", "words", Run(seed=1)),
    Fault("stale rotary buffer after step 1", "blocks.1.attention.rotary", Run(after_step=stale_rotary), step=2),
    Fault("another batch in step 2", "Decoder", Run(batches=other_batch_at(2)), step=2),
    Fault("labels off by one", "the script", Run(batches=shifted_labels)),
    Fault("padding counts in the loss", "the script", Run(batches=padding_counts)),
    Fault("label smoothing in the loss", "the script", Run(loss=smoothed)),
    Fault("loss not divided by the micro-batches", "the script", Run(accumulation=1.0)),
    in_module("backward of the activation halved", "blocks.0.mlp", halve_activation_gradient),
    in_module("input gradient halved", "blocks.1.mlp.down", halve_input_gradient),
    in_module("bias gradient forgotten", "blocks.0.mlp.up", forget_bias_gradient),
    replace(in_module("residual detached", "blocks.0", no_residual_gradient), instead="blocks.0.norm2"),
    in_module("weight frozen by mistake", "blocks.0.norm2", freeze),
    Fault(
        "recomputation draws other random numbers",
        "blocks.1.dropout",
        Run(recompute=True, plant=set_to("preserve_random_state", False)),
        clean=RECOMPUTED,
    ),
    Fault("gradients not clipped", "words", Run(clip=None)),
    Fault("first micro-batch lost", "words", Run(after_micro_batch=clear_between)),
    Fault("gradients not cleared", "words", Run(clear=clear_nothing), step=2),
    Fault("weight decay on norms and biases", "blocks.0.norm1", Run(optimizer=decay_everything)),
    Fault("beta2 0.999 for 0.95, in the settings", "words", optimizer(torch.optim.AdamW, betas=(0.9, 0.999))),
    Fault("beta2 0.999 for 0.95, inside", "words", optimizer(ForgetsSecondAverage)),
    Fault("eps 1e-4 for 1e-8", "words", optimizer(torch.optim.AdamW, eps=1e-4)),
    Fault("no bias correction", "words", optimizer(SkipsBiasCorrection)),
    Fault("decay added to the gradient", "words", optimizer(DecaysGradient)),
    Fault("weights rounded to bfloat16", "words", optimizer(RoundsWeights)),
    Fault(
        "learning rate schedule off by one", "words", Run(learning_rate=lambda step: 1e-3 / max(1, step - 1)), step=2
    ),
    Fault("a weight restored after step 1", "blocks.0.mlp.up", Run(after_step=restore_weight), step=2),
]


def skip_reduce(model: nn.Module, step: int) -> None:
    """Rank 1 does not take part in the reduction of one gradient."""
    for name, one in model.named_parameters():
        total = one.grad.clone()
        dist.all_reduce(total)
        if not (name == "blocks.0.mlp.up.weight" and dist.get_rank() == 1):
            one.grad.copy_(total / 2)


def reduce_mean(model: nn.Module, step: int) -> None:
    for one in model.parameters():
        dist.all_reduce(one.grad)
        one.grad /= 2


def reduce_sum(model: nn.Module, step: int) -> None:
    for one in model.parameters():
        dist.all_reduce(one.grad)


def of_this_rank(step: int) -> list[Any]:
    return batches(step + 100 * dist.get_rank())


def the_same_on_each_rank(step: int) -> list[Any]:
    return batches(step)


TWO_RANKS = Run(batches=of_this_rank, reduce=reduce_mean, steps=1)
ON_TWO_RANKS = [
    Fault("a rank skips a reduction", "blocks.0.mlp.up", replace(TWO_RANKS, reduce=skip_reduce), clean=TWO_RANKS),
    Fault(
        "gradients are summed over ranks", "words", replace(TWO_RANKS, reduce=reduce_sum, clip=None), clean=TWO_RANKS
    ),
    Fault(
        "every rank has the same batch",
        "Decoder",
        replace(TWO_RANKS, batches=the_same_on_each_rank),
        clean=TWO_RANKS,
    ),
]


def record_on_two_ranks(folder: Path) -> None:
    """Record the run without a fault into folder/clean, and each other into a folder of its name."""
    multiprocessing.start_processes(_on_rank, (folder,), nprocs=2, start_method="fork")


def _on_rank(rank: int, folder: Path) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    for name, run in (("clean", TWO_RANKS), *((fault.name, fault.run) for fault in ON_TWO_RANKS)):
        run.record(folder / name)
    dist.destroy_process_group()
