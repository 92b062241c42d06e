"""Look at some steps of some ranks with the device's own profiler, and keep a trace that chrome://tracing reads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ascend_adapt.errors import one_line
from ascend_adapt.native import device as devices
from ascend_adapt.native.config.profile_config import Profile
from ascend_adapt.native.parallel.host_group import HostGroup
from ascend_adapt.native.parallel.mesh import Mesh


class Profiler:
    """The steps of a run; every rank must make it, and tell it of every step. Ranks that are not chosen do nothing.

    A profiler that is not there, or fails, is told of and never ends a run.
    """

    def __init__(self, profile: Profile, mesh: Mesh, run_dir: Path) -> None:
        self._profile, self._mesh, self._folder = profile, mesh, run_dir / "profile"
        self._group = HostGroup(mesh) if profile.is_on else None
        self._is_chosen = mesh.rank in profile.ranks
        self._running: Any = None
        self._first = self._done = 0
        self._outcome = ""

    def before(self, iteration: int) -> None:
        """Begin to look, where ``iteration`` is the first of the chosen that this run does."""
        profile = self._profile
        if not profile.is_on or self._first or not profile.first <= iteration <= profile.last:
            return
        self._first = iteration
        if self._is_chosen:
            try:
                running = devices.profiler(self._mesh.device)
                running.start()
                self._running = running
            except _FAILURES as error:
                self._outcome = f"no trace, {_reason(error)}"

    def after(self, iteration: int) -> list[str]:
        """Take note of a step that was done; return what is to be said, on rank 0, after the last of the chosen."""
        if not self._first:
            return []
        self._done = iteration
        return self.finish() if iteration == self._profile.last else []

    def finish(self) -> list[str]:
        """Write the traces of what was looked at until now, and return what is to be said."""
        if self._group is None:
            return []
        if not self._done:
            chosen = self._profile
            return [f"profile: none of the iterations {chosen.first} to {chosen.last} was among those that were done"]
        if self._running is not None:
            self._outcome = self._written()
        mine = (self._mesh.rank, self._outcome)
        told = [(rank, outcome) for rank, outcome in self._group.together(lambda: mine) if outcome]
        steps = f"{self._first}" if self._done == self._first else f"{self._first} to {self._done}"
        self._group, self._done = None, 0
        return [f"profile of iterations {steps}, rank {rank}: {outcome}" for rank, outcome in told]

    def close(self) -> None:
        """Stop looking, whatever has happened; nothing is written."""
        running, self._running = self._running, None
        if running is not None:
            try:
                running.stop()
            except _FAILURES as error:
                self._outcome = _reason(error)

    def _written(self) -> str:
        running, self._running = self._running, None
        path = self._folder / f"rank{self._mesh.rank:05d}-iterations-{self._first}-{self._done}.json"
        aside = path.with_suffix(".part.json")
        try:
            running.stop()
            self._folder.mkdir(parents=True, exist_ok=True)
            running.export_chrome_trace(str(aside))
            if not aside.exists():
                return "no trace, the profiler has written none — what it says of itself is in the rank's log"
            aside.replace(path)
            size = path.stat().st_size / 1e6
        except _FAILURES as error:
            aside.unlink(missing_ok=True)
            return f"no trace, {_reason(error)}"
        return f"{path}, {size:.1f} MB"


_FAILURES = (ImportError, AttributeError, RuntimeError, OSError, ValueError, TypeError)


def _reason(error: BaseException) -> str:
    return f"{type(error).__name__}: {one_line(error)}"
