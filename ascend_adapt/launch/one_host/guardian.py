"""The guardian: a process that starts the other processes of a job on this host and outlives them all.

The guardian runs between the launcher and the ranks. Every orphaned descendant becomes its child, so no process is
lost. The guardian ends the job when a rank fails, when the guardian, its launcher or its agent receives a signal to
end, and when the pipe from the launcher closes because the launcher is gone.
"""

from __future__ import annotations

import errno
import json
import os
import selectors
import signal
import socket
import subprocess
import time
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from ascend_adapt.errors import LaunchError, system_error
from ascend_adapt.launch.one_host import causes, failures, processes, signals
from ascend_adapt.launch.one_host.console import STDERR, STDOUT, say
from ascend_adapt.launch.one_host.coverage import CoverageWatch
from ascend_adapt.launch.one_host.failures import Failure
from ascend_adapt.launch.one_host.moment import Moment
from ascend_adapt.launch.one_host.output import Output
from ascend_adapt.launch.one_host.processes import Identity, code_name
from ascend_adapt.launch.one_host.recipients import SETTLE_S, Recipients
from ascend_adapt.launch.one_host.restarts import run_with_restarts
from ascend_adapt.launch.one_host.run_directory import Job, RunDirectory
from ascend_adapt.launch.one_host.signals import NOT_WAITED_FOR, Requests, Source
from ascend_adapt.launch.one_host.termination import GRACE_S, Termination
from ascend_adapt.launch.placement.environment import BOOTSTRAP, OF_ONE_PROCESS
from ascend_adapt.launch.placement.plan import Plan, RankCommand

if TYPE_CHECKING:
    from ascend_adapt.launch.one_host.progress_bar import ProgressBar

_ENDING_LOOK_S = 0.02
_HELPERS_S = 1.0
"""How long helper processes of Python, such as its resource tracker, may take to end after the last rank."""
_OUTPUT_WAIT_S = 5.0


@dataclass(frozen=True)
class Assignment:
    """The processes that a guardian starts; ``grace`` is the time from SIGTERM or SIGHUP to SIGKILL, in seconds."""

    plan: Plan
    run_dir: RunDirectory
    max_restarts: int = 0
    strict: bool = False
    watch_reach: bool = False
    shows_progress: bool = False
    grace: float = GRACE_S
    part: Part | None = None


@dataclass(frozen=True)
class Part:
    """One host's part of a job on several hosts.

    ``report`` is the descriptor to which the guardian writes its outcome as JSON. The launcher decides for all hosts.
    """

    job: str
    attempt: int
    report: int


class Guardian:
    """Supervisor of one job on this host.

    ``control`` is the pipe from the launcher. It carries pairs of bytes (source, signal); its end of file ends the job.
    """

    def __init__(self, assignment: Assignment, control: int, launcher: Identity) -> None:
        self._assignment, self._control = assignment, control
        self._job = Job.here(launcher, Identity.own())
        self._requests = Requests()
        self._passing: dict[int, float] = {}
        self._recipients = Recipients(self._job_name(), assignment.run_dir.beacons)
        self._unreached: list[str] = []
        self._failure: Failure | None = None
        self._selector = selectors.DefaultSelector()

    def run(self) -> int:
        """Run the job until it ends, and return its exit code."""
        processes.adopt_orphans()
        part = self._assignment.part
        if part is not None:
            code = self._attempt(part.attempt)
            failure = asdict(self._failure) if self._failure is not None else None
            os.write(part.report, json.dumps({"failure": failure, "unreached": self._unreached}).encode())
            return code
        self._write_job()
        code, restarts = run_with_restarts(
            self._attempt, at_most=self._assignment.max_restarts, is_stopped=lambda: self._requests.stop is not None
        )
        failed = self._failure if code and self._requests.stop is None else None
        lines = failed.report(self._assignment.run_dir) if failed is not None else []
        self._write_job(exit_code=code, restarts=restarts, unreached=self._unreached, failure=lines)
        return code

    def _write_job(self, **more: Any) -> None:
        command = list(self._assignment.plan.ranks[0].argv)
        self._job.write_if_possible(self._assignment.run_dir, grace=self._assignment.grace, command=command, **more)

    def listen(self) -> None:
        """Respond to signals from now on."""
        self._selector.register(signals.listen([signal.SIGCHLD]), selectors.EVENT_READ, "signals")
        self._selector.register(self._control, selectors.EVENT_READ, "launcher")

    def _attempt(self, restarts: int) -> int:
        """Start every process, wait for the first failure or the last success, and end all remaining processes."""
        began = Moment.now()
        ranks = [command.rank for command in self._assignment.plan.ranks if command.rank is not None]
        logs = {rank: self._assignment.run_dir.rank_log(rank) for rank in ranks}
        bar = _progress_bar() if self._assignment.shows_progress else None
        output = Output(logs, append=restarts > 0, bar=bar)
        running: dict[int, RankCommand] = {}
        for command in self._assignment.plan.ranks:
            self._wait(0)
            if self._requests.stop is not None:
                break
            running[self._start(command, output, restarts, bar)] = command
        output.begin()
        failure = self._wait_for_end(running)
        left_running = self._end_all(failure)
        output.finish(_OUTPUT_WAIT_S if not left_running else 0)
        if failure is None:
            # A failure on another host may have ended this host before its earlier failure was seen.
            self._failure = failures.first_recorded(self._assignment.run_dir, began, ranks)
            if self._requests.stop is not None:
                return 128 + self._requests.stop
            return 0 if ranks else self._code_of_a_command(began)
        return self._report(failures.earliest(self._assignment.run_dir, failure, began), began)

    def _report(self, first: Failure, began: Moment) -> int:
        """Print the first failure with its cause, keep it for the job's file, and return the exit code."""
        cause = causes.of_failure(self._assignment.run_dir, first, began, os.environ)
        self._failure = replace(first, cause=cause, traceback="")
        if self._assignment.part is None:
            for line in self._failure.report(self._assignment.run_dir):
                say(line)
        return first.code

    def _code_of_a_command(self, began: Moment) -> int:
        """Return 0, or the exit code of a rank whose failure a command such as ``... | tee log`` has hidden."""
        hidden = failures.hidden_by_a_command(self._assignment.run_dir, began)
        if hidden is None:
            return 0
        (command,) = self._assignment.plan.ranks
        error = (
            f"{command.argv[0]} ended with exit code 0, but rank {hidden.rank} on {hidden.host} failed: {hidden.error} "
            f"— exit code {hidden.code}"
        )
        return self._report(Failure(None, hidden.at, hidden.code, error, hidden.host), began)

    def _start(self, command: RankCommand, output: Output, restarts: int, bar: ProgressBar | None) -> int:
        env = {**os.environ, **command.env, "ASCEND_ADAPT_JOB": f"{self._job_name()}.{restarts}"}
        for name in OF_ONE_PROCESS:
            env.pop(name, None)
        stdout = stderr = None
        inherited: tuple[int, ...] = ()
        try:
            if command.rank is not None:
                env["TORCHELASTIC_RUN_ID"] = env["ASCEND_ADAPT_JOB"]
                env["TORCHELASTIC_RESTART_COUNT"] = str(restarts)
                stdout, stderr = output.pipe(command.rank, STDOUT), output.pipe(command.rank, STDERR)
                if command.rank == 0 and bar is not None:
                    inherited = (output.pipe_of_bar(bar),)
                    env["ASCEND_ADAPT_PROGRESS_FD"] = str(inherited[0])
            process = subprocess.Popen(
                command.argv,
                env=env,
                stdout=stdout,
                stderr=stderr,
                pass_fds=inherited,
                start_new_session=True,
                # Safe here: this process has only one thread until output.begin().
                preexec_fn=processes.dies_with_parent(),
            )
        except OSError as error:
            is_broken = error.errno in (errno.ENOEXEC, errno.ENOENT, errno.EACCES)
            step = "check its first line (#!)" if is_broken else "raise the limit, or run fewer processes on this host"
            raise LaunchError(
                f"{command.argv[0]}: {system_error(error)}, expected a program that starts — {step}"
            ) from error
        process.returncode = 0  # The guardian reaps its children itself, in the order in which they end.
        return int(process.pid)

    def _job_name(self) -> str:
        if self._assignment.part is not None:
            return self._assignment.part.job
        return f"{self._job.boot[:8]}-{self._job.guardian.pid}-{self._job.guardian.start}"

    def _wait_for_end(self, running: dict[int, RankCommand]) -> Failure | None:
        """Return the first failure, or None after the last success or if the job must stop."""
        watch = CoverageWatch(self._assignment.run_dir, BOOTSTRAP) if self._assignment.watch_reach else None
        while running and self._requests.stop is None:
            self._wait(SETTLE_S if self._passing else watch.interval if watch is not None else None)
            self._pass_on()
            for pid, code in processes.reap():
                command = running.pop(pid, None)
                if command is not None and code != 0:
                    error = "" if command.rank is not None else f"{command.argv[0]} ended with {code_name(code)}"
                    return Failure(command.rank, Moment.now(), code, error)
            for unreached in watch.look() if watch is not None else ():
                self._unreached.append(str(unreached))
                say(str(unreached))
                if self._assignment.strict:
                    return Failure(None, Moment.now(), 1, "--strict: the job stops, every rank must be adapted")
        return None

    def _end_all(self, failure: Failure | None) -> list[Identity]:
        """End all descendants of this process; return the processes that could not be ended."""
        stop = self._requests.stop
        is_success = failure is None and stop is None
        # All ranks save together, so after a failure there is no save to wait for.
        grace = self._assignment.grace if stop in signals.TIME_TO_SAVE else GRACE_S
        if stop in signals.END and self._assignment.part is None:
            say(ends_by(stop, grace))
        if is_success:
            self._wait_for_helpers()
        first = signal.SIGINT if stop == signal.SIGINT else signal.SIGTERM
        ending = Termination(first, grace, needs=self._recipients.needs)
        done = ending.look()
        if is_success and ending.left:
            say(f"stopping processes that the job left running: {', '.join(str(one.pid) for one in ending.left)}")
        while not done:
            self._wait(_ENDING_LOOK_S)
            for _ in processes.reap():
                pass
            if self._requests.skips_grace:
                ending.skip_grace()
            done = ending.look()
        for _ in processes.reap():
            pass
        if ending.left:
            pids = ", ".join(str(one.pid) for one in ending.left)
            say(f"pids {pids} still run after SIGKILL — they are blocked in the kernel, see dmesg")
        return ending.left

    def _wait_for_helpers(self) -> None:
        """Let processes end that end by themselves after their rank."""
        until = time.monotonic() + _HELPERS_S
        while processes.descendants(os.getpid()) and time.monotonic() < until and self._requests.stop is None:
            self._wait(_ENDING_LOOK_S)
            for _ in processes.reap():
                pass

    def _wait(self, timeout: float | None) -> None:
        """Wait for the timeout, or for a signal to this process or to the launcher."""
        for key, _ in self._selector.select(timeout):
            data = os.read(key.fd, 64)
            if key.data == "signals":
                for number in data:
                    self._asked(number, Source.GUARDIAN)
                continue
            if not data:
                self._selector.unregister(key.fd)
                data = bytes([Source.PARENT, NOT_WAITED_FOR])
            for source, number in zip(data[::2], data[1::2], strict=True):
                self._asked(number, Source(source))

    def _asked(self, number: int, source: Source) -> None:
        if number in signals.PASSED:
            if self._requests.is_new(number):
                self._passing[number] = time.monotonic()
        elif number != signal.SIGCHLD:
            self._requests.to_end(number, source)

    def _pass_on(self) -> None:
        """Pass signals to the processes that handle them, once it is known which have already received them."""
        for number, since in list(self._passing.items()):
            waited_s = time.monotonic() - since
            if waited_s < SETTLE_S:
                continue
            del self._passing[number]
            handling = [one for one in processes.descendants(os.getpid()) if one.handles(number)]
            for one in handling:
                if self._recipients.needs(one, number, waited_s):
                    one.send(number)
            say(passed(number, len(handling)) + (f" ({socket.gethostname()})" if self._assignment.part else ""))


def _progress_bar() -> ProgressBar:
    # Importing rich is slow, and most jobs have no progress bar.
    from ascend_adapt.launch.one_host.progress_bar import ProgressBar

    return ProgressBar()


def ends_by(number: int, grace: float) -> str:
    """Describe the effect of a signal that ends the job."""
    return f"{signal.Signals(number).name}: the job ends, SIGKILL after {grace:g} s; a second signal skips the wait"


def passed(number: int, handling: int) -> str:
    """Describe a signal that leaves the job running, and how many processes handle it."""
    known = f"passed to the processes that handle it, {handling}" if handling else "no process handles it"
    return f"{signal.Signals(number).name}: the job continues, {known}"
