"""Compares two recordings: finds the first module whose result differs by more than its inputs and dtype explain.

Every call of a module is judged by itself. Its inputs, weights and outputs differ by some amount between the runs; the
outputs may differ by what its own arithmetic can round (bounds.py) plus GAIN times the difference of what it was given.
So a difference is attributed to where it arises, not to where it is largest. Code between two modules belongs to the
module around them, and code outside all modules to the script.

The order is that of training: the batch, the weights before the step, the forward pass, recomputation, the backward
pass, what happens to gradients before the optimizer, and the optimizer.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

from ascend_adapt.alignment import bounds, values
from ascend_adapt.alignment.recording import Recording
from ascend_adapt.alignment.step_view import Key, Pair, StepView, WeightKey
from ascend_adapt.alignment.values import Value
from ascend_adapt.errors import AlignmentError

PHASES = ("batch", "weights", "forward", "recomputation", "backward", "gradients", "optimizer")
SCRIPT = "the script"
_IRRELEVANT = {"foreach", "fused", "capturable", "differentiable", "params", "initial_lr"}


@dataclass(frozen=True)
class Finding:
    """Where two runs diverge: the step, the phase, the module, and what differs there."""

    step: int
    phase: str
    module: str
    what: str
    error: float
    allowed: float
    rank: int = 0
    call: int = 0
    details: tuple[str, ...] = ()
    replayable: bool = False
    """Whether a replay of the module shows the difference, from its inputs."""
    moment: int = 0
    """Number of A's tensor that differs first, in the order of time inside the step."""


@dataclass
class Report:
    """The result of a comparison."""

    findings: list[Finding] = field(default_factory=list)
    steps: list[int] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    largest: dict[str, tuple[float, str]] = field(default_factory=dict)
    """The largest difference of each phase, and where, where no difference was too large."""

    @property
    def first(self) -> Finding | None:
        """The first divergence of the runs."""
        order = {phase: number for number, phase in enumerate(PHASES)}
        return min(
            self.findings,
            key=lambda one: (one.step, order[one.phase], one.module.startswith(SCRIPT), one.rank),
            default=None,
        )

    def to_json(self) -> dict[str, Any]:
        """Return plain data; an infinite difference is null."""
        findings = [
            {key: None if value == math.inf else value for key, value in asdict(one).items()} for one in self.findings
        ]
        first = self.first
        return {
            "agree": first is None,
            "first": findings[self.findings.index(first)] if first is not None else None,
            "findings": findings,
            "steps": self.steps,
            "notes": self.notes,
            "largest": {phase: {"error": error, "at": where} for phase, (error, where) in self.largest.items()},
        }


def compare(a: dict[int, Recording], b: dict[int, Recording]) -> Report:
    """Compare two recordings rank by rank; one rank is compared with a tensor-parallel group of ranks.

    Raises:
        AlignmentError: they have no step in common, or ranks that cannot be matched.
    """
    report = Report()
    groups = list(_matched(a, b))
    for rank, ours, theirs in groups:
        steps = sorted(set.intersection(*(set(each.steps) for each in (*ours, *theirs))))
        if not steps:
            raise AlignmentError(
                f"rank {rank}: steps {sorted(ours[0].steps)} and {sorted(theirs[0].steps)} were recorded, expected "
                "steps in common — record the same steps in both, with --record-steps"
            )
        report.steps = report.steps or steps
        _Ranks(rank, ours, theirs, report).compare(steps)
    return report


def _matched(
    a: dict[int, Recording], b: dict[int, Recording]
) -> Iterator[tuple[int, list[Recording], list[Recording]]]:
    """Yield (rank, recordings of A, recordings of B) for each pair of ranks or tensor-parallel groups."""
    sizes = [next(iter(each.values())).tensor_ranks[1] for each in (a, b)]
    small, large = sorted(sizes)
    if large % small or (small != large and small != 1):
        raise AlignmentError(
            f"tensor-parallel sizes {sizes[0]} and {sizes[1]}, expected equal sizes, or 1 in one run — record again"
        )

    def groups(run: dict[int, Recording], size: int) -> dict[int, list[Recording]]:
        wide = large // size if size == small and small != large else 1
        if size == small:
            return {rank * wide: [one] for rank, one in run.items()}
        found: dict[int, list[Recording]] = defaultdict(list)
        for rank, one in sorted(run.items()):
            found[rank - one.tensor_ranks[0]].append(one)
        return {rank: ranks for rank, ranks in found.items() if len(ranks) == size}

    ours, theirs = groups(a, sizes[0]), groups(b, sizes[1])
    common = sorted(ours.keys() & theirs.keys())
    if not common:
        raise AlignmentError(
            f"ranks {sorted(a)} and {sorted(b)} were recorded, expected ranks in common — record the same "
            "ranks, with --record-ranks"
        )
    for rank in common:
        yield rank, ours[rank], theirs[rank]


class _Ranks:
    """The comparison of one rank, or group of ranks, of both runs over all steps."""

    def __init__(self, rank: int, ours: list[Recording], theirs: list[Recording], report: Report) -> None:
        self.rank, self.ours, self.theirs, self.report = rank, ours, theirs, report
        matmul = {one.facts.get("matmul", "float32") for one in (*ours, *theirs)}
        self.compute = bounds.unit_roundoff(matmul)
        self.after: dict[WeightKey, float] | None = None
        self.states: dict[tuple[Any, ...], float] = {}

    def compare(self, steps: list[int]) -> None:
        for earlier, step in zip([None, *steps], steps, strict=False):
            pair = Pair(
                StepView([one.steps[step] for one in self.ours]),
                StepView([one.steps[step] for one in self.theirs]),
                self.compute,
                len(self.ours) == len(self.theirs),
                self.ours[0].facts.get("form") == self.theirs[0].facts.get("form"),
            )
            if not any(pair.has(key) for key in pair.a.calls):
                raise AlignmentError(
                    f"rank {self.rank}: the recordings have no module in common, expected the same model in both — "
                    "record the same model"
                )
            if earlier is None or earlier != step - 1:
                self.after = None
            finding = _Step(self, pair, step).first()
            if pair.uncompared:
                shown = ", ".join(sorted(pair.uncompared)[:3])
                self.note(f"{len(pair.uncompared)} tensors have layouts that cannot be joined: {shown} ...")
            if finding is not None:
                self.report.findings.append(finding)
                return

    def note(self, text: str) -> None:
        if text not in self.report.notes:
            self.report.notes.append(text)


class _Step:
    """One step of one rank of both runs."""

    def __init__(self, ranks: _Ranks, pair: Pair, number: int) -> None:
        self.ranks, self.pair, self.number = ranks, pair, number
        self.forward_error = 0.0

    def first(self) -> Finding | None:
        """Return the first divergence in this step."""
        self._note_structure()
        return self._batch() or self._weights() or self._passes() or self._optimizer()

    def _passes(self) -> Finding | None:
        """Judge the forward and backward passes, which alternate where there are several micro-batches."""
        found = [one for one in (self._forward(), self._recomputation(), self._backward()) if one is not None]
        return min(found, key=lambda one: one.moment, default=None)

    def finding(
        self,
        phase: str,
        key: Key | None,
        what: str,
        error: float,
        allowed: float,
        *details: str,
        replay: bool = False,
        moment: int = 0,
    ) -> Finding:
        """Return a finding at a call; None: outside all modules."""
        name = SCRIPT if key is None else self._name(key)
        more = [*details, *(self._settings(key) if key is not None else []), *self._random_states()]
        return Finding(
            self.number,
            phase,
            name,
            what,
            error,
            allowed,
            self.ranks.rank,
            key[2] if key is not None else 0,
            tuple(more),
            replay,
            moment,
        )

    def seen(self, phase: str, error: float, where: str) -> None:
        """Remember the largest difference of a phase, for the report."""
        largest = self.ranks.report.largest
        if error > largest.get(phase, (0.0, ""))[0]:
            largest[phase] = (error, f"{where}, step {self.number}")

    def _name(self, key: Key) -> str:
        described = self.ranks.ours[0].modules.get(key[:2], {})
        return key[1] or described.get("class", "the model")

    def _settings(self, key: Key) -> list[str]:
        """Return how the modules of both runs differ in class, settings and arguments."""
        ours, theirs = (side[0].modules.get(key[:2], {}) for side in (self.ranks.ours, self.ranks.theirs))
        found = [
            f"{what}: {ours[what]} and {theirs[what]}"
            for what in ("class", "settings")
            if what in ours and what in theirs and ours[what] != theirs[what]
        ]
        return [*found, *(f"argument {each}" for each in self.pair.scalars(key))]

    def _note_structure(self) -> None:
        for side, other, name in ((self.pair.a, self.pair.b, "A"), (self.pair.b, self.pair.a, "B")):
            for what, mine, theirs in (
                ("modules", {key[1] for key in side.calls if key[1]}, {key[1] for key in other.calls}),
                ("weights", {key[1] for key in side.weights}, {key[1] for key in other.weights}),
            ):
                if only := sorted(mine - theirs):
                    more = f" and {len(only) - 4} more" if len(only) > 4 else ""
                    self.ranks.note(f"{what} only in {name}: {', '.join(only[:4])}{more}")

    def _random_states(self) -> list[str]:
        """Return the random number generators whose states differ before the step."""
        ours, theirs = (side.facts.get("random_state", {}) for side in (self.pair.a, self.pair.b))
        found = [name for name in ours if theirs.get(name, ours[name]) != ours[name]]
        return [f"RNG states that differ before the step: {', '.join(found)}"] if found else []

    # Batch and weights

    def _batch(self) -> Finding | None:
        for key in self._outermost():
            for path, error in self.pair.errors(key, "inputs").items():
                entry = self.pair.a.tensors(key, "inputs")[path][0]
                if "gradient" in entry:
                    continue
                limit = bounds.allowed(0, 1, bounds.unit_roundoff(self._dtypes(key, path)), bounds.unit_roundoff(()))
                if error > limit:
                    shown = path.removeprefix("args.").removeprefix("kwargs.")
                    what = f"the batches differ: input {shown} of {self._name(key)}"
                    return self.finding("batch", key, what, error, limit, *self._both(key, "inputs", path))
        return None

    def _outermost(self) -> list[Key]:
        """Return the calls that the script makes of the model that it calls first."""
        tops = [key for key in self.pair.inside(None) if not key[3]]
        return [key for key in tops if key[:2] == tops[0][:2]]

    def _weights(self) -> Finding | None:
        for name, error in self.pair.weight_errors.items():
            dtypes = {side.weights[name][0]["dtype"] for side in (self.pair.a, self.pair.b)}
            exact = bounds.allowed(0, 1, bounds.unit_roundoff(dtypes), bounds.unit_roundoff(()))
            if self.ranks.after is None:
                if self.number == 1 and error > exact:
                    return self._of_weight("weights", name, "differs before the first step", error, exact)
                continue
            limit = exact + bounds.GAIN * self.ranks.after.get(name, math.inf)
            if error > limit:
                what = "was changed after the optimizer's step, or during the forward pass"
                return self._of_weight("weights", name, what, error, limit)
        if self.ranks.after is None and self.number > 1:
            apart = self.pair.weights_together
            self.ranks.note(
                f"the weights differ by {apart:.2g} before step {self.number}; earlier steps are not compared"
            )
        return None

    def _weight(self, name: WeightKey) -> tuple[Value | None, Value | None]:
        return self.pair.a.value(self.pair.a.weights[name]), self.pair.b.value(self.pair.b.weights[name])

    def _of_weight(self, phase: str, name: WeightKey, what: str, error: float, allowed: float) -> Finding:
        one, other = self._weight(name)
        owner = (name[0], name[1].rpartition(".")[0], 0, False)
        return self.finding(phase, owner, f"{name[1]} {what}", error, allowed, f"A: {one}", f"B: {other}")

    # Forward

    def _forward(self) -> Finding | None:
        known = 0.0
        for key in self.pair.inside(None):
            if key[3]:
                continue
            given = self.pair.worst(key, "inputs")
            limit = self.pair.allowed(key) + bounds.GAIN * known
            if given > limit:
                return self._of_input(None, key, given, limit)
            finding = self._visit(key, "forward")
            if finding is not None:
                return finding
            known = max(known, given, self.pair.worst(key, "outputs"))
        self.forward_error = max(known, self.pair.weights_together)
        return None

    def _visit(self, key: Key, phase: str) -> Finding | None:
        """Return the first difference that arises in a call, from the innermost calls outwards."""
        pair = self.pair
        inner = pair.inside(key)
        own = pair.allowed(key)
        known = max(pair.worst(key, "inputs"), pair.weights_together if inner else pair.of_weights(key))
        for each in inner:
            given = pair.worst(each, "inputs")
            limit = own + bounds.GAIN * known
            if given > limit:
                return self._of_input(key, each, given, limit, phase)
            finding = self._visit(each, phase)
            if finding is not None:
                return finding
            known = max(known, given, pair.worst(each, "outputs"))
        limit = own + bounds.GAIN * known
        for path, error in pair.errors(key, "outputs").items():
            self.seen(phase, error, self._name(key))
            if error > limit:
                what = "its output differs, its inputs and weights agree"
                if inner:
                    what += f"; so does what the modules inside it return: its own code after {self._name(inner[-1])}"
                moment, both = self._row(key, "outputs", path), self._both(key, "outputs", path)
                return self.finding(phase, key, what, error, limit, *both, replay=True, moment=moment)
        return None

    def _of_input(self, around: Key | None, key: Key, error: float, allowed: float, phase: str = "forward") -> Finding:
        path = max(self.pair.errors(key, "inputs").items(), key=lambda item: item[1])[0]
        shown = path.removeprefix("args.").removeprefix("kwargs.")
        what = f"what it computes before it calls {self._name(key)} differs: input {shown} of that module"
        moment, both = self._row(key, "inputs", path), self._both(key, "inputs", path)
        return self.finding(phase, around, what, error, allowed, *both, replay=around is not None, moment=moment)

    def _recomputation(self) -> Finding | None:
        for key in self.pair.inside(None):
            if key[3]:
                finding = self._visit(key, "recomputation")
                if finding is not None:
                    return finding
        return None

    # Backward

    def _backward(self) -> Finding | None:
        tops = [key for key in self.pair.inside(None) if not key[3] and self._first_gradient(key) is not None]
        self._consumers = self._last_consumers()
        self._around = {key: around for around in self.pair.a.calls for key in self.pair.inside(around)}
        self._checked: set[tuple[int, str, int]] = set()
        known = self.forward_error
        for key in sorted(tops, key=lambda key: self._first_gradient(key) or 0):
            finding = self._gradient_of_output(None, key, known) or self._visit_backward(key, known)
            if finding is not None:
                return finding
            known = max(known, self.pair.worst(key, "inputs", "gradient"), self.pair.worst(key, "outputs", "gradient"))
        for name, root, index in sorted((name, root, index) for root, name, index in self.pair.a.gradients):
            finding = self._gradient_of_parameter((root, name, index), None, known, 0.0)
            if finding is not None:
                return finding
        return None

    def _first_gradient(self, key: Key) -> int | None:
        rows = [entry[0].get("gradient") for entry in self.pair.a.tensors(key, "outputs").values()]
        return min((row for row in rows if row is not None), default=None)

    def _last_consumers(self) -> dict[Key, list[str]]:
        """Return, for the last call in the order of the backward pass that shares an input, the names of all that do.

        The gradient of an input is the sum over its consumers, so it is judged when all of them are known. A call
        whose input is passed to calls inside it is none of them.
        """
        by_row: dict[int, list[Key]] = defaultdict(list)
        rows = {key: self._input_rows(key) for key in self.pair.a.calls if self.pair.has(key)}
        for key, mine in rows.items():
            deeper = {row for inner in self._all_inside(key) for row in rows.get(inner, ())}
            for row in mine - deeper:
                by_row[row].append(key)
        found: dict[Key, list[str]] = {}
        for keys in by_row.values():
            last = min(keys, key=lambda key: int(self.pair.a.calls[key][0]["id"]))
            found[last] = [self._name(key) for key in sorted(keys)]
        return found

    def _all_inside(self, key: Key) -> Iterator[Key]:
        for each in self.pair.inside(key):
            yield each
            yield from self._all_inside(each)

    def _input_rows(self, key: Key) -> set[int]:
        rows = (entry[0].get("gradient") for entry in self.pair.a.tensors(key, "inputs").values())
        return {row for row in rows if row is not None}

    def _gradient_of_output(self, around: Key | None, key: Key, known: float) -> Finding | None:
        limit = (self.pair.allowed(key) if around is None else self.pair.allowed(around)) + bounds.GAIN * known
        for path, error in self.pair.errors(key, "outputs", "gradient").items():
            if error > limit:
                if around is None:
                    what = f"the gradient from the loss to {self._name(key)} differs: labels, loss or loss scale"
                else:
                    what = f"its backward pass after {self._name(key)} differs: the gradient of that module's output"
                moment, both = self._row(key, "outputs", path, "gradient"), self._both(key, "outputs", path, "gradient")
                replay = around is not None
                return self.finding("backward", around, what, error, limit, *both, replay=replay, moment=moment)
        return None

    def _visit_backward(self, key: Key, outside: float) -> Finding | None:
        pair = self.pair
        inner = pair.inside(key)
        own = pair.allowed(key)
        forward = max(pair.worst(key, "inputs"), pair.worst(key, "outputs"), pair.of_weights(key))
        known = max(outside, forward, pair.worst(key, "outputs", "gradient"))
        for each in reversed(inner):
            finding = self._gradient_of_output(key, each, known) or self._visit_backward(each, known)
            if finding is not None:
                return finding
            known = max(known, pair.worst(each, "inputs", "gradient"), pair.worst(each, "outputs", "gradient"))
        for root, name in pair.own_weights(key):
            finding = self._gradient_of_parameter((root, name, key[2]), key, known, self._size_of_terms(key))
            if finding is not None:
                return finding
        if key not in self._consumers:
            return None
        limit = own + bounds.GAIN * known
        for path, error in pair.errors(key, "inputs", "gradient").items():
            self.seen("backward", error, self._name(key))
            if error > limit:
                what = "the gradient of its input differs, that of its output agrees"
                together = self._consumers[key]
                if len(together) > 1:
                    what += f"; the input is shared by {', '.join(together)}: any of them may be the cause"
                around = self._around.get(key)
                if around is not None:
                    what += f" (or the code of {self._name(around)} uses that input too)"
                moment, both = self._row(key, "inputs", path, "gradient"), self._both(key, "inputs", path, "gradient")
                return self.finding("backward", key, what, error, limit, *both, replay=True, moment=moment)
        return None

    def _size_of_terms(self, key: Key) -> float:
        """Return the size of what is summed over positions into the gradient of a weight, which may cancel."""
        sizes = []
        for part, of in (("outputs", "gradient"), ("inputs", "row")):
            for entries in self.pair.a.tensors(key, part).values():
                value = self.pair.a.value(entries, of) if "row" in entries[0] else None
                if value is not None and value.is_float:
                    rows = max(1, value.count // max(1, value.shape[-1] if value.shape else 1))
                    sizes.append(value.norm if part == "outputs" else value.norm / math.sqrt(rows))
                    break
            else:
                sizes.append(0.0 if part == "outputs" else 1.0)
        return sizes[0] * max(1.0, sizes[1])

    def _gradient_of_parameter(
        self, name: tuple[int, str, int], key: Key | None, known: float, size: float
    ) -> Finding | None:
        pair = self.pair
        if name in self._checked or name not in pair.a.gradients:
            return None
        self._checked.add(name)
        if name not in pair.b.gradients:
            what = f"{name[1]} gets no gradient in B"
            owner, moment = key or (name[0], name[1].rpartition(".")[0], 0, False), pair.a.gradients[name][0]["row"]
            return self.finding("backward", owner, what, math.inf, 0.0, moment=moment)
        one, other = pair.a.value(pair.a.gradients[name]), pair.b.value(pair.b.gradients[name])
        apart = pair.compared(one, other, name[1])
        if one is None or other is None or apart is None:
            return None
        limits = pair.limits(key) if key is not None else None
        terms = (limits.terms if limits else 1) + one.count // max(1, one.shape[-1] if one.shape else 1)
        positions = self._positions(key)
        own = bounds.allowed(
            terms + positions,
            bounds.OPERATIONS_A_CALL,
            bounds.unit_roundoff({one.dtype, other.dtype} | (limits.dtypes if limits else set())),
            pair.compute,
        )
        norm = max(one.norm, other.norm)
        limit = (own + bounds.GAIN * known) * (max(1.0, size / norm) if norm else 1.0)
        self.seen("backward", apart, name[1])
        if apart > limit:
            what = f"the gradient of {name[1]} differs, that of the output agrees"
            owner = key or (name[0], name[1].rpartition(".")[0], 0, False)
            both, moment = (f"A: {one}", f"B: {other}"), pair.a.gradients[name][0]["row"]
            return self.finding("backward", owner, what, apart, limit, *both, replay=True, moment=moment)
        return None

    def _positions(self, key: Key | None) -> int:
        if key is None:
            return 1
        shapes = [entry[0]["shape"] for entry in self.pair.a.tensors(key, "outputs").values() if "row" in entry[0]]
        return max((math.prod(shape[:-1]) for shape in shapes), default=1)

    # Optimizer

    def _optimizer(self) -> Finding | None:
        pair = self.pair
        # An optimizer of flat buffers does not show which weights it changes.
        hidden = any(key[1] < 0 for key in pair.a.updates)
        after = {name: error for name, error in pair.weight_errors.items() if not hidden}
        buffers = {name for name in pair.weight_errors if not pair.a.weights[name][0].get("parameter", True)}
        for name in buffers:  # such as running means, which the forward pass has updated
            after[name] = max(pair.weight_errors[name], self.forward_error)
        together = pair.gradients_together
        passed = {name: self._backward_error(name) for name in {key[1:] for key in pair.a.updates}}
        pairs = [
            (key, mine[0], pair.b.updates[key][0]) for key, mine in pair.a.updates.items() if key in pair.b.updates
        ]
        pairs = [each for each in pairs if not self._is_other_partition(each[0], *each[1:])]
        reduced = [self._reduced(key, mine, theirs, max(together, passed[key[1:]])) for key, mine, theirs in pairs]
        if found := [each for each in reduced if each is not None]:
            # Clipping scales all gradients by their norm: one that differs by more than a factor explains the others.
            return min(found, key=lambda each: each[0])[1]
        for key, mine, theirs in pairs:
            finding = self._updated(key, mine, theirs, after)
            if finding is not None:
                return finding
        self.ranks.after = after
        return None

    def _backward_error(self, name: WeightKey) -> float:
        """Return the difference of a parameter's gradient as the backward passes left it."""
        errors = [0.0]
        for key, mine in self.pair.a.gradients.items():
            if key[:2] == name and key in self.pair.b.gradients:
                errors.append(values.error(self.pair.a.value(mine), self.pair.b.value(self.pair.b.gradients[key])))
        return max(errors)

    def _is_other_partition(self, key: Any, mine: Any, theirs: Any) -> bool:
        """Return whether a flat buffer of weights, which has no name, holds other weights in both runs."""
        if key[1] >= 0 or "before" not in mine or "before" not in theirs:
            return False
        one, other = self._sides(key, "before")
        apart = self.pair.compared(one, other, key[2])
        if apart is None or one is None or other is None:
            return True
        known = max(self.pair.weights_together, self.ranks.states.get((key, "after"), 0.0))
        if apart <= self._elementwise({one.dtype, other.dtype}) + bounds.GAIN * known:
            return False
        self.pair.uncompared.add(f"optimizer's {key[2]}")
        return True

    def _reduced(self, key: Any, mine: Any, theirs: Any, passed: float) -> tuple[bool, Finding] | None:
        """Judge a gradient as the optimizer gets it: reduced over ranks, accumulated, unscaled and clipped.

        Return whether it differs by a factor alone, and the finding.
        """
        name = key[1:]
        if ("gradient" in mine) != ("gradient" in theirs):
            what = f"{name[1]} gets no gradient in {'A' if 'gradient' in theirs else 'B'}"
            return False, self._of_update("gradients", name, what, math.inf, 0.0)
        if "gradient" not in mine:
            return None
        one, other = self._sides(key, "gradient")
        apart = self.pair.compared(one, other, name[1])
        if apart is None or one is None or other is None:
            return None
        limit = self._elementwise({one.dtype, other.dtype}) + bounds.GAIN * passed
        self.seen("gradients", apart, name[1])
        if apart <= limit:
            return None
        factor, rest = values.factor(one, other)
        what = f"the gradient of {name[1]} differs in the optimizer, and agrees in the backward pass: "
        if is_scaled := rest <= limit:
            what += f"B's is {factor:.4g} times A's: averaging, unscaling or clipping differs"
        else:
            what += "reduction over ranks, accumulation or zero_grad differs"
        both = (f"A: {one}", f"B: {other}")
        return is_scaled, self._of_update("gradients", name, what, apart, limit, *both)

    def _updated(self, key: Any, mine: Any, theirs: Any, after: dict[WeightKey, float]) -> Finding | None:
        pair, name, of = self.pair, key[1:], f"{mine['class']}"
        settings = [
            f"{what} {value} and {theirs['settings'].get(what)}"
            for what, value in mine["settings"].items()
            if what not in _IRRELEVANT and what in theirs["settings"] and theirs["settings"][what] != value
        ]
        if mine["class"] == theirs["class"] and settings:
            what = f"{of} updates {name[1]} with different hyperparameters: {', '.join(settings)}"
            return self._of_update("optimizer", name, what, math.inf, 0.0)
        if "gradient" not in mine or "gradient" not in theirs:
            return None
        gradient = values.error(*self._sides(key, "gradient"))
        state_error = gradient
        for state in mine["state"]:
            if state not in theirs["state"]:
                continue
            one, other = self._sides(key, "state", state)
            apart = pair.compared(one, other, f"{name[1]} {state}")
            if apart is None or one is None or other is None:
                continue
            limit = self._elementwise({one.dtype, other.dtype}) + bounds.GAIN * (
                gradient + self.ranks.states.get((key, state), 0.0)
            )
            if apart > limit:
                what = f"{of}'s {state} of {name[1]} differs, its gradient agrees"
                return self._of_update("optimizer", name, what, apart, limit, f"A: {one}", f"B: {other}")
            self.ranks.states[key, state] = apart
            state_error = max(state_error, apart)
        return self._stepped(key, of, state_error, after)

    def _stepped(self, key: Any, of: str, passed: float, after: dict[WeightKey, float]) -> Finding | None:
        """Judge the change of a weight.

        Adam divides by the size of the gradient: elements that are near 0 by comparison with their error may change
        sign. Their share is about the relative error, hence its root; but the gradient of a bias of keys is 0 but for
        rounding, so the update of a vector is judged only if its gradients are equal.
        """
        pair, name = self.pair, key[1:]
        (a0, b0), (a1, b1) = self._sides(key, "before"), self._sides(key, "after")
        if a0 is None or b0 is None or a1 is None or b1 is None or pair.compared(a1, b1, name[1]) is None:
            return None
        after[name] = max(after.get(name, 0.0), values.error(a1, b1))
        self.ranks.states[key, "after"] = after[name]
        sketches = [
            one.numbers[values.FIRST_BUCKET :] - zero.numbers[values.FIRST_BUCKET :]
            for one, zero in ((a1, a0), (b1, b0))
        ]
        norms = [math.sqrt(float((each**2).sum())) for each in sketches]
        size = max(norms)
        if not size > 0:
            return None
        apart = math.sqrt(float(((sketches[0] - sketches[1]) ** 2).sum())) / size
        weights = max(a1.norm, b1.norm)
        rounding = self._elementwise({a1.dtype, b1.dtype}) * (1.0 + weights / size)
        limit = rounding + bounds.GAIN * math.sqrt(max(passed, values.error(a0, b0)))
        self.seen("optimizer", values.error(a1, b1), name[1])
        is_noise = passed > 0 and len(a1.shape) < 2
        if apart > limit and not is_noise:
            what = f"{of}'s update of {name[1]} differs, its gradient and state agree"
            return self._of_update("optimizer", name, what, apart, limit, f"A: {a1}", f"B: {b1}")
        return None

    def _of_update(
        self, phase: str, name: WeightKey, what: str, error: float, allowed: float, *details: str
    ) -> Finding:
        owner = (name[0], name[1] if name[0] < 0 else name[1].rpartition(".")[0], 0, False)
        return self.finding(phase, owner, what, error, allowed, *details)

    def _sides(self, key: Any, part: str, state: str | None = None) -> tuple[Value | None, Value | None]:
        found = []
        for side in (self.pair.a, self.pair.b):
            entries = [update[part] if state is None else update[part][state] for update in side.updates[key]]
            found.append(side.value(entries))
        return found[0], found[1]

    def _elementwise(self, dtypes: set[str]) -> float:
        return bounds.allowed(1, bounds.OPERATIONS_A_CALL, bounds.unit_roundoff(dtypes), bounds.unit_roundoff(()))

    def _row(self, key: Key, part: str, path: str, of: str = "row") -> int:
        return int(self.pair.a.tensors(key, part)[path][0].get(of) or 0)

    def _dtypes(self, key: Key, path: str) -> set[str]:
        return {side.tensors(key, "inputs")[path][0]["dtype"] for side in (self.pair.a, self.pair.b)}

    def _both(self, key: Key, part: str, path: str, of: str = "row") -> tuple[str, ...]:
        sides = ((name, side, side.tensors(key, part)[path]) for name, side in (("A", self.pair.a), ("B", self.pair.b)))
        return tuple(f"{name}: {side.value(entries, of) or 'none'}" for name, side, entries in sides)
