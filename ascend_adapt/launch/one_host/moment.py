"""A moment on a host. The wall clock may jump, and the monotonic clocks of two hosts have nothing in common."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from ascend_adapt.launch.one_host.run_directory import boot_id


@dataclass(frozen=True)
class Moment:
    """A moment by the clocks of one host: ``boot`` identifies the host and the start of its monotonic clock."""

    boot: str
    monotonic_ns: int
    wall_ns: int

    @classmethod
    def now(cls) -> Moment:
        """Return this moment on this host."""
        return cls(boot_id(), time.monotonic_ns(), time.time_ns())

    def is_before(self, other: Moment) -> bool:
        """Return whether this moment is earlier: on another host, by the wall clocks of both."""
        if self.boot == other.boot:
            return self.monotonic_ns < other.monotonic_ns
        return self.wall_ns < other.wall_ns


def have_one_clock(moments: Sequence[Moment]) -> bool:
    """Return whether all moments are of one host, so that their order does not depend on wall clocks."""
    return len({one.boot for one in moments}) <= 1
