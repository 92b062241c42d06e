"""Judges the batch: the inputs that the script passes to the model."""

from __future__ import annotations

from ascend_adapt.alignment import bounds
from ascend_adapt.alignment.findings import Finding
from ascend_adapt.alignment.phases.step import Step, shown
from ascend_adapt.alignment.step_view import Key


def first(step: Step) -> Finding | None:
    """Return the first input of the model that differs, leaving out inputs that a module computed."""
    for key in _outermost(step):
        for path, error in step.pair.errors(key, "inputs").items():
            mine, theirs = (side.tensors(key, "inputs")[path][0] for side in (step.pair.a, step.pair.b))
            limit = bounds.copied({mine["dtype"], theirs["dtype"]})
            if "gradient" not in mine and error > limit:
                what = f"the batches differ: input {shown(path)} of {step.name(key)}"
                return step.finding("batch", key, what, error, limit, *step.both(key, "inputs", path))
    return None


def _outermost(step: Step) -> list[Key]:
    """Return the script's calls of the first model that it calls."""
    tops = [key for key in step.pair.inside(None) if not key[3]]
    return [key for key in tops if key[:2] == tops[0][:2]]
