"""The base class of jobs: a job is completely checked, and its plan is plain data that can be printed or started."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

from ascend_adapt.launch.one_host.console import say
from ascend_adapt.launch.one_host.run_directory import RunDirectory
from ascend_adapt.launch.placement.plan import Plan
from ascend_adapt.launch.placement.ports import Ports


@dataclass
class Job(ABC):
    """A completely checked job.

    ``notes`` are part of the plan and are printed before the job starts; ``start()`` creates ``run_dir``; ``ports``
    stay reserved until the context manager exits.
    """

    plan: Plan
    run_dir: RunDirectory
    ports: Ports | None = field(default=None, kw_only=True)
    notes: list[str] = field(default_factory=list, kw_only=True)

    def start(self) -> int:
        """Run the job until it ends, and return its exit code.

        Raises:
            LaunchError: the run directory cannot be created, or a host cannot be reached.
        """
        for note in self.notes:
            say(note)
        self.prepare()
        say(f"run directory {self.run_dir.shown}")
        sys.stdout.flush()
        return self.run()

    def prepare(self) -> None:
        """Create the run directory."""
        self.run_dir.create()

    @abstractmethod
    def run(self) -> int:
        """Start the processes, wait for them, and return the exit code."""

    def to_json(self) -> dict[str, Any]:
        """Return the plan in the JSON form of ``--dry-run``."""
        return {**self.plan.to_json(), **({"notes": self.notes} if self.notes else {})}

    def __enter__(self) -> Job:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self.ports is not None:
            self.ports.close()
