"""Judges the forward pass, and what activation checkpointing recomputes during the backward pass."""

from __future__ import annotations

from ascend_adapt.alignment import bounds
from ascend_adapt.alignment.findings import Finding
from ascend_adapt.alignment.phases.step import Step, shown
from ascend_adapt.alignment.step_view import Key


def first(step: Step) -> Finding | None:
    """Return the first difference that arises in the forward pass."""
    pair, known = step.pair, 0.0
    for key in pair.inside(None):
        if key[3]:
            continue
        finding = _input(step, None, key, pair.allowed(key), known, "forward") or _visit(step, key, "forward")
        if finding is not None:
            return finding
        known = max(known, pair.worst(key, "inputs"), pair.worst(key, "outputs"))
    step.forward_error = max(known, pair.weights_together)
    return None


def first_recomputed(step: Step) -> Finding | None:
    """Return the first difference that arises in recomputation."""
    recomputed = (key for key in step.pair.inside(None) if key[3])
    return next((found for key in recomputed if (found := _visit(step, key, "recomputation"))), None)


def _visit(step: Step, key: Key, phase: str) -> Finding | None:
    """Return the first difference that arises in a call, from the innermost calls outwards."""
    pair = step.pair
    inner = pair.inside(key)
    own = pair.allowed(key)
    known = max(pair.worst(key, "inputs"), pair.weights_together if inner else pair.of_weights(key))
    for each in inner:
        finding = _input(step, key, each, own, known, phase) or _visit(step, each, phase)
        if finding is not None:
            return finding
        known = max(known, pair.worst(each, "inputs"), pair.worst(each, "outputs"))
    limit = own + bounds.GAIN * known
    for path, error in pair.errors(key, "outputs").items():
        step.keep_largest(phase, error, step.name(key))
        if error > limit:
            what = "its output differs, but its inputs and weights agree"
            if inner:
                what += f"; the modules inside it agree as well, so its code after {step.name(inner[-1])} differs"
            return step.finding_at(phase, key, what, error, limit, (key, "outputs", path))
    return None


def _input(step: Step, around: Key | None, key: Key, own: float, known: float, phase: str) -> Finding | None:
    """Judge the inputs of a call, which the surrounding code computes."""
    path, error = max(step.pair.errors(key, "inputs").items(), key=lambda item: item[1], default=("", 0.0))
    limit = own + bounds.GAIN * known
    if error > limit:
        what = f"the code before its call of {step.name(key)} differs: input {shown(path)} of that module"
        return step.finding_at(phase, around, what, error, limit, (key, "inputs", path))
    return None
