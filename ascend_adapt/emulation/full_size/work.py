"""Floating-point operations and collectives of one optimizer step of a rank; only ranks import this module."""

from __future__ import annotations

from typing import Any

from ascend_adapt.emulation import library, report

steps: list[tuple[int, int, list[dict[str, Any]]]] = []
"""For each optimizer step: cumulative floating-point operations, recomputed operations, and collectives."""


def end_step(has_ended: bool) -> None:
    """Record the cumulative counts; if this step has already ended with an earlier call, replace its record."""
    if has_ended:
        steps.pop()
    steps.append(_so_far())


def to_json() -> dict[str, Any]:
    """Return the operations and collectives between the last two steps, or all of them before the second step."""
    flops, recomputed, traffic = steps[-1] if steps else _so_far()
    if len(steps) > 1:
        flops_before, recomputed_before, traffic_before = steps[-2]
        before = {_key(one): one for one in traffic_before}
        flops, recomputed = flops - flops_before, recomputed - recomputed_before
        traffic = [_without(one, before.get(_key(one))) for one in traffic]
    found = [one for one in traffic if one["calls"]]
    return {
        "flops": flops,
        "recomputed_flops": recomputed,
        "collectives": found,
        "of_one_step": len(steps) > 0,
    }


def _so_far() -> tuple[int, int, list[dict[str, Any]]]:
    return report.tally.flops, report.tally.recomputed_flops, library.traffic()


def _key(one: dict[str, Any]) -> tuple[str, str, str]:
    return one["name"], one["type"], one["ranks"]


def _without(one: dict[str, Any], before: dict[str, Any] | None) -> dict[str, Any]:
    return one if before is None else {**one, **{name: one[name] - before[name] for name in ("calls", "bytes")}}
