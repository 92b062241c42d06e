"""One recorded step as a tree of calls, and two such steps side by side."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from ascend_adapt.alignment import bounds, values
from ascend_adapt.alignment.recording import StepRecord
from ascend_adapt.alignment.values import Value

Key = tuple[int, str, int, bool]
"""A call: root, name of the module, index of the call in its step, and whether it is a recomputation."""
WeightKey = tuple[int, str]


def key_of(line: dict[str, Any]) -> Key:
    """Return the key of a call."""
    return line["root"], line["name"], line["call"], line.get("recomputed", False)


class StepView:
    """One step of one rank, or of the ranks of one tensor-parallel group."""

    def __init__(self, records: list[StepRecord]) -> None:
        self.records = records
        self.facts = records[0].facts
        self.calls = _grouped([{key_of(line): line for line in record.calls} for record in records])
        self.weights = _grouped([_by_name(record.weights) for record in records])
        self.gradients = _grouped(
            [{(line["root"], line["name"], line["call"]): line for line in record.gradients} for record in records]
        )
        self.updates = _grouped([_updates(record) for record in records])
        self.inside: dict[int | None, list[Key]] = defaultdict(list)
        for key in sorted(self.calls, key=lambda key: int(self.calls[key][0]["id"])):
            self.inside[self.calls[key][0]["parent"]].append(key)

    def value(self, entries: list[dict[str, Any]], of: str = "row") -> Value | None:
        """Return the tensor of the entries of all ranks, or its gradient."""
        return values.value_of(entries, [record.digests for record in self.records], of)

    def tensors(self, key: Key, part: str) -> dict[str, list[dict[str, Any]]]:
        """Return the entries of a call's inputs or outputs by path."""
        lines = self.calls[key]
        by_path = [{entry["path"]: entry for entry in line[part]} for line in lines]
        return {path: [each[path] for each in by_path] for path in by_path[0] if all(path in each for each in by_path)}


def _by_name(lines: list[dict[str, Any]]) -> dict[Any, dict[str, Any]]:
    return {(line["root"], line["name"]): line for line in lines}


def _updates(record: StepRecord) -> dict[Any, dict[str, Any]]:
    found = {}
    for line in record.optimizers:
        for update in line["parameters"]:
            settings = line["groups"][update["group"]]
            key = (line["optimizer"], update["root"], update["name"])
            found[key] = {**update, "class": line["class"], "settings": settings}
    return found


def _grouped(each: list[dict[Any, dict[str, Any]]]) -> dict[Any, list[dict[str, Any]]]:
    return {key: [one[key] for one in each] for key in each[0] if all(key in one for one in each)}


@dataclass
class Limits:
    """Inputs of the error bound of a call and its nested calls: the lengths of their sums, and their dtypes."""

    terms: int = 0
    calls: int = 0
    dtypes: set[str] = field(default_factory=set)

    def allowed(self, compute: float) -> float:
        """Return the largest relative difference that this computation may cause."""
        storage = bounds.unit_roundoff(self.dtypes)
        return bounds.allowed(self.terms, bounds.OPERATIONS_A_CALL * max(1, self.calls), storage, compute)


class Pair:
    """The same step of two runs; differences are relative to the larger norm."""

    def __init__(self, a: StepView, b: StepView, compute: float, same_layout: bool, same_form: bool) -> None:
        self.a, self.b, self.compute, self._same_layout, self._same_form = a, b, compute, same_layout, same_form
        self.uncompared: set[str] = set()
        self._limits: dict[Key, Limits] = {}
        self._errors: dict[tuple[Key, str, str], dict[str, float]] = {}

    def has(self, key: Key) -> bool:
        """Return whether both runs made this call."""
        return key in self.a.calls and key in self.b.calls

    def inside(self, key: Key | None) -> list[Key]:
        """Return the calls that both runs made inside this one, in the order of their start.

        A call that only one run made, such as that of a wrapper, is replaced by the calls inside it.
        """
        found: list[Key] = []
        for each in self.a.inside.get(None if key is None else self.a.calls[key][0]["id"], ()):
            found += [each] if self.has(each) else self.inside(each)
        return found

    def errors(self, key: Key, part: str, of: str = "row") -> dict[str, float]:
        """Return the difference of each tensor of a call's inputs or outputs by path.

        Args:
            key: the call.
            part: "inputs" or "outputs".
            of: "row" for the tensors, "gradient" for their gradients.
        """
        if part == "inputs" and of == "gradient" and not self._same_form:
            return {}  # msprobe records this call's share, our recordings the sum over all uses of the tensor
        if (key, part, of) not in self._errors:
            mine, theirs = self.a.tensors(key, part), self.b.tensors(key, part)
            found = {path: self._error(key, path, mine[path], theirs[path], of) for path in mine if path in theirs}
            self._errors[key, part, of] = {path: each for path, each in found.items() if each is not None}
        return self._errors[key, part, of]

    def worst(self, key: Key, part: str, of: str = "row") -> float:
        """Return the largest difference among a call's floating-point inputs or outputs, or 0 without such tensors."""
        return max(self.errors(key, part, of).values(), default=0.0)

    def scalars(self, key: Key) -> list[str]:
        """Return the arguments that differ and are not tensors."""
        if not self.has(key):
            return []
        mine, theirs = self.a.tensors(key, "inputs"), self.b.tensors(key, "inputs")
        return [
            f"{path.removeprefix('args.').removeprefix('kwargs.')}: {one[0]['value']} and {theirs[path][0]['value']}"
            for path, one in mine.items()
            if path in theirs and "value" in one[0] and "value" in theirs[path][0]
            if one[0]["value"] != theirs[path][0]["value"]
        ]

    def _error(self, key: Key, path: str, mine: list[Any], theirs: list[Any], of: str) -> float | None:
        if "row" not in mine[0] or "row" not in theirs[0]:
            return None
        if of == "gradient" and mine[0].get("share") != theirs[0].get("share"):
            return None
        one, other = self.a.value(mine, of), self.b.value(theirs, of)
        if of == "gradient" and (one is None) != (other is None):
            return math.inf if self._same_layout and self._same_form else None
        return self.compared(one, other, f"{key[1]} {path}")

    def compared(self, one: Value | None, other: Value | None, what: str) -> float | None:
        """Return the difference of two tensors, or None if their shards cannot be joined."""
        if one is None or other is None:
            return None
        if one.shape != other.shape:
            # A parameter that ZeRO-3 has partitioned has no elements in its module.
            if self._same_layout and one.count and other.count:
                return math.inf
            self.uncompared.add(what)
            return None
        return values.error(one, other)

    @cached_property
    def weight_errors(self) -> dict[WeightKey, float]:
        """The difference of each parameter and buffer before the step."""
        found = {}
        for key, mine in self.a.weights.items():
            theirs = self.b.weights.get(key)
            if theirs is not None:
                apart = self.compared(self.a.value(mine), self.b.value(theirs), key[1])
                if apart is not None:
                    found[key] = apart
        return found

    @cached_property
    def weights_together(self) -> float:
        """The difference of all weights, compared as one vector."""
        return self._together({key: (self.a.weights[key], self.b.weights[key]) for key in self.weight_errors})

    @cached_property
    def gradients_together(self) -> float:
        """The difference of all gradients that the backward passes computed, compared as one vector."""
        keys = self.a.gradients.keys() & self.b.gradients.keys()
        return self._together({key: (self.a.gradients[key], self.b.gradients[key]) for key in keys})

    def _together(self, entries: dict[Any, tuple[list[Any], list[Any]]]) -> float:
        apart = size = 0.0
        for mine, theirs in entries.values():
            one, other = self.a.value(mine), self.b.value(theirs)
            if one is not None and other is not None and one.shape == other.shape:
                apart += values.distance(one, other) ** 2
                size += max(one.norm, other.norm) ** 2
        return math.sqrt(apart / size) if size else 0.0

    def of_weights(self, key: Key) -> float:
        """Return the difference of the parameters and buffers registered on a call's module, compared as one vector."""
        names = self._own_weights.get((key[0], key[1]), ())
        return self._together({name: (self.a.weights[name], self.b.weights[name]) for name in names})

    @cached_property
    def _own_weights(self) -> dict[WeightKey, list[WeightKey]]:
        found: dict[WeightKey, list[WeightKey]] = defaultdict(list)
        for root, name in self.weight_errors:
            found[root, name.rpartition(".")[0]].append((root, name))
        return found

    def own_weights(self, key: Key) -> list[WeightKey]:
        """Return the names of the parameters and buffers registered on a call's module."""
        return self._own_weights.get((key[0], key[1]), [])

    def limits(self, key: Key) -> Limits:
        """Return the limits of a call's computation, in both runs."""
        if key not in self._limits:
            inner = self.inside(key)
            total = Limits()
            for side in (self.a, self.b):
                entries = [
                    each[0]
                    for part in ("inputs", "outputs")
                    for each in side.tensors(key, part).values()
                    if "row" in each[0] and each[0]["dtype"] in bounds.UNIT_ROUNDOFF
                ]
                total.dtypes |= {entry["dtype"] for entry in entries}
                # Code between modules may sum over any axis of its inputs; a layer sums over the last axis.
                axes = 2 if inner or not self.own_weights(key) else 1
                lengths = [length for entry in entries for length in entry["shape"][-axes:]]
                total.terms = max(total.terms, max(lengths, default=1))
            for each in inner:
                one = self.limits(each)
                total = Limits(total.terms + one.terms, total.calls + one.calls, total.dtypes | one.dtypes)
            total.calls += 1
            self._limits[key] = total
        return self._limits[key]

    def allowed(self, key: Key) -> float:
        """Return the largest difference that a call may add to the differences of its inputs."""
        return self.limits(key).allowed(self.compute)
