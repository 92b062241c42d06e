"""Summary of a rehearsal at full size: memory, collectives and operations; the launcher runs it without torch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

_MOST_RANKS, _MOST_COLLECTIVES = 8, 4
_GIB = 1 << 30
STAND_INS = (
    "full size: nothing was computed: losses, norms and other values that the host read are stand-ins; memory, shapes, "
    "dtypes, limits and collectives are those of the real job"
)


def lines(ranks: Mapping[int, Any]) -> list[str]:
    """Return the report's lines about ranks that ran at full size, or no line if none did."""
    facts = {rank: found["full_size"] for rank, found in ranks.items() if found.get("full_size")}
    if not facts:
        return []
    found = [STAND_INS]
    groups: dict[str, list[int]] = {}
    for rank, one in facts.items():
        for device in one["memory"].values():
            groups.setdefault(_memory(device), []).append(rank)
    shown = [f"{_ranks(members)}: {text}" for text, members in groups.items()]
    found += shown[:_MOST_RANKS]
    if len(shown) > _MOST_RANKS:
        found.append(f"{len(shown) - _MOST_RANKS} more groups of ranks are in rehearsal.json")
    found += _first_beyond(facts)
    found += _largest_lines(facts)
    found += _large_tensors(facts)
    found.append(_collectives(facts))
    found.append(_operations(facts))
    skipped = sum((Counter(one["host_skipped"]) for one in facts.values()), Counter())
    if skipped:
        sizes = ", ".join(f"{name.removeprefix('aten::')} {_size(size)}" for name, size in skipped.most_common(4))
        found.append(f"skipped on the host, sum over all ranks: {sizes}")
    return found


def has_memory(facts: Mapping[str, Any]) -> bool:
    """Return whether a process at full size has allocated memory."""
    return bool(facts.get("full_size") and facts["full_size"]["memory"])


def _memory(device: Mapping[str, Any]) -> str:
    """Describe one device's peak memory, its breakdown, and whether it fits."""
    other = device["by_purpose"].get("communication buffers", 0)
    used = device["allocated_peak"] + other
    parts = ", ".join(
        f"{name} {_size(size)}"
        for name, size in sorted(device["by_purpose"].items(), key=lambda one: -one[1])
        if size >= 1 << 20
    )
    text = f"peak {_size(used)} ({parts}); reserved {_size(device['reserved_peak'] + other)}"
    if device["refused"] is not None:
        refused = device["refused"]
        return f"{text}; OUT OF MEMORY at {refused['line']} ({refused['purpose']}): {refused['message']}"
    return f"{text}; {_verdict(used, device['reserved_peak'] + other)}"


def _verdict(used: int, reserved: int) -> str:
    for gib in (32, 64):
        if reserved <= gib * _GIB:
            return f"fits {gib} GiB"
        if used <= gib * _GIB:
            return f"fits {gib} GiB only if fragments are reused (more is reserved than {gib} GiB)"
    return "does not fit 64 GiB"


def _first_beyond(facts: Mapping[int, Any]) -> Iterable[str]:
    for limit in sorted(
        {limit for one in facts.values() for d in one["memory"].values() for limit in d["first_beyond"]}
    ):
        crossed = {
            rank: device["first_beyond"][limit]
            for rank, one in facts.items()
            for device in one["memory"].values()
            if limit in device["first_beyond"]
        }
        first = crossed[min(crossed)]
        yield (
            f"first allocation beyond {int(limit) / _GIB:g} GiB ({_ranks(list(crossed))}): {_size(first['bytes'])} at "
            f"{first['line']} ({first['purpose']})"
        )


def _largest_lines(facts: Mapping[int, Any]) -> Iterable[str]:
    rank = max(facts, key=lambda rank: max((d["allocated_peak"] for d in facts[rank]["memory"].values()), default=0))
    found: Counter[str] = Counter()
    for device in facts[rank]["memory"].values():
        found.update(device["by_line"])
    if found:
        listed = ", ".join(f"{line} {_size(size)}" for line, size in found.most_common(4))
        yield f"lines that hold the most memory at the peak of rank {rank}: {listed}"


def _large_tensors(facts: Mapping[int, Any]) -> Iterable[str]:
    found: dict[str, str] = {}
    for one in facts.values():
        for device in one["memory"].values():
            found.update(device["beyond_int32"])
    if found:
        listed = ", ".join(f"{line} {shape}" for line, shape in list(found.items())[:3])
        yield f"tensors of 2^31 elements or more, which kernels with 32-bit indices cannot address: {listed}"


def _collectives(facts: Mapping[int, Any]) -> str:
    """Describe the collectives that move the most bytes, on the rank that moves the most."""
    rank = max(facts, key=lambda rank: sum(one["bytes"] for one in facts[rank]["collectives"]))
    listed = sorted(facts[rank]["collectives"], key=lambda one: -one["bytes"])
    shown = ", ".join(
        f"{one['name']} {one['type']} of ranks {one['ranks']}: {one['calls']} calls, {_size(one['bytes'])}"
        for one in listed[:_MOST_COLLECTIVES]
    )
    more = f", and {len(listed) - _MOST_COLLECTIVES} more kinds" if len(listed) > _MOST_COLLECTIVES else ""
    each = " in one optimizer step" if facts[rank]["of_one_step"] else ""
    return f"collectives of rank {rank}{each}: {shown or 'none'}{more}"


def _operations(facts: Mapping[int, Any]) -> str:
    """Describe the floating-point operations of a step, which together with a measured step time give the MFU."""
    total = sum(one["flops"] for one in facts.values()) / 1e12
    if not all(one["of_one_step"] for one in facts.values()):
        return f"floating-point operations of all ranks: {total:.2f} TFLOP, without an optimizer step"
    return (
        f"floating-point operations of all ranks: {total:.2f} TFLOP per optimizer step (matrix products and attention, "
        f"recomputation included); utilization = this / (seconds per step x {len(facts)} x peak FLOP/s of a device)"
    )


def _ranks(members: list[int]) -> str:
    return f"rank{'s' if len(members) > 1 else ''} {', '.join(map(str, sorted(set(members))))}"


def _size(count: int) -> str:
    return f"{count / _GIB:.2f} GiB" if count >= 1 << 27 else f"{count / (1 << 20):.1f} MiB"
