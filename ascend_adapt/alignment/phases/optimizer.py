"""Judges the optimizer: its hyperparameters, its state, and how it changes each weight."""

from __future__ import annotations

import math
from typing import Any

from ascend_adapt.alignment import bounds, values
from ascend_adapt.alignment.findings import Finding
from ascend_adapt.alignment.phases.step import Step
from ascend_adapt.alignment.phases.update import Update
from ascend_adapt.alignment.step_view import WeightKey

_IRRELEVANT = {"foreach", "fused", "capturable", "differentiable", "params", "initial_lr"}


def first(step: Step, updates: list[Update]) -> Finding | None:
    """Return the first difference that arises in the optimizer. If there is none, keep the weights' differences."""
    pair = step.pair
    # The updates of an optimizer with flat buffers do not show which weights change.
    hidden = any(key[1] < 0 for key in pair.a.updates)
    after = {} if hidden else dict(pair.weight_errors)
    for name, error in pair.weight_errors.items():
        if not pair.a.weights[name][0].get(
            "parameter", True
        ):  # such as a running mean, which the forward pass has updated
            after[name] = max(error, step.forward_error)
    for update in updates:
        finding = _updated(update, after)
        if finding is not None:
            return finding
    step.group.after = after
    return None


def _updated(update: Update, after: dict[WeightKey, float]) -> Finding | None:
    mine, theirs = update.mine, update.theirs
    settings = [
        f"{what} {value} and {theirs['settings'].get(what)}"
        for what, value in mine["settings"].items()
        if what not in _IRRELEVANT and what in theirs["settings"] and theirs["settings"][what] != value
    ]
    if mine["class"] == theirs["class"] and settings:
        what = f"{mine['class']} updates {update.name[1]} with different hyperparameters: {', '.join(settings)}"
        return update.finding("optimizer", what, math.inf, 0.0)
    if not update.both_have("gradient"):
        return None
    gradient = values.error(*update.sides("gradient"))
    found = _states(update, gradient)
    return found if isinstance(found, Finding) else _weight(update, found, after)


def _states(update: Update, gradient: float) -> Finding | float:
    """Judge the optimizer state after the step, given the differences of the gradient and of the state before it.

    Return the finding, or the largest of these differences.
    """
    name, known, largest = update.name[1], update.step.group.states, gradient
    for state in update.mine["state"]:
        if state not in update.theirs["state"]:
            continue
        one, other = update.sides("state", state)
        apart = update.step.pair.compared(one, other, f"{name} {state}")
        if apart is None or one is None or other is None:
            continue
        passed = gradient + known.get((update.key, state), 0.0)
        limit = bounds.elementwise({one.dtype, other.dtype}) + bounds.GAIN * passed
        if apart > limit:
            what = f"{update.mine['class']}'s {state} of {name} differs, but its gradient agrees"
            return update.finding("optimizer", what, apart, limit, f"A: {one}", f"B: {other}")
        known[update.key, state] = apart
        largest = max(largest, apart)
    return largest


def _weight(update: Update, passed: float, after: dict[WeightKey, float]) -> Finding | None:
    """Judge the change of a weight.

    Adam divides by the size of the gradient, so elements that are small compared with their error may change sign.
    Their share is about the relative error, so the bound contains its square root. The gradient of a key bias is 0
    except for rounding, so the update of a vector is judged only if the gradients are equal.
    """
    step, name = update.step, update.name
    (a0, b0), (a1, b1) = update.sides("before"), update.sides("after")
    if a0 is None or b0 is None or a1 is None or b1 is None or step.pair.compared(a1, b1, name[1]) is None:
        return None
    error = values.error(a1, b1)
    after[name] = max(after.get(name, 0.0), error)
    step.group.states[update.key, "after"] = after[name]
    changes = [
        one.numbers[values.FIRST_BUCKET :] - zero.numbers[values.FIRST_BUCKET :] for one, zero in ((a1, a0), (b1, b0))
    ]
    size = max(_norm(each) for each in changes)
    if not size > 0:
        return None
    apart = _norm(changes[0] - changes[1]) / size
    rounding = bounds.elementwise({a1.dtype, b1.dtype}) * (1.0 + max(a1.norm, b1.norm) / size)
    limit = rounding + bounds.GAIN * math.sqrt(max(passed, values.error(a0, b0)))
    step.keep_largest("optimizer", error, name[1])
    is_noise = passed > 0 and len(a1.shape) < 2
    if apart > limit and not is_noise:
        what = f"{update.mine['class']}'s update of {name[1]} differs, but its gradient and state agree"
        return update.finding("optimizer", what, apart, limit, f"A: {a1}", f"B: {b1}")
    return None


def _norm(sketch: Any) -> float:
    return math.sqrt(float((sketch**2).sum()))
