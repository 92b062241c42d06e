"""Learning rate and weight decay schedules of each dialect; pure functions.

``progress`` counts samples or iterations, by the schedule's unit, before the step: the first step has 0. A step that
is skipped after an overflow does not count. Sources:

- megatron: Megatron-LM@v2.5 megatron/learning_rates.py, Megatron-LM@core_v0.9.0 and @d98e8a64
  megatron/core/optimizer_param_scheduler.py; the later versions only add styles.
- neox-v2: EleutherAI/gpt-neox@9610391a megatron/learning_rates.py; neox: @ea7aefd8, whose formulas all differ.
- glm: THUDM/GLM@4f61ed72 learning_rates.py.
- oneflow: OneFlow's CosineScheduler with a linear warm-up, oneflow@v0.3.5 learning_rate_schedule_kernel_util.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from ascend_adapt import extensions
from ascend_adapt.config.train_config import SCHEDULES, Schedule


def learning_rate(schedule: Schedule, progress: float) -> float:
    """Learning rate of the step that starts at ``progress``.

    Each formula, built-in or not, is an entry point in the group ``ascend_adapt.schedules``: a function of the schedule
    and the progress.
    """
    formula: Callable[[Schedule, float], float] = extensions.load(SCHEDULES, schedule.dialect, built_in="megatron")
    return formula(schedule, progress)


def weight_decay(schedule: Schedule, constant: float, progress: float) -> float:
    """Weight decay of the step that starts at ``progress``: ``constant``, unless the schedule changes it.

    Source: Megatron-LM@core_v0.9.0 megatron/core/optimizer_param_scheduler.py get_wd.
    """
    start, end = schedule.start_weight_decay, schedule.end_weight_decay
    if start is None or end is None or schedule.weight_decay_style == "constant":
        return constant
    if progress > schedule.weight_decay_over:
        return end
    ratio = progress / schedule.weight_decay_over
    share = ratio if schedule.weight_decay_style == "linear" else 0.5 * (math.cos(math.pi * (1 - ratio)) + 1)
    return start + share * (end - start)


def megatron(schedule: Schedule, progress: float) -> float:
    """Learning rate of Megatron-LM and both Megatron-DeepSpeed forks."""
    lr, least, warmup, decay = schedule.lr, schedule.min_lr, schedule.warmup, schedule.decay
    if warmup > 0 and progress <= warmup:
        return schedule.init_lr + (lr - schedule.init_lr) * progress / warmup
    if schedule.style == "constant":
        return lr
    if progress > decay:
        return least
    if schedule.style == "inverse-square-root":
        return max(least, lr * math.sqrt(max(warmup, 1)) / math.sqrt(max(progress, 1)))
    if schedule.style == "WSD":
        share = _warmup_stable_decay(schedule, progress)
    else:
        ratio = (progress - warmup) / (decay - warmup)
        share = 1 - ratio if schedule.style == "linear" else 0.5 * (math.cos(math.pi * ratio) + 1)
    return least + share * (lr - least)


def _warmup_stable_decay(schedule: Schedule, progress: float) -> float:
    begin = schedule.decay - schedule.wsd_decay
    if progress <= begin:
        return 1.0
    ratio = (progress - begin) / schedule.wsd_decay
    shares = {
        "linear": 1 - ratio,
        "cosine": 0.5 * (math.cos(math.pi * ratio) + 1),
        "exponential": 2 * math.pow(0.5, ratio) - 1,
        "minus_sqrt": 1 - math.sqrt(ratio),
    }
    return shares[schedule.wsd_style]


def neox_v2(schedule: Schedule, progress: float) -> float:
    """Learning rate of GPT-NeoX 2.0."""
    lr, warmup, decay = schedule.lr, schedule.warmup, schedule.decay
    # Upstream subtracts the warm-up twice, so the learning rate is constant at the end of a run.
    number = min(progress, decay - warmup)
    if warmup > 0 and progress <= warmup:
        return lr * number / warmup
    ratio = (number - warmup) / decay
    return max(_neox_share(schedule.style, ratio) * lr, schedule.min_lr)


def neox(schedule: Schedule, progress: float) -> float:
    """Learning rate of GPT-NeoX since 2.0."""
    lr, least, warmup = schedule.lr, schedule.min_lr, schedule.warmup
    if warmup > 0 and progress <= warmup:
        return lr * max(1, progress) / warmup
    ratio = (progress - warmup) / (schedule.decay - warmup)
    if schedule.style == "cosine":
        return max(least + (lr - least) * _neox_share("cosine", ratio), least)
    return max(_neox_share(schedule.style, ratio) * lr, least)


def _neox_share(style: str, ratio: float) -> float:
    if style == "linear":
        return 1 - ratio
    if style == "cosine":
        return 0.5 * (math.cos(math.pi * ratio) + 1)
    return math.exp(-0.693 * ratio) if style == "exponential" else 1.0


def oneflow(schedule: Schedule, progress: float) -> float:
    """Learning rate of OneFlow-Benchmark."""
    lr, warmup, decay = schedule.lr, schedule.warmup, schedule.decay
    if progress < warmup:
        return lr * progress / warmup
    least = schedule.min_lr / lr if lr else 0.0
    share = 0.5 * (1 + math.cos(math.pi * min(progress, decay) / decay))
    return lr * ((1 - least) * share + least)


def glm(schedule: Schedule, progress: float) -> float:
    """Learning rate of GLM."""
    lr, least, warmup, decay = schedule.lr, schedule.min_lr, schedule.warmup, schedule.decay
    if warmup > 0 and progress <= warmup:
        return lr * progress / warmup
    ratio = (progress - warmup) / (decay - warmup)
    if schedule.style == "linear":
        # Upstream's straight line continues below min_lr and below 0, where a step would increase the loss.
        return max(0.0, lr - (lr - least) * ratio)
    if schedule.style == "cosine":
        return least + (lr - least) * 0.5 * (math.cos(math.pi * min(1.0, ratio)) + 1)
    return lr  # also for "exponential", which upstream has not implemented
