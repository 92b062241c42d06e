"""The run directory: a job's logs, status files and failure records, and the identity of its processes."""

from __future__ import annotations

import contextlib
import json
import os
import socket
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ascend_adapt import regular_files
from ascend_adapt.errors import LaunchError
from ascend_adapt.launch.one_host.console import say
from ascend_adapt.launch.one_host.processes import Identity
from ascend_adapt.whole_numbers import whole_number


@dataclass(frozen=True)
class RunDirectory:
    """Paths inside one run directory.

    ``node`` identifies the launcher if each host has one; ``shown`` is the folder as the user typed it.
    """

    path: Path
    node: int = 0
    shown: str = ""

    def check(self) -> None:
        """Check that a job can use this folder; create nothing.

        Raises:
            LaunchError: a running job uses the folder, or the folder cannot be created.
        """
        try:
            has_job = self.job.exists()
        except OSError as error:  # such as a name that is too long
            raise self._unusable(error) from error
        if has_job:
            job, _ = Job.read(self)
            if job.is_alive():
                raise LaunchError(
                    f"run directory {self.path}: is in use by a running job (pid {job.launcher.pid}) — "
                    f"choose another with --log-dir, or end it with `ascend-adapt stop {self.path}`"
                )
        there = next(folder for folder in (self.path, *self.path.parents) if os.path.lexists(folder))
        if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
            why = "cannot be written" if there.is_dir() else "is not a folder"
            raise LaunchError(f"run directory {self.path}: {there} {why} — choose another with --log-dir")

    def create(self, elsewhere: Collection[int] = ()) -> None:
        """Create the folders, and remove files that an earlier job left in them.

        ``elsewhere``: ranks whose launchers run on other hosts and may have already written here; their files are kept.

        Raises:
            LaunchError: the folders cannot be created, or a running job uses them.
        """
        self.check()
        of_ranks = (
            "adapt-status.*.json",
            "rehearsal*.json",
            "rehearsal.html",
            ".waits.*",
            "failures/*",
            *(() if elsewhere else ("beacons/*", "device-*")),
        )
        try:
            for folder in (self.path, self.beacons, self.failures):
                folder.mkdir(parents=True, exist_ok=True)
            stale = [one for pattern in of_ranks for one in self.path.glob(pattern) if _rank_of(one) not in elsewhere]
            for one in (self.job, *stale):
                one.unlink(missing_ok=True)
        except OSError as error:
            raise self._unusable(error) from error

    def _unusable(self, error: OSError) -> LaunchError:
        return LaunchError(f"run directory {self.path}: {error.strerror} — choose another with --log-dir")

    def join(self, job: Mapping[str, Any]) -> None:
        """Prepare the folder on a host other than the launcher's; ``job`` is the content that Job.write() wrote.

        If the hosts share the folder, the launcher has already prepared it, and it is not changed.

        Raises:
            LaunchError: create() raises it.
        """
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError, RecursionError):
            if json.loads(regular_files.read_text(self.job))["launcher"] == job["launcher"]:
                return
        self.create()
        write_whole(self.job, job)

    @property
    def beacons(self) -> Path:
        """Folder with one beacon file for each adapted process."""
        return self.path / "beacons"

    @property
    def failures(self) -> Path:
        """Folder with one file for each rank that failed."""
        return self.path / "failures"

    @property
    def job(self) -> Path:
        """File that records which processes run the job, and how it ended."""
        return self.path / (f"job.{self.node}.json" if self.node else "job.json")

    def of_all_nodes(self) -> list[RunDirectory]:
        """Return one RunDirectory per launcher of this directory, in the order of the hosts."""
        nodes = sorted(node for one in self.path.glob("job.*.json") if (node := _rank_of(one)) is not None)
        return [RunDirectory(self.path, node) for node in (0, *nodes)]

    def rank_log(self, rank: int) -> Path:
        """Return the path of a rank's log."""
        return self.path / f"rank-{rank}.log"

    def rank_status(self, rank: int) -> Path:
        """Return the path of a rank's status file, which records the outcome of each patch."""
        return self.path / f"adapt-status.{rank}.json"

    def program_status(self, pid: int) -> Path:
        """Return the path of the status file of a program that is not a rank."""
        return self.path / f"adapt-status.p{pid}.json"


@dataclass(frozen=True)
class Job:
    """The processes that run a job; ``boot`` is the kernel's boot id, because pids are reused after a reboot."""

    host: str
    boot: str
    launcher: Identity
    guardian: Identity

    @classmethod
    def here(cls, launcher: Identity, guardian: Identity) -> Job:
        """Return the job that these two processes run on this machine."""
        return cls(socket.gethostname(), boot_id(), launcher, guardian)

    @classmethod
    def read(cls, run_dir: RunDirectory) -> tuple[Job, Mapping[str, Any]]:
        """Return the processes that run a job, and the full content of its file.

        Raises:
            LaunchError: the file is missing or damaged.
        """
        try:
            data = json.loads(regular_files.read_text(run_dir.job))
            return (
                cls(data["host"], data["boot"], Identity(**data["launcher"]), Identity(**data["guardian"])),
                data,
            )
        except FileNotFoundError as error:
            found = f"has no {run_dir.job.name}" if run_dir.path.is_dir() else "is not a folder"
            raise LaunchError(
                f"{run_dir.path}: {found}, expected a run directory — pass the one that ascend-run printed"
            ) from error
        except OSError as error:
            raise LaunchError(f"{run_dir.job}: cannot be read ({error.strerror}) — choose another directory") from error
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise LaunchError(f"{run_dir.job}: is not a job file ({error}) — remove it") from error

    def is_alive(self) -> bool:
        """Return whether the job is running on this machine."""
        here = (self.host, self.boot) == (socket.gethostname(), boot_id())
        return here and (self.launcher.is_alive() or self.guardian.is_alive())

    def write(self, run_dir: RunDirectory, **more: Any) -> None:
        """Write the job's processes, and ``more`` facts about the job."""
        write_whole(run_dir.job, {**asdict(self), **more})

    def write_if_possible(self, run_dir: RunDirectory, **more: Any) -> None:
        """Like write(), but report a full disk instead of raising an error."""
        try:
            self.write(run_dir, **more)
        except OSError as error:
            say(
                f"{run_dir.job}: {error.strerror}; the job continues, `ascend-adapt status` and `ascend-adapt stop` "
                "will not find it — free space there, or choose another with --log-dir"
            )


def _rank_of(file: Path) -> int | None:
    """Return the rank that has written a file: the first number between the dots of its name."""
    numbers = map(whole_number, file.name.split("."))
    return next((number for number in numbers if number is not None), None)


def boot_id() -> str:
    """Return the kernel's boot id, which is different after every reboot."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def write_whole(path: Path, data: Any) -> None:
    """Write JSON atomically."""
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        aside.write_text(json.dumps(data, indent=1) + "\n")
        aside.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            aside.unlink()
        raise
