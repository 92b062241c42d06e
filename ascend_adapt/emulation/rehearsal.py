"""The rehearsal report: what the ranks of a job did on the emulated NPU, and what that proves."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ascend_adapt.errors import EmulationError, one_line

_MOST_CALLED = 8
PROVES = (
    "this proves: torch_npu's own Python and C++ accepted every call that the ranks made (names, arguments, dispatch, "
    "autograd, its allocator, its process group)"
)
DOES_NOT = (
    "it does not prove: results, rounding or memory layouts of an NPU, limits of its kernels that are not documented, "
    "HCCL between machines, or speed (evidence: emulated)"
)


def report_lines(run_dir: Path, known_problems: Sequence[str] = ()) -> list[str]:
    """Return the lines of a run directory's report, and write the full report to its ``rehearsal.json``.

    ``known_problems``: lines about known problems of the job on an NPU; they become part of both.
    """
    ranks = _read(run_dir, "rehearsal")
    if not ranks:
        nothing = "rehearsal: no process of the job imported torch_npu, or none ended normally: nothing was rehearsed"
        return [nothing, *known_problems]
    statuses = _read(run_dir, "adapt-status")
    patches = {rank: _applied(status) for rank, status in statuses.items()}
    everything = {
        "evidence": "emulated",
        "ranks": {str(rank): facts for rank, facts in ranks.items()},
        "known_problems": list(known_problems),
    }
    (run_dir / "rehearsal.json").write_text(json.dumps(everything, indent=1) + "\n")
    first = ranks[min(ranks)]
    lines = [
        f"rehearsal: torch_npu {first['torch_npu']} on an emulated {first['soc']}, "
        f"{_counted(str(len(ranks)), 'rank')}; full report: {run_dir / 'rehearsal.json'}"
    ]
    ended = sorted(set(statuses) - set(ranks))
    if ended:
        lines.append(f"ranks without a report, because they did not end normally: {', '.join(map(str, ended))}")
    lines += _operators(ranks)
    lines += _problems(ranks)
    lines += _shared_devices(ranks)
    lines += known_problems
    applied = sorted({name for names in patches.values() for name in names})
    lines += [_waits(ranks), _memory(ranks), f"patches applied: {', '.join(applied) or 'none'}"]
    return [*lines, PROVES + (", and these patches worked on it" if applied else ""), DOES_NOT]


def _read(run_dir: Path, name: str) -> dict[int, dict[str, Any]]:
    found = {}
    for path in run_dir.glob(f"{name}.*.json"):
        rank = path.name.split(".")[1]
        if rank.isdigit():
            try:
                found[int(rank)] = json.loads(path.read_text())
            except (ValueError, RecursionError) as error:
                raise EmulationError(
                    f"{path}: is not JSON ({one_line(error)}), expected what a rank reported — start the job again"
                ) from error
    return dict(sorted(found.items()))


def _operators(ranks: Mapping[int, Any]) -> Iterable[str]:
    counts = {rank: facts["operators"] for rank, facts in ranks.items()}
    kinds = {name for count in counts.values() for name in count}
    if not kinds:
        yield (
            "operators: none ran on the device in the ranks themselves; processes that a rank starts (mp.spawn, "
            "workers) are not counted"
        )
        return
    most = sorted(kinds, key=lambda name: -max(count.get(name, 0) for count in counts.values()))[:_MOST_CALLED]
    listed = ", ".join(f"{name} {_span(count.get(name, 0) for count in counts.values())}" for name in most)
    calls = _counted(_span(sum(count.values()) for count in counts.values()), "call")
    steps = _counted(_span(facts["steps"] for facts in ranks.values()), "optimizer step")
    yield f"operators: {_counted(str(len(kinds)), 'kind')}, {calls} per rank, {steps}; most: {listed}"


def _problems(ranks: Mapping[int, Any]) -> Iterable[str]:
    on_the_host = _merged(ranks, "on_the_host")
    if on_the_host:
        yield f"run on the host, as torch_npu has no kernel for them: {on_the_host}"
    missing = _merged(ranks, "missing")
    if missing:
        yield f"not emulated, so not rehearsed: {missing}"
    violations: dict[tuple[str, str], str] = {}
    for rank, facts in ranks.items():
        for one in facts["violations"]:
            violations.setdefault(
                (one["operator"], one["limit"]), f"{one['detail']} (rank {rank}, {_counted(str(one['count']), 'time')})"
            )
    for (operator, limit), detail in violations.items():
        yield f"limit violated: {operator}: {detail}, expected: {limit}"


def _shared_devices(ranks: Mapping[int, Any]) -> Iterable[str]:
    users: dict[tuple[str, str], list[int]] = {}
    for rank, facts in ranks.items():
        for device in facts["peak_bytes"]:
            # A job may set ASCEND_RT_VISIBLE_DEVICES for each rank, whose device is then 0.
            users.setdefault((facts["visible"], device), []).append(rank)
    for (_, device), found in sorted(users.items()):
        if len(found) > 1:
            yield (
                f"npu:{device}: has tensors of ranks {', '.join(map(str, found))}, expected one device for each rank — "
                "torch.npu.set_device(local rank) before the first tensor, map_location in torch.load"
            )


def _waits(ranks: Mapping[int, Any]) -> str:
    waits = {rank: sum(facts["synchronisations"].values()) for rank, facts in ranks.items()}
    a_step = _span(waits[rank] // facts["steps"] if facts["steps"] else 0 for rank, facts in ranks.items())
    listed = _merged(ranks, "synchronisations") or "none"
    times = _counted(_span(waits.values()), "time")
    return f"the host waited for the device: {times} per rank, {a_step} per optimizer step ({listed})"


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
    return f"{number} {thing}{'' if number == '1' else 's'}"


def _span(numbers: Iterable[int]) -> str:
    known = list(numbers)
    return str(known[0]) if min(known) == max(known) else f"{min(known)} to {max(known)}"
