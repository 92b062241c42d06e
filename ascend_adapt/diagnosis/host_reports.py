"""`ascend-adapt doctor --report`: evaluates files that `--collect` wrote on other hosts, and compares these hosts."""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from packaging.utils import canonicalize_name

from ascend_adapt import probe, regular_files
from ascend_adapt.diagnosis import collect, findings
from ascend_adapt.diagnosis.findings import Finding, Machine, Ran, npu
from ascend_adapt.diagnosis.predicted import DISTRIBUTIONS, as_findings
from ascend_adapt.errors import SettingsError, of_each
from ascend_adapt.problems import error_codes, explanation, known
from ascend_adapt.problems.facts import Facts
from ascend_adapt.problems.log_text import LogText
from ascend_adapt.problems.problem import Problem

# Variables that should be equal on all hosts of a job.
_AGREED = re.compile(
    r"(?:HCCL|ASCEND|TORCH|PYTORCH|TASK_QUEUE|INF_NAN|COMBINED|MULTI_STREAM|ACL|ATB|CUDA|NCCL|GLOO)_\w+"
)
_OWN = re.compile(r"HCCL_IF_IP|ASCEND_DEVICE_ID|ASCEND_RT_VISIBLE_DEVICES|ASCEND_VISIBLE_DEVICES")


def _is(*kinds: type) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, kinds) and not isinstance(value, bool)


def _list_of(has_shape: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, list) and all(map(has_shape, value))


def _map_of(has_shape: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, dict) and all(map(has_shape, value.values()))


def _is_output(value: Any) -> bool:
    return value is None or (isinstance(value, list) and [type(one) for one in value] == [int, str])


def _is_device_node(value: Any) -> bool:
    return isinstance(value, dict) and isinstance(value.get("open"), bool) and isinstance(value.get("owner"), str)


_NONE = type(None)
_SHAPES: dict[str, Callable[[Any], bool]] = {
    "host": _is(str),
    "python": _is(str),
    "environ": _map_of(_is(str)),
    "versions": _map_of(_is(str, _NONE)),
    "files": _map_of(_is(str, _NONE)),
    "nodes": _map_of(_is_device_node),
    "tools": _map_of(_is_output),
    "limits": _map_of(_is(int, _NONE)),
    "shm_bytes": _is(int),
    "time_s": _is(int, float),
    "cann_homes": _list_of(_is(str)),
    "last_errors": _map_of(_list_of(_is(str))),
    "processor": _is(str),
    "kernel": _is(str),
}
_OPTIONAL = ("cann_homes", "last_errors", "processor", "kernel")


@dataclass(frozen=True)
class HostReport:
    """Report of one collected host: the software under torch_npu, findings, and error codes in device logs."""

    file: str
    host: str
    device: str
    stack: Mapping[str, str]
    versions: Mapping[str, str]
    findings: tuple[Finding, ...]
    codes: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """Return the fields as plain data."""
        return asdict(self)


def judge(files: Sequence[Path], asked: str | None = None) -> tuple[list[HostReport], list[str], list[str]]:
    """Return a report of each collected host, the differences between hosts, and plugin errors.

    Raises:
        SettingsError: a file was not written by `doctor --collect`.
    """
    problems, faults = known.problems({})
    collected = list(zip(files, of_each(_read, files), strict=True))
    reports = [_judge(file, data, problems, asked) for file, data in collected]
    return reports, _differences(reports, [data for _, data in collected]), faults


def _read(file: Path) -> dict[str, Any]:
    try:
        data: dict[str, Any] = json.loads(regular_files.read_text(file))
        if data["format"] != collect.FORMAT:
            raise SettingsError(
                f"{file}: format {data['format']!r}, expected {collect.FORMAT} — collect again with this version"
            )
        missing = [name for name in _SHAPES if name not in data and name not in _OPTIONAL]
        wrong = [name for name, has_shape in _SHAPES.items() if name in data and not has_shape(data[name])]
        faults = [f"has no {', '.join(missing)}"] * bool(missing) + [f"invalid {', '.join(wrong)}"] * bool(wrong)
        if faults:
            raise SettingsError(f"{file}: {'; '.join(faults)}, expected output of `doctor --collect` — collect again")
        return data
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        why = error.strerror if isinstance(error, OSError) else "is not a host report"
        raise SettingsError(f"{file}: {why}, expected output of `doctor --collect` — pass another file") from error


def _judge(file: Path, data: Mapping[str, Any], problems: Sequence[Problem], asked: str | None) -> HostReport:
    names = {str(canonicalize_name(name)): str(version) for name, version in data["versions"].items()}
    versions = {name: names[canonicalize_name(name)] for name in DISTRIBUTIONS if canonicalize_name(name) in names}
    kinds = {kind: [path for path in data["nodes"] if _is_node(kind, path)] for kind in probe.DEVICE_NODES}
    device = asked or next((kind for kind, paths in kinds.items() if paths), "npu")
    with tempfile.TemporaryDirectory(prefix="ascend-adapt-host-") as folder:
        root = Path(folder)
        _lay_out(root, data)
        machine = Machine(
            device=device,
            versions=versions,
            nodes={kind: tuple(root / path.lstrip("/") for path in sorted(paths)) for kind, paths in kinds.items()},
            environ=data["environ"],
            folder=root,
            extensions=root / "no-extensions",
            now_s=data["time_s"],
            shm_bytes=data["shm_bytes"],
            root=root,
            uid=-1,
            limits=data["limits"],
            tools={name: Ran(*ran) if ran else None for name, ran in data["tools"].items()},
            distributions=frozenset(names),
            owners={Path(path).name: node["owner"] for path, node in data["nodes"].items()},
        )
        stack = dict(npu.stack(machine)) if device == "npu" else {}
        found = findings.examine(machine)
    facts = Facts(names, data["environ"], device, None, is_complete=True)
    log = LogText("\n".join(line for lines in data.get("last_errors", {}).values() for line in lines))
    shown = [
        Finding(f"device log: {one.shown_by[0]}", one.cause, one.do, False)
        for one in explanation.explain(log, problems, facts)
        if not one.problem.general
    ]
    codes = tuple(f"{one.code}: {one.meaning or 'unknown here'}" for one in error_codes.codes_in(log))
    stack = {
        **stack,
        "python": data["python"],
        "processor": data.get("processor", ""),
        "kernel": data.get("kernel", ""),
    }
    return HostReport(
        str(file), data["host"], device, stack, names, (*found, *as_findings(problems, facts), *shown), codes
    )


def _is_node(kind: str, path: str) -> bool:
    return bool(re.fullmatch(probe.DEVICE_NODES[kind].replace("[0-9]*", r"\d+"), Path(path).name))


def _lay_out(root: Path, data: Mapping[str, Any]) -> None:
    """Recreate the collected files under ``root``, so that the checks can read them."""
    for home in data.get("cann_homes", ()):
        _inside(root, home).mkdir(parents=True, exist_ok=True)
    for path, text in data["files"].items():
        place = _inside(root, path)
        if text is None:
            place.mkdir(parents=True, exist_ok=True)
            continue
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)
    for path, node in data["nodes"].items():
        place = _inside(root, path)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.touch()
        place.chmod(0o666 if node["open"] else 0o600)


def _inside(root: Path, path: str) -> Path:
    """Return the path under ``root`` for a collected host's absolute path, which must not leave ``root``."""
    if not path.startswith("/") or ".." in Path(path).parts:
        raise SettingsError(
            f"{path}: is not an absolute path, expected the path of a file on a collected host — collect again"
        )
    return root / path.lstrip("/")


def _differences(reports: Sequence[HostReport], collected: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the differences between the hosts of a job."""
    facts: dict[str, list[str]] = {}
    names = {name for report in reports for name in (*report.stack, *DISTRIBUTIONS) if name != "kernel"}
    for name in sorted(names):
        facts[name] = [
            report.stack.get(name) or report.versions.get(canonicalize_name(name)) or "none" for report in reports
        ]
    variables = {name for data in collected for name in data["environ"] if _AGREED.fullmatch(name)}
    for name in sorted(variables):
        if not _OWN.fullmatch(name):
            facts[f"variable {name}"] = [data["environ"].get(name, "not set") for data in collected]
    return [_difference(name, values, reports) for name, values in facts.items() if len(set(values)) > 1]


def _difference(name: str, values: Sequence[str], reports: Sequence[HostReport]) -> str:
    hosts: dict[str, list[str]] = {}
    for value, report in zip(values, reports, strict=True):
        hosts.setdefault(value, []).append(report.host)
    return f"{name}: " + ", ".join(
        f"{value} on {', '.join(where[:4])}{' ...' if where[4:] else ''}" for value, where in hosts.items()
    )


def show(reports: Sequence[HostReport], differences: Sequence[str]) -> None:
    """Print what must be fixed on each host, and how the hosts differ."""
    for report in reports:
        stack = ", ".join(f"{name} {value}" for name, value in report.stack.items() if value)
        _print(f"{report.host}: {report.device}, {stack}")
        for one in sorted(report.findings, key=lambda one: not one.must_fix):
            kind = "must be fixed" if one.must_fix else "note"
            _print(f"{report.host}: {kind}: {one.what} — {one.why} — {one.do}")
        for code in report.codes:
            _print(f"{report.host}: error code in the device log: {code}")
    for difference in differences:
        _print(f"hosts differ: {difference}")
    if not differences and not any(one.must_fix for report in reports for one in report.findings):
        print("nothing must be fixed" + (", and the hosts do not differ" if len(reports) > 1 else ""))


def _print(text: str) -> None:
    """Print text from another host without characters that a terminal would execute."""
    print("".join(one if one.isprintable() else "?" for one in text))
