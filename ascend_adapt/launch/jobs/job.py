"""A job that is completely checked: its plan is pure data, and all that is left is to print it or to start it."""

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
    """One job.

    ``notes`` are printed before it starts and belong to its plan; ``run_dir`` is made by ``start()``; ``ports`` are
    reserved until the job is left.
    """

    plan: Plan
    run_dir: RunDirectory
    ports: Ports | None = field(default=None, kw_only=True)
    notes: list[str] = field(default_factory=list, kw_only=True)

    def start(self) -> int:
        """Run the job to its end and return its exit code.

        Raises:
            LaunchError: the run directory cannot be made, or a host cannot be reached.
        """
        for note in self.notes:
            say(note)
        self.prepare()
        say(f"run directory {self.run_dir.shown}")
        sys.stdout.flush()
        return self.run()

    def prepare(self) -> None:
        """Make what the job needs on disk."""
        self.run_dir.create()

    @abstractmethod
    def run(self) -> int:
        """Start the processes, wait for their end, and return the exit code."""

    def to_json(self) -> dict[str, Any]:
        """Return the plan as ``--dry-run`` prints it for programs."""
        return {**self.plan.to_json(), **({"notes": self.notes} if self.notes else {})}

    def __enter__(self) -> Job:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self.ports is not None:
            self.ports.close()
