"""Judges the weights before a step: initial weights must agree, later ones must be the optimizer's results."""

from __future__ import annotations

import math

from ascend_adapt.alignment import bounds
from ascend_adapt.alignment.findings import Finding
from ascend_adapt.alignment.phases.step import Step, owner


def first(step: Step) -> Finding | None:
    """Return the first weight whose difference is larger than the previous step explains."""
    pair, after = step.pair, step.group.after
    if after is None and step.number > 1:
        apart = pair.weights_together
        step.report.note(f"the weights differ by {apart:.2g} before step {step.number}; earlier steps are not compared")
        return None
    for name, error in pair.weight_errors.items():
        mine, theirs = pair.a.weights[name], pair.b.weights[name]
        limit = bounds.copied({mine[0]["dtype"], theirs[0]["dtype"]})
        if after is None:
            what = "differs before the first step"
        else:
            what = "was changed after the optimizer's step, or during the forward pass"
            limit += bounds.GAIN * after.get(name, math.inf)
        if error > limit:
            both = f"A: {pair.a.value(mine)}", f"B: {pair.b.value(theirs)}"
            return step.finding("weights", owner(name), f"{name[1]} {what}", error, limit, *both)
    return None
