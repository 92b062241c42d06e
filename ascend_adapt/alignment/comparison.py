"""Compares two recordings: finds the first module whose result differs by more than its inputs and dtype explain.

Every call of a module is judged separately. Its inputs, weights and outputs differ by some amount between the
runs. The outputs may differ by the rounding of the module's arithmetic (bounds.py), plus GAIN times the difference of
the inputs. So a difference is attributed to where it arises, not to where it is largest. Code between two modules
belongs to the module around them, and code outside all modules to the script.
"""

from __future__ import annotations

from ascend_adapt.alignment import bounds
from ascend_adapt.alignment.findings import Finding, Report
from ascend_adapt.alignment.phases import batch, forward, gradients, optimizer, weights
from ascend_adapt.alignment.phases.backward import Backward
from ascend_adapt.alignment.phases.step import Step
from ascend_adapt.alignment.phases.update import updates_of
from ascend_adapt.alignment.rank_groups import RankGroup, matched
from ascend_adapt.alignment.recording import Recording


def compare(a: dict[int, Recording], b: dict[int, Recording]) -> Report:
    """Compare two recordings rank by rank. A single rank may be compared with a tensor-parallel group of ranks.

    Raises:
        AlignmentError: the recordings have no step in common, or their ranks cannot be matched.
    """
    report = Report()
    groups = list(matched(a, b))
    for name, run, compared in (
        ("A", a, {id(one) for group in groups for one in group.ours}),
        ("B", b, {id(one) for group in groups for one in group.theirs}),
    ):
        if left := [rank for rank, one in sorted(run.items()) if id(one) not in compared]:
            report.note(f"not recorded in the other run, and not compared: {_shown('ranks', left)} of {name}")
    for group in groups:
        steps = group.steps()
        report.steps = report.steps or steps
        every = {number for one in (*group.ours, *group.theirs) for number in one.steps}
        if missing := sorted(every - set(steps)):
            report.note(f"not recorded by every rank of both runs, and not compared: {_shown('steps', missing)}")
        finding = _first_of_ranks(group, steps, report)
        if finding is not None:
            report.findings.append(finding)
    return report


def _shown(name: str, numbers: list[int]) -> str:
    return f"{name} {', '.join(map(str, numbers[:8]))}{', ...' * (len(numbers) > 8)}"


def _first_of_ranks(group: RankGroup, steps: list[int], report: Report) -> Finding | None:
    matmul = {one.facts.get("matmul", "float32") for one in (*group.ours, *group.theirs)}
    compute = bounds.unit_roundoff(matmul)
    for earlier, number in zip([None, *steps], steps, strict=False):
        pair = group.pair(number, compute)
        if earlier is None or earlier != number - 1:
            group.after = None
        finding = _first_of_step(Step(number, pair, group, report))
        if pair.uncompared:
            shown = ", ".join(sorted(pair.uncompared)[:3])
            report.note(f"{len(pair.uncompared)} tensors have layouts that cannot be joined: {shown} ...")
        if finding is not None:
            return finding
    return None


def _first_of_step(step: Step) -> Finding | None:
    """Return the first divergence in a step, in the order of training."""
    step.note_structure()
    finding = batch.first(step) or weights.first(step) or _first_of_passes(step)
    if finding is not None:
        return finding
    updates = updates_of(step)
    return gradients.first(step, updates) or optimizer.first(step, updates)


def _first_of_passes(step: Step) -> Finding | None:
    """Return the first divergence in the forward and backward passes, which alternate with several micro batches."""
    found = [forward.first(step), forward.first_recomputed(step), Backward(step).first()]
    return min((one for one in found if one is not None), key=lambda one: one.moment, default=None)
