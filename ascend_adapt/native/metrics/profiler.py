"""Profile selected steps of selected ranks with the device's profiler, as traces for chrome://tracing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ascend_adapt.config.profile_config import Profile
from ascend_adapt.errors import type_and_message
from ascend_adapt.native import device as devices
from ascend_adapt.native.parallel.host_group import HostGroup
from ascend_adapt.native.parallel.mesh import Mesh


class Profiler:
    """Profiler of a run. Every rank must create one and call it at every step; ranks that are not selected do nothing.

    A missing or failing profiler is reported and never ends the run.
    """

    def __init__(self, profile: Profile, mesh: Mesh, run_dir: Path) -> None:
        self._profile, self._mesh, self._folder = profile, mesh, run_dir / "profile"
        self._group = HostGroup(mesh) if profile.is_on else None
        self._is_chosen = mesh.rank in profile.ranks
        self._running: Any = None
        self._first = self._done = 0
        self._outcome = ""

    def before(self, iteration: int) -> None:
        """Start profiling if ``iteration`` is the first selected iteration of this run."""
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
                self._outcome = f"no trace, {type_and_message(error)}"

    def after(self, iteration: int) -> list[str]:
        """Count a finished step; after the last selected one, write the traces and return the log lines (on rank 0)."""
        if not self._first:
            return []
        self._done = iteration
        return self.finish() if iteration == self._profile.last else []

    def finish(self) -> list[str]:
        """Write the traces of the profiled steps, and return the log lines."""
        if self._group is None:
            return []
        if not self._done:
            chosen = self._profile
            return [f"profile: no iteration from {chosen.first} to {chosen.last} was run"]
        if self._running is not None:
            self._outcome = self._written()
        mine = (self._mesh.rank, self._outcome)
        outcomes = [(rank, outcome) for rank, outcome in self._group.together(lambda: mine) if outcome]
        steps = f"{self._first}" if self._done == self._first else f"{self._first} to {self._done}"
        self._group, self._done = None, 0
        return [f"profile of iterations {steps}, rank {rank}: {outcome}" for rank, outcome in outcomes]

    def close(self) -> None:
        """Stop profiling without writing anything. Safe to call after an error."""
        running, self._running = self._running, None
        if running is not None:
            try:
                running.stop()
            except _FAILURES as error:
                self._outcome = type_and_message(error)

    def _written(self) -> str:
        running, self._running = self._running, None
        path = self._folder / f"rank{self._mesh.rank:05d}-iterations-{self._first}-{self._done}.json"
        aside = path.with_suffix(".part.json")
        try:
            running.stop()
            self._folder.mkdir(parents=True, exist_ok=True)
            running.export_chrome_trace(str(aside))
            if not aside.exists():
                return "no trace was written — see the profiler's messages in the rank's log"
            aside.replace(path)
            size = path.stat().st_size / 1e6
        except _FAILURES as error:
            aside.unlink(missing_ok=True)
            return f"no trace, {type_and_message(error)}"
        return f"{path}, {size:.1f} MB"


_FAILURES = (ImportError, AttributeError, RuntimeError, OSError, ValueError, TypeError)
