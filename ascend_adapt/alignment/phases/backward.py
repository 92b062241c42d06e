"""Judges the backward pass: the gradients of outputs, inputs and parameters, as each call computes them."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator

from ascend_adapt.alignment import bounds, values
from ascend_adapt.alignment.findings import Finding
from ascend_adapt.alignment.phases.step import Step, owner
from ascend_adapt.alignment.step_view import Key


class Backward:
    """Judges the backward pass of one step of both runs."""

    def __init__(self, step: Step) -> None:
        self._step, self._pair = step, step.pair
        self._consumers = self._last_consumers()
        self._around = {key: around for around in self._pair.a.calls for key in self._pair.inside(around)}
        self._checked: set[tuple[int, str, int]] = set()

    def first(self) -> Finding | None:
        """Return the first difference that arises in the backward pass."""
        pair, known = self._pair, self._step.forward_error
        tops = {key: self._first_gradient(key) for key in pair.inside(None) if not key[3]}
        starts = {key: row for key, row in tops.items() if row is not None}
        for key in sorted(starts, key=starts.__getitem__):
            finding = self._output(None, key, known) or self._visit(key, known)
            if finding is not None:
                return finding
            known = max(known, pair.worst(key, "inputs", "gradient"), pair.worst(key, "outputs", "gradient"))
        for name, root, index in sorted((name, root, index) for root, name, index in pair.a.gradients):
            finding = self._parameter((root, name, index), None, known, 0.0)
            if finding is not None:
                return finding
        return None

    def _first_gradient(self, key: Key) -> int | None:
        rows = [entry[0].get("gradient") for entry in self._pair.a.tensors(key, "outputs").values()]
        return min((row for row in rows if row is not None), default=None)

    def _last_consumers(self) -> dict[Key, list[str]]:
        """Return the names of the calls that share an input, by the last of them in the order of the backward pass.

        The gradient of an input is the sum over its consumers, so it is judged at the last of them. A call that only
        passes its input to calls inside it is not a consumer.
        """
        by_row: dict[int, list[Key]] = defaultdict(list)
        rows = {key: self._input_rows(key) for key in self._pair.a.calls if self._pair.has(key)}
        for key, mine in rows.items():
            deeper = {row for inner in self._all_inside(key) for row in rows.get(inner, ())}
            for row in mine - deeper:
                by_row[row].append(key)
        found: dict[Key, list[str]] = {}
        for keys in by_row.values():
            last = min(keys, key=lambda key: int(self._pair.a.calls[key][0]["id"]))
            found[last] = [self._step.name(key) for key in sorted(keys)]
        return found

    def _all_inside(self, key: Key) -> Iterator[Key]:
        for each in self._pair.inside(key):
            yield each
            yield from self._all_inside(each)

    def _input_rows(self, key: Key) -> set[int]:
        rows = (entry[0].get("gradient") for entry in self._pair.a.tensors(key, "inputs").values())
        return {row for row in rows if row is not None}

    def _output(self, around: Key | None, key: Key, known: float) -> Finding | None:
        """Judge the gradients of a call's outputs, which the surrounding code computes."""
        limit = self._pair.allowed(key if around is None else around) + bounds.GAIN * known
        for path, error in self._pair.errors(key, "outputs", "gradient").items():
            if error > limit:
                name = self._step.name(key)
                if around is None:
                    what = f"the gradient from the loss to {name} differs: {self._loss(key, path, limit)}"
                else:
                    what = f"its backward pass after {name} differs: the gradient of that module's output"
                tensor = key, "outputs", path
                return self._step.finding_at("backward", around, what, error, limit, tensor, "gradient")
        return None

    def _loss(self, key: Key, path: str, limit: float) -> str:
        """Return what explains a difference at the loss: a constant factor, if there is one."""
        one, other = (
            view.value(view.tensors(key, "outputs")[path], "gradient") for view in (self._pair.a, self._pair.b)
        )
        factor, rest = values.factor(one, other) if one is not None and other is not None else (math.nan, math.nan)
        if math.isnan(rest):  # a dump of msprobe has statistics only
            return "labels, loss or loss scale"
        if rest > limit:
            return "labels or loss"
        return f"B's is {factor:.4g} times A's: averaging, accumulation or loss scale differs"

    def _visit(self, key: Key, outside: float) -> Finding | None:
        """Return the first difference that arises in a call's backward pass, from the innermost calls outwards."""
        pair = self._pair
        forward = max(pair.worst(key, "inputs"), pair.worst(key, "outputs"), pair.of_weights(key))
        known = max(outside, forward, pair.worst(key, "outputs", "gradient"))
        for each in reversed(pair.inside(key)):
            finding = self._output(key, each, known) or self._visit(each, known)
            if finding is not None:
                return finding
            known = max(known, pair.worst(each, "inputs", "gradient"), pair.worst(each, "outputs", "gradient"))
        for root, name in pair.own_weights(key):
            finding = self._parameter((root, name, key[2]), key, known, self._size_of_terms(key))
            if finding is not None:
                return finding
        return self._input(key, known) if key in self._consumers else None

    def _input(self, key: Key, known: float) -> Finding | None:
        """Judge the gradients of a call's inputs."""
        limit = self._pair.allowed(key) + bounds.GAIN * known
        for path, error in self._pair.errors(key, "inputs", "gradient").items():
            self._step.keep_largest("backward", error, self._step.name(key))
            if error > limit:
                what = "the gradient of its input differs, but that of its output agrees"
                together = self._consumers[key]
                if len(together) > 1:
                    what += f"; the input is shared by {', '.join(together)}: any of them may be the cause"
                around = self._around.get(key)
                if around is not None:
                    what += f" (or the code of {self._step.name(around)} uses that input too)"
                return self._step.finding_at("backward", key, what, error, limit, (key, "inputs", path), "gradient")
        return None

    def _size_of_terms(self, key: Key) -> float:
        """Return the size of the terms that are summed over positions into a weight's gradient; these may cancel."""
        sizes = []
        for part, of in (("outputs", "gradient"), ("inputs", "row")):
            for entries in self._pair.a.tensors(key, part).values():
                value = self._pair.a.value(entries, of) if "row" in entries[0] else None
                if value is not None and value.is_float:
                    rows = max(1, value.count // max(1, value.shape[-1] if value.shape else 1))
                    sizes.append(value.norm if part == "outputs" else value.norm / math.sqrt(rows))
                    break
            else:
                sizes.append(0.0 if part == "outputs" else 1.0)
        return sizes[0] * max(1.0, sizes[1])

    def _parameter(self, name: tuple[int, str, int], key: Key | None, known: float, size: float) -> Finding | None:
        """Judge the gradient that one backward pass adds to a parameter; each gradient is judged once."""
        pair, at = self._pair, key or owner(name[:2])
        if name in self._checked or name not in pair.a.gradients:
            return None
        self._checked.add(name)
        moment = pair.a.gradients[name][0]["row"]
        if name not in pair.b.gradients:
            what = f"{name[1]} has no gradient in B"
            return self._step.finding("backward", at, what, math.inf, 0.0, moment=moment)
        one, other = pair.a.value(pair.a.gradients[name]), pair.b.value(pair.b.gradients[name])
        apart = pair.compared(one, other, name[1])
        if one is None or other is None or apart is None:
            return None
        limits = pair.limits(key) if key is not None else None
        terms = (limits.terms if limits else 1) + one.count // max(1, one.shape[-1] if one.shape else 1)
        own = bounds.allowed(
            terms + self._positions(key),
            bounds.OPERATIONS_A_CALL,
            bounds.unit_roundoff({one.dtype, other.dtype} | (limits.dtypes if limits else set())),
            pair.compute,
        )
        norm = max(one.norm, other.norm)
        limit = (own + bounds.GAIN * known) * (max(1.0, size / norm) if norm else 1.0)
        self._step.keep_largest("backward", apart, name[1])
        if apart > limit:
            what = f"the gradient of {name[1]} differs, but that of the output agrees"
            both = f"A: {one}", f"B: {other}"
            return self._step.finding("backward", at, what, apart, limit, *both, replay=True, moment=moment)
        return None

    def _positions(self, key: Key | None) -> int:
        if key is None:
            return 1
        shapes = [entry[0]["shape"] for entry in self._pair.a.tensors(key, "outputs").values() if "row" in entry[0]]
        return max((math.prod(shape[:-1]) for shape in shapes), default=1)
