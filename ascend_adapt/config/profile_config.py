"""Profiler configuration: the profiled steps and ranks."""

from __future__ import annotations

import re
from dataclasses import dataclass

from ascend_adapt.config.checks import at_least
from ascend_adapt.errors import ConfigError

MOST_STEPS = 20
"""Maximum number of profiled steps: each adds a few MB (small model) to 100 MB (large model) to the trace."""


@dataclass(frozen=True)
class Profile:
    """Profiled iterations ``first`` to ``last``, numbered as in the log, on ``ranks``; 0 to 0 disables profiling."""

    first: int = 0
    last: int = 0
    ranks: tuple[int, ...] = (0,)

    def __post_init__(self) -> None:
        if self.first == self.last == 0:
            return
        at_least("profile: first step", self.first, 1)
        at_least("profile: last step", self.last, self.first)
        if self.last - self.first >= MOST_STEPS:
            raise ConfigError(
                f"profile: {self.last - self.first + 1} steps, expected at most {MOST_STEPS} — each step adds to the "
                "trace; choose fewer"
            )
        if not self.ranks:
            raise ConfigError("profile: no ranks, expected at least one — name ranks, such as 0")
        for rank in self.ranks:
            at_least("profile: rank", rank, 0)

    @property
    def is_on(self) -> bool:
        """Whether any step is profiled."""
        return self.first > 0


def read_profile(steps: str, ranks: str = "0") -> Profile:
    """Parse --profile ("10" or "10-12") and --profile-ranks ("0" or "0,4-7").

    Raises:
        ConfigError: a value does not have this form.
    """
    found = re.fullmatch(r"(\d+)(?:-(\d+))?", steps)
    if found is None or int(found[1]) == 0:
        raise ConfigError(f"--profile: {steps!r}, expected a step or first-last, counted from 1 — such as 20-22")
    chosen: list[int] = []
    for word in ranks.split(","):
        span = re.fullmatch(r"(\d+)(?:-(\d+))?", word.strip())
        if span is None:
            raise ConfigError(f"--profile-ranks: {ranks!r}, expected ranks and ranges of ranks — such as 0,4-7")
        chosen += range(int(span[1]), int(span[2] or span[1]) + 1)
    return Profile(int(found[1]), int(found[2] or found[1]), tuple(dict.fromkeys(chosen)))
