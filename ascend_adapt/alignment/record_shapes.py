"""The shapes of a recording's objects, and of an msprobe dump's (docs/alignment.md describes them)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from ascend_adapt.json_shapes import STRING, Shape, is_a, list_of, map_of, of_types, record, shown

_LARGEST = 1 << 63


def _is_count(value: Any, least: int = 0) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value < _LARGEST


def _is_size(value: Any) -> bool:
    return isinstance(value, list) and all(map(_is_count, value)) and math.prod(value) < _LARGEST


def _is_rank_of(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 2 and all(map(_is_count, value)) and value[0] < value[1]


def _is_shard(value: Any) -> bool:
    return (
        isinstance(value, list)
        and len(value) == 3
        and (value[0] is None or _is_count(value[0], -_LARGEST))
        and _is_rank_of(value[1:])
    )


_ANY = is_a("any value", lambda _: True)
_NUMBER = is_a("a number from 0", _is_count)
_STEP = is_a("a number from 1", lambda value: _is_count(value, 1))
_ROOT = is_a("a number from -1", lambda value: _is_count(value, -1))
_NUMBER_OR_NULL = is_a("a number from 0, or null", lambda value: value is None or _is_count(value))
_BOOL = of_types("true or false", bool)
_SIZE = is_a("the size of each dimension", _is_size)
_SHARD = is_a("[axis, rank, size]", _is_shard)

DUMPED_TENSOR = record({"dtype": STRING, "shape": _SIZE})
_TENSOR: Mapping[str, Shape] = {"row": _NUMBER, "dtype": STRING, "shape": _SIZE}
_SHARDS = {"shard": _SHARD, "gradient_shard": _SHARD}
_NAMED = {"kind": STRING, "step": _STEP, "root": _ROOT, "name": STRING}


def _tensor(members: Mapping[str, Shape], optional: Mapping[str, Shape]) -> Shape:
    """Return the shape of a tensor's entry, whose shards are along one of its axes."""
    has_shape = record({**members, **_TENSOR}, {**optional, **_SHARDS})

    def faults(value: Any, place: str) -> Iterator[str]:
        found = list(has_shape(value, place))
        yield from found
        for name in _SHARDS if not found else ():
            axis, dimensions = value.get(name, [None])[0], len(value["shape"])
            if axis is not None and not -dimensions <= axis < dimensions:
                yield f"{place}.{name}[0]: {axis} is not an axis of {dimensions} dimensions".lstrip(".")

    return faults


def _argument(value: Any, place: str) -> Iterator[str]:
    """Yield the faults of one tensor or plain value of a call."""
    is_plain = isinstance(value, dict) and "row" not in value
    yield from (_PLAIN if is_plain else _OF_A_CALL)(value, place)


_PLAIN = record({"path": STRING, "value": _ANY})
_OF_A_CALL = _tensor({"path": STRING}, {"gradient": _NUMBER_OR_NULL, "share": _BOOL})
_OF_AN_OPTIMIZER = _tensor({}, {})
_UPDATE = record({"root": _ROOT, "name": STRING, "group": _NUMBER})
_UPDATE_WITH_GRADIENT = record(
    {
        "root": _ROOT,
        "name": STRING,
        "group": _NUMBER,
        "gradient": _OF_AN_OPTIMIZER,
        "before": _OF_AN_OPTIMIZER,
        "after": _OF_AN_OPTIMIZER,
        "state": map_of(_OF_AN_OPTIMIZER),
    }
)
_CALL = record(
    {
        **_NAMED,
        "id": _NUMBER,
        "parent": _NUMBER_OR_NULL,
        "call": _NUMBER,
        "inputs": list_of(_argument),
        "outputs": list_of(_argument),
    },
    {"recomputed": _BOOL},
)
_OPTIMIZER = record(
    {
        "kind": STRING,
        "step": _STEP,
        "optimizer": _NUMBER,
        "class": STRING,
        "groups": list_of(map_of(_ANY)),
        "parameters": list_of(lambda value, place: _update(value, place)),
    }
)


def _update(value: Any, place: str) -> Iterator[str]:
    """Yield the faults of one parameter of an optimizer's step."""
    has_gradient = isinstance(value, dict) and "gradient" in value
    yield from (_UPDATE_WITH_GRADIENT if has_gradient else _UPDATE)(value, place)


def _call(value: Any, place: str) -> Iterator[str]:
    found = list(_CALL(value, place))
    yield from found
    if not found and value["parent"] is not None and value["parent"] >= value["id"]:
        yield f"parent: {value['parent']} is not a call that began before call {value['id']}"


def _optimizer(value: Any, place: str) -> Iterator[str]:
    found = list(_OPTIMIZER(value, place))
    yield from found
    for index, update in enumerate(value["parameters"] if not found else ()):
        if update["group"] >= len(value["groups"]):
            yield f"parameters[{index}].group: {update['group']} is not one of {len(value['groups'])} groups"


RUN = record(
    {"format": _NUMBER},
    {
        "matmul": STRING,
        "tensor_parallel": is_a("[rank, size], or null", lambda value: value is None or _is_rank_of(value)),
    },
)
_LINES: dict[str, Shape] = {
    "module": record({"root": _NUMBER, "name": STRING}, {"class": STRING, "settings": STRING}),
    "step": record({"step": _STEP}, {"random_state": map_of(STRING), "complete": _BOOL}),
    "call": _call,
    "weight": _tensor(_NAMED, {"parameter": _BOOL}),
    "gradient": _tensor({**_NAMED, "call": _NUMBER}, {}),
    "optimizer": _optimizer,
}


def line(value: Any, place: str) -> Iterator[str]:
    """Yield the faults of a line of steps.jsonl."""
    if not isinstance(value, dict) or not isinstance(value.get("kind"), str) or value["kind"] not in _LINES:
        kind = value.get("kind") if isinstance(value, dict) else value
        yield f"kind: {shown(kind)} is not one of {', '.join(_LINES)}"
    else:
        yield from _LINES[value["kind"]](value, place)


def last_row(value: Any) -> int:
    """Return the largest row that a valid line refers to, -1 if it has none."""
    if isinstance(value, list):
        return max(map(last_row, value), default=-1)
    if not isinstance(value, dict):
        return -1
    own = [number for name in ("row", "gradient") if isinstance(number := value.get(name), int)]
    return max(own + [last_row(each) for name, each in value.items() if name != "groups"], default=-1)
