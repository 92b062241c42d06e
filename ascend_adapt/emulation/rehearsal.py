"""The rehearsal report: operators that the ranks ran on the emulated NPU, findings, and what the run proves."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ascend_adapt import regular_files
from ascend_adapt.emulation import finding, page
from ascend_adapt.emulation.full_size import summary
from ascend_adapt.errors import EmulationError, one_line
from ascend_adapt.whole_numbers import whole_number

_MOST_CALLED = 5
_MOST_FINDINGS, _MOST_KNOWN = 10, 4
PROVES = (
    "this proves: torch_npu's Python and C++ code accepted every call that the ranks made (names, arguments, dispatch, "
    "autograd, its allocator, its process group)"
)
DOES_NOT = (
    "it does not prove: results, rounding or memory layouts of an NPU, limits of its kernels that are not documented, "
    "HCCL between hosts, or speed (evidence: emulated)"
)


def report(run_dir: Path, code: int = 0, annotate: str = "", known_problems: Sequence[str] = ()) -> list[str]:
    """Return a summary of at most 25 lines for a job that ended with ``code``; write rehearsal.json and rehearsal.html.

    With ``annotate="github"``, GitHub annotation commands follow, one per finding. ``known_problems`` are lines about
    known problems of the job on an NPU.

    Raises:
        EmulationError: a file of a rank cannot be read.
    """
    processes = _read(run_dir, "rehearsal")
    if not any(facts["operators"] or facts["findings"] or summary.has_memory(facts) for facts in processes.values()):
        return [_nothing_ran(processes, code), *known_problems]
    ranks = _with_their_children(processes)
    programs = {name: facts for name, facts in processes.items() if _of_ranks(processes) and name.startswith("p")}
    statuses = _read(run_dir, "adapt-status")
    findings = finding.merged([*ranks.values(), *programs.values()])
    everything = {
        "evidence": "emulated",
        "code": code,
        "ranks": {str(rank): facts for rank, facts in ranks.items()},
        "programs": programs,
        "known_problems": list(known_problems),
    }
    (run_dir / "rehearsal.json").write_text(json.dumps(everything, indent=1) + "\n")
    first = ranks[min(ranks)]
    subject = f"rehearsal: torch_npu {first['torch_npu']} on an emulated {first['soc']}, {_how_many(processes)}"
    missing = []
    ended = sorted(set(_of_ranks(statuses)) - set(_of_ranks(processes)))
    if ended:
        missing.append(f"ranks without a report, because they did not end normally: {', '.join(map(str, ended))}")
    alike = finding.alike(findings)
    found = [_said_once(group) for group in alike[:_MOST_FINDINGS]]
    left = sum(map(len, alike[_MOST_FINDINGS:]))
    if left:
        found.append(f"{_counted(str(left), 'more finding')}: see rehearsal.html")
    lines = list(known_problems[:_MOST_KNOWN])
    if _of_ranks(processes):
        lines += _shared_devices(ranks)[:2]
    applied = sorted({name for status in statuses.values() for name in _applied(status)})
    at_full_size = summary.lines(ranks)
    lines += [*at_full_size, *_operators(ranks), _waits(ranks)]
    lines += [*(() if at_full_size else (_memory(ranks),)), _patches(applied)]
    lines += _proof(findings, code, bool(ended), bool(applied))
    (run_dir / "rehearsal.html").write_text(page.page([subject, *missing, *lines], findings))
    lines = [f"{subject}; full report: {run_dir / 'rehearsal.html'}, rehearsal.json", *missing, *found, *lines]
    return [*lines, *map(finding.github_annotation, findings)] if annotate == "github" else lines


def _said_once(group: Sequence[finding.Finding]) -> str:
    """Merge the same finding at several lines of a file into one line."""
    one, *others = group
    and_others = f" and {_counted(str(len(others)), 'other line')}" if others else ""
    return f"{one.place}{and_others}: {one.text()} — {one.instead}"


def _nothing_ran(processes: Mapping[str, Any], code: int) -> str:
    imported = "torch_npu was imported, but no operator ran on the device" if processes else ""
    ended = "" if code == 0 else f"; the job ended with exit code {code}"
    return f"rehearsal: {imported or 'no process that imported torch_npu ended normally'}: nothing was rehearsed{ended}"


def _with_their_children(processes: Mapping[str, Any]) -> dict[int, Any]:
    """Return the facts of each rank, including processes that it started; without ranks, the facts of each process."""
    ranks = {rank: dict(facts) for rank, facts in _of_ranks(processes).items()}
    if not ranks:  # The job is a command that sets no RANK.
        return dict(enumerate(processes.values()))
    for name, facts in processes.items():
        rank = whole_number(name.partition("-")[0]) if "-" in name else None
        if rank not in ranks:
            continue
        parent = ranks[rank]
        for kind in ("operators", "on_the_host", "missing", "synchronisations"):
            parent[kind] = dict(Counter(parent[kind]) + Counter(facts[kind]))
        for kind in ("violations", "findings"):
            parent[kind] = [*parent[kind], *facts[kind]]
        parent["steps"] += facts["steps"]
        parent["peak_bytes"] = {**facts["peak_bytes"], **parent["peak_bytes"]}
    return ranks


def _of_ranks(processes: Mapping[str, Any]) -> dict[int, Any]:
    """Return the facts of processes that are ranks."""
    numbered = {whole_number(name): facts for name, facts in processes.items()}
    return {rank: facts for rank, facts in numbered.items() if rank is not None}


def _how_many(processes: Mapping[str, Any]) -> str:
    ranks = len(_of_ranks(processes))
    if not ranks:
        return _counted(str(len(processes)), "process")
    others = len([name for name in processes if name.startswith("p")])
    started = len(processes) - ranks - others
    parts = [_counted(str(ranks), "rank")]
    parts += [f"{_counted(str(started), 'process')} that they started"] if started else []
    parts += [f"{_counted(str(others), 'process')} that {'is' if others == 1 else 'are'} no rank"] if others else []
    return " and ".join(parts)


def _patches(applied: list[str]) -> str:
    shown = ", ".join(applied[:8]) + (f" and {len(applied) - 8} more" if len(applied) > 8 else "")
    return f"patches applied: {shown or 'none'}"


def _proof(findings: list[finding.Finding], code: int, some_died: bool, patched: bool) -> list[str]:
    """Return what the run proves, excluding calls that did not run or were rejected."""
    if code != 0 or some_died:
        ended = f" with exit code {code}" if code else ""
        return [f"the job failed{ended}: this proves nothing about code that had not run by then"]
    refused = any(found.kind in (finding.LIMIT, finding.UNSUPPORTED, finding.CUDA_ONLY) for found in findings)
    proves = PROVES + (", except those rejected above" if refused else "")
    return [proves + (", with these patches applied" if patched else ""), DOES_NOT]


def _read(run_dir: Path, name: str) -> dict[str, dict[str, Any]]:
    found = {}
    for path in sorted(run_dir.glob(f"{name}.*.json")):
        try:
            found[path.name.split(".")[1]] = content = json.loads(regular_files.read_text(path))
            if not isinstance(content, dict):
                raise ValueError(f"a JSON {type(content).__name__}")
        except (OSError, ValueError, RecursionError) as error:
            raise EmulationError(
                f"{path}: cannot be read ({one_line(error)}), expected the report of a rank — start the job again"
            ) from error
    return found


def _operators(ranks: Mapping[int, Any]) -> Iterable[str]:
    counts = {rank: facts["operators"] for rank, facts in ranks.items()}
    kinds = {name for count in counts.values() for name in count}
    most = sorted(kinds, key=lambda name: -max(count.get(name, 0) for count in counts.values()))[:_MOST_CALLED]
    listed = ", ".join(f"{name} {_span(count.get(name, 0) for count in counts.values())}" for name in most)
    calls = _counted(_span(sum(count.values()) for count in counts.values()), "call")
    steps = _counted(_span(facts["steps"] for facts in ranks.values()), "optimizer step")
    yield f"operators: {len(kinds)} distinct, {calls} per rank, {steps}; most frequent: {listed}"


def _shared_devices(ranks: Mapping[int, Any]) -> list[str]:
    users: dict[tuple[str, str], list[int]] = {}
    for rank, facts in ranks.items():
        for device in facts["peak_bytes"]:
            # A job may set ASCEND_RT_VISIBLE_DEVICES for each rank; each rank then uses device 0.
            users.setdefault((facts["visible"], device), []).append(rank)
    return [
        f"npu:{device}: has tensors of ranks {', '.join(map(str, found))}, expected one device for each rank — "
        "torch.npu.set_device(local rank) before the first tensor, map_location in torch.load"
        for (_, device), found in sorted(users.items())
        if len(found) > 1
    ]


def _waits(ranks: Mapping[int, Any]) -> str:
    waits = {rank: sum(facts["synchronisations"].values()) for rank, facts in ranks.items()}
    a_step = _span(waits[rank] // facts["steps"] if facts["steps"] else 0 for rank, facts in ranks.items())
    listed = _merged(ranks, "synchronisations") or "none"
    return f"host-device syncs: {_span(waits.values())} per rank, {a_step} per optimizer step ({listed})"


def _memory(ranks: Mapping[int, Any]) -> str:
    peaks: dict[str, int] = {}
    for facts in ranks.values():
        for device, peak in facts["peak_bytes"].items():
            peaks[device] = max(peak, peaks.get(device, 0))
    listed = ", ".join(f"npu:{device} {_size(peak)}" for device, peak in sorted(peaks.items()))
    return f"peak memory in torch_npu's allocator: {listed or 'none'}"


def _applied(status: Mapping[str, Any]) -> list[str]:
    return [one["patch"] for one in status.get("outcomes", ()) if one["state"] == "applied"]


def _merged(ranks: Mapping[int, Any], kind: str) -> str:
    names = sorted({name for facts in ranks.values() for name in facts[kind]})
    return ", ".join(f"{name} {_span(facts[kind].get(name, 0) for facts in ranks.values())}" for name in names)


def _size(count: int) -> str:
    return f"{count / 2**20:.1f} MiB" if count >= 1 << 20 else f"{count / 2**10:.1f} KiB"


def _counted(number: str, thing: str) -> str:
    return f"{number} {thing}{'' if number == '1' else 'es' if thing.endswith('s') else 's'}"


def _span(numbers: Iterable[int]) -> str:
    known = list(numbers)
    return str(known[0]) if min(known) == max(known) else f"{min(known)} to {max(known)}"
