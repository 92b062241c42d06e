"""Reads and writes dumps of msprobe, Ascend's precision tool, as recordings.

Format of mindstudio-probe 26.2.0: DIR/step<k>/rank<r> with dump.json, construct.json and stack.json; k
counts from 0, and one process without a rank is proc<pid>. dump.json maps "Module.<path>.<class>.forward.<call>",
".backward.<call>" and ".parameters_grad.<call>" to tensors with Max, Min, Mean and Norm. Of a backward pass, "input" is
the gradient of the module's output and "output" that of its input. Entries of functions ("Functional...", "Tensor...")
have no counterpart in a recording. A dump has no sketches, so permuted tensors and changed signs may go unnoticed.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ascend_adapt import regular_files
from ascend_adapt.alignment import record_shapes, recording
from ascend_adapt.alignment.recording import Recording, StepRecord
from ascend_adapt.alignment.values import LARGES, MAX, MIN, NANS, NORM, SUM, WIDTH
from ascend_adapt.errors import AlignmentError, one_line

if TYPE_CHECKING:
    import numpy as np

FORM = "msprobe"
_MODULE = re.compile(r"(?:Module|Cell)\.(.+)\.([^.]+)\.(forward|backward|parameters_grad)(?:\.(\d+))?")


def read_any(folder: Path) -> dict[int, Recording]:
    """Read a recording, or an msprobe dump.

    Raises:
        AlignmentError: the folder is neither, or is damaged.
    """
    if any(folder.glob("step*/*/dump.json")):
        return read(folder)
    return recording.read(folder)


def read(folder: Path) -> dict[int, Recording]:
    """Read an msprobe dump of level L0 or mix as a recording. Its step 0 becomes step 1.

    Raises:
        AlignmentError: the dump is damaged, or has no modules.
    """
    found: dict[int, Recording] = {}
    for path in sorted(folder.glob("step*/*/dump.json")):
        number, rank = re.fullmatch(r"step(\d+)", path.parts[-3]), re.fullmatch(r"rank(\d+)", path.parent.name)
        if number is None:
            continue
        try:
            data = json.loads(regular_files.read_text(path))["data"]
            parents = json.loads(regular_files.read_text(path.parent / "construct.json"))
            step = _Step(int(number[1]) + 1, path.parent, data, parents)
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise AlignmentError(
                f"{path}: {one_line(error)}, expected an msprobe dump with construct.json — dump again"
            ) from error
        ours = found.setdefault(int(rank[1]) if rank else 0, Recording(folder, {"form": FORM}))
        ours.steps[step.record.number] = step.record
        ours.modules.update(step.modules)
    if not any(record.calls for each in found.values() for record in each.steps.values()):
        raise AlignmentError(
            f"{folder}: no modules in dump.json, expected level L0 or mix — dump again at one of these levels"
        )
    return found


class _Step:
    """One dump.json as the record of a step. Forward passes come first, so that rows are in the order of time."""

    def __init__(self, number: int, path: Path, data: dict[str, Any], parents: dict[str, Any]) -> None:
        import numpy as np

        self.record = StepRecord(number, path)
        self.modules: dict[tuple[int, str], dict[str, Any]] = {}
        self._data = data
        self._rows: list[np.ndarray] = []
        self._later: list[tuple[dict[str, Any], dict[str, Any]]] = []
        inside: dict[str | None, list[str]] = {}
        for name in data:  # modules that return one after another also began in that order
            inside.setdefault(parents.get(name), []).append(name)
        self._add_calls(None, None, inside)
        for entry, gradient in self._later:
            entry["gradient"] = self._row(gradient)
        for name in data:
            match = _MODULE.fullmatch(name)
            if match is not None and match[3] == "parameters_grad":
                for own, value in data[name].items():
                    line = {"root": 0, "name": f"{match[1]}.{own}", "call": int(match[4] or 0)}
                    self.record.gradients += [{**line, **each} for each in self._entries(value, "")]
        self.record.__dict__["digests"] = np.array(self._rows, dtype=np.float64).reshape(-1, WIDTH)

    def _add_calls(self, around: str | None, parent: int | None, inside: dict[str | None, list[str]]) -> None:
        for name in inside.get(around, ()):
            match = _MODULE.fullmatch(name)
            if match is not None and match[3] == "forward":
                number = len(self.record.calls)
                self._add_call(name, match, number, parent)
                self._add_calls(name, number, inside)

    def _add_call(self, name: str, match: re.Match[str], number: int, parent: int | None) -> None:
        data, path, call = self._data[name], match[1], int(match[4] or 0)
        backward = self._data.get(name.replace(".forward", ".backward"), {})
        line = {"id": number, "parent": parent, "root": 0, "name": path, "call": call}
        inputs = self._entries(data.get("input_args"), "args", backward.get("output"))
        line["inputs"] = inputs + self._entries(data.get("input_kwargs"), "kwargs")
        line["outputs"] = self._entries(data.get("output"), "out", backward.get("input"))
        self.record.calls.append(line)
        if (0, path) not in self.modules:
            self.modules[0, path] = {"class": match[2]}
            for own, value in data.get("parameters", {}).items():
                weight = {"root": 0, "name": f"{path}.{own}", "parameter": True}
                self.record.weights += [{**weight, **each} for each in self._entries(value, "")]

    def _entries(self, value: Any, path: str, gradient: Any = None) -> list[dict[str, Any]]:
        gradients = dict(_leaves(gradient, path))
        found = []
        for place, each in _leaves(value, path):
            if "value" in each:
                found.append({"path": place, "value": each["value"]})
                continue
            entry = {"path": place, "row": self._row(each), "dtype": each["dtype"].removeprefix("torch.")}
            found.append({**entry, "shape": each["shape"]})
            if "dtype" in gradients.get(place, {}):
                self._later.append((found[-1], gradients[place]))
        return found

    def _row(self, tensor: dict[str, Any]) -> int:
        import numpy as np

        if faults := list(record_shapes.DUMPED_TENSOR(tensor, "")):
            raise ValueError("; ".join(faults))
        numbers = np.full(WIDTH, np.nan)
        norm, mean, low, high = statistics = [_number(tensor.get(name)) for name in ("Norm", "Mean", "Min", "Max")]
        is_float = tensor.get("Norm") is not None
        numbers[NANS] = sum(math.isnan(each) for each in statistics) if is_float else 0
        numbers[LARGES] = sum(math.isinf(each) for each in statistics)
        numbers[NORM] = norm  # msprobe writes no norm of integers
        numbers[SUM] = mean * math.prod(tensor["shape"])
        numbers[MIN], numbers[MAX] = low, high
        self._rows.append(numbers)
        return len(self._rows) - 1


def _leaves(value: Any, path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    if isinstance(value, dict) and ("dtype" in value or "value" in value):
        yield path, value
    elif isinstance(value, dict) and "type" not in value:
        for key, each in value.items():
            yield from _leaves(each, f"{path}.{key}")
    elif isinstance(value, list):
        for index, each in enumerate(value):
            yield from _leaves(each, f"{path}.{index}" if path != "out" or len(value) > 1 else path)


def _number(value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return math.nan


def write(ranks: dict[int, Recording], folder: Path) -> int:
    """Write a recording as an msprobe dump of level L0, with statistics, and return the number of steps.

    Raises:
        AlignmentError: the folder is not empty.
    """
    if folder.exists() and any(folder.iterdir()):
        raise AlignmentError(f"{folder}: is not empty, expected a new folder — choose another")
    for rank, each in ranks.items():
        for number, record in each.steps.items():
            home = folder / f"step{number - 1}" / f"rank{rank}"
            home.mkdir(parents=True)
            data, parents = _dump(each, record)
            head = {"task": "statistics", "level": "L0", "framework": "pytorch", "dump_data_dir": None}
            for name, content in (
                ("dump.json", {**head, "data": data}),
                ("construct.json", parents),
                ("stack.json", {}),
            ):
                (home / name).write_text(json.dumps(content, indent=1))
    return len({number for each in ranks.values() for number in each.steps})


def _dump(ranks: Recording, record: StepRecord) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the data of dump.json, and construct.json. Roots are left out, because msprobe does not name them."""
    forward: dict[str, Any] = {}
    backward: dict[str, Any] = {}
    parents: dict[str, Any] = {}
    names: dict[int, str | None] = {}
    calls = [line for line in record.calls if not line.get("recomputed")]
    for line in calls:
        kind = ranks.modules.get((line["root"], line["name"]), {}).get("class", "Module")
        names[line["id"]] = f"Module.{line['name']}.{kind}." if line["name"] else None
    for line in calls:
        name = names[line["id"]]
        if name is None:
            continue
        around = names.get(line["parent"])
        by_id = {each["id"]: each for each in calls}
        parameters = {
            weight["name"].rpartition(".")[2]: _statistics(record, weight)
            for weight in record.weights
            if weight["root"] == line["root"] and weight["name"].rpartition(".")[0] == line["name"]
            if weight.get("parameter")
        }
        forward[f"{name}forward.{line['call']}"] = {
            "input_args": [_statistics(record, one) for one in line["inputs"] if one["path"].startswith("args")],
            "input_kwargs": {
                one["path"].removeprefix("kwargs."): _statistics(record, one)
                for one in line["inputs"]
                if one["path"].startswith("kwargs")
            },
            "output": [_statistics(record, one) for one in line["outputs"]],
            "parameters": parameters,
        }
        if any(one.get("gradient") is not None for one in line["outputs"]):
            # A recording sums the gradient of the input tensor over all its uses; msprobe has this module's share.
            backward[f"{name}backward.{line['call']}"] = {
                "input": [_statistics(record, one, "gradient") for one in line["outputs"] if "row" in one],
                "output": [None for one in line["inputs"] if "row" in one],
            }
        for phase in ("forward", "backward"):
            outer = by_id[line["parent"]]["call"] if around is not None else 0
            parents[f"{name}{phase}.{line['call']}"] = f"{around}{phase}.{outer}" if around is not None else None
    for gradient in record.gradients:
        module, _, own_name = gradient["name"].rpartition(".")
        kind = ranks.modules.get((gradient["root"], module), {}).get("class", "Module")
        key = f"Module.{module}.{kind}.parameters_grad.{gradient['call']}"
        backward.setdefault(key, {})[own_name] = [_statistics(record, gradient)]
    return {**forward, **dict(reversed(backward.items()))}, parents


def _statistics(record: StepRecord, entry: dict[str, Any], of: str = "row") -> dict[str, Any] | None:
    if "row" not in entry:
        return {"type": type(entry.get("value")).__name__, "value": entry.get("value")}
    row = entry.get(of)
    if row is None:
        return None
    numbers = record.digests[row].astype(float)
    mean = float(numbers[SUM]) / max(1, math.prod(entry["shape"]))
    is_float = entry["dtype"].startswith(("float", "bfloat"))
    return {
        "type": "torch.Tensor",
        "dtype": f"torch.{entry['dtype']}",
        "shape": entry["shape"],
        "Max": float(numbers[MAX]),
        "Min": float(numbers[MIN]),
        "Mean": mean if is_float else None,
        "Norm": float(numbers[NORM]) if is_float else None,
        "requires_grad": "gradient" in entry,
    }
