"""Converts predicted known problems into findings, and lists the distributions of a diagnosis."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ascend_adapt.diagnosis.findings import Finding
from ascend_adapt.problems.explanation import predict
from ascend_adapt.problems.facts import Facts
from ascend_adapt.problems.problem import Problem

DISTRIBUTIONS = (
    "torch",
    "torch_npu",
    "deepspeed",
    "megatron-core",
    "transformers",
    "accelerate",
    "numpy",
    "pydantic",
    "setuptools",
)
_MOST_PLACES = 3


def as_findings(problems: Iterable[Problem], facts: Facts) -> list[Finding]:
    """Return a finding for each known problem that these facts predict."""
    return [Finding(_in_short(one.shown_by), one.cause, one.do, one.must_fix) for one in predict(problems, facts)]


def _in_short(shown_by: Sequence[str]) -> str:
    more = len(shown_by) - _MOST_PLACES
    return "; ".join(shown_by[:_MOST_PLACES]) + (f"; and {more} more places" if more > 0 else "")
