"""Judges gradients as the optimizer receives them: reduced over ranks, accumulated, unscaled and clipped."""

from __future__ import annotations

import math

from ascend_adapt.alignment import bounds, values
from ascend_adapt.alignment.findings import Finding
from ascend_adapt.alignment.phases.step import Step
from ascend_adapt.alignment.phases.update import Update
from ascend_adapt.alignment.step_view import Pair, WeightKey


def first(step: Step, updates: list[Update]) -> Finding | None:
    """Return the gradient difference that arises between the backward pass and the optimizer.

    Clipping scales all gradients by their global norm. So a gradient that differs in more than its scale explains why
    the others differ in scale only.
    """
    found = [each for each in map(_reduced, updates) if each is not None]
    return min(found, key=lambda each: each[0])[1] if found else None


def _reduced(update: Update) -> tuple[bool, Finding] | None:
    """Return whether a gradient differs only by a factor, and the finding for it."""
    step, pair, name = update.step, update.step.pair, update.name[1]
    if ("gradient" in update.mine) != ("gradient" in update.theirs):
        what = f"{name} has no gradient in {'A' if 'gradient' in update.theirs else 'B'}"
        return False, update.finding("gradients", what, math.inf, 0.0)
    if "gradient" not in update.mine:
        return None
    one, other = update.sides("gradient")
    apart = pair.compared(one, other, name)
    if apart is None or one is None or other is None:
        return None
    passed = max(pair.gradients_together, _backward_error(pair, update.name))
    limit = bounds.elementwise({one.dtype, other.dtype}) + bounds.GAIN * passed
    step.keep_largest("gradients", apart, name)
    if apart <= limit:
        return None
    factor, rest = values.factor(one, other)
    what = f"the gradient of {name} differs in the optimizer, but agrees in the backward pass: "
    if is_scaled := rest <= limit:
        what += f"B's is {factor:.4g} times A's: averaging, unscaling or clipping differs"
    else:
        what += "reduction over ranks, accumulation or zero_grad differs"
    return is_scaled, update.finding("gradients", what, apart, limit, f"A: {one}", f"B: {other}")


def _backward_error(pair: Pair, name: WeightKey) -> float:
    """Return the difference of a parameter's gradient after the backward passes."""
    keys = [key for key in pair.a.gradients if key[:2] == name and key in pair.b.gradients]
    errors = (values.error(pair.a.value(pair.a.gradients[key]), pair.b.value(pair.b.gradients[key])) for key in keys)
    return max(errors, default=0.0)
