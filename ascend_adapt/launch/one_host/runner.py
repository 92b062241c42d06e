"""The launcher's side of a running job: starts a guardian between the launcher and the ranks, and forwards signals."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import traceback
from collections.abc import Mapping

from ascend_adapt.errors import AdaptError, LaunchError, system_error
from ascend_adapt.launch.one_host import processes, signals, termination
from ascend_adapt.launch.one_host.console import say
from ascend_adapt.launch.one_host.guardian import Assignment, Guardian
from ascend_adapt.launch.one_host.processes import Identity
from ascend_adapt.launch.one_host.signals import Source


class GuardedRun:
    """A guardian process to which this process forwards signals.

    If the guardian is killed, its ranks die with it. This process adopts the processes that they leave, and ends them.
    """

    def __init__(self, assignment: Assignment, descriptors: Mapping[int, int] | None = None) -> None:
        """Start the guardian; ``descriptors`` maps its descriptor numbers to open descriptors, e.g. ``{1: pipe}``.

        Raises:
            LaunchError: this user or host can have no more processes.
        """
        processes.adopt_orphans()
        launcher = Identity.own()
        reader, self._writer = os.pipe()
        sys.stdout.flush()
        sys.stderr.flush()
        # Signals are blocked from fork until the handlers are installed, so that no signal is lost or misdirected.
        before: set[int] = set(signal.pthread_sigmask(signal.SIG_BLOCK, signals.HANDLED))
        try:
            self._pid = os.fork()
        except OSError as error:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            os.close(reader)
            os.close(self._writer)
            raise LaunchError(
                f"guardian of the job: {system_error(error)}, expected to start a process — raise the limit, or "
                "run fewer processes on this host"
            ) from error
        if self._pid == 0:
            os.close(self._writer)
            for number, descriptor in (descriptors or {}).items():
                os.dup2(descriptor, number)
            _guard(Guardian(assignment, reader, launcher), before)
        os.close(reader)
        for number in signals.HANDLED:
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, lambda number, frame: self.send(number, Source.PARENT))
        signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def send(self, number: int, source: Source) -> None:
        """Forward a signal that ``source`` has received."""
        # If the guardian is gone, waitpid reports it.
        with contextlib.suppress(OSError):
            os.write(self._writer, bytes([source, number]))

    def wait(self) -> int:
        """Wait until the job ends, and return its exit code."""
        _, status = os.waitpid(self._pid, 0)
        code = processes.exit_code(status)
        if os.WIFSIGNALED(status):
            say(f"the guardian was killed, {processes.code_name(code)}")
            termination.end_descendants()
        return code


def run(assignment: Assignment) -> int:
    """Run a job on this machine until it ends, and return its exit code."""
    return GuardedRun(assignment).wait()


def _guard(guard: Guardian, mask: set[int]) -> None:
    """Run as the guardian; never return to the launcher's code."""
    code = 1
    try:
        os.setsid()  # The launcher forwards Ctrl-C.
        guard.listen()
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        code = guard.run()
    except AdaptError as error:
        say(str(error))
        termination.end_descendants()
    except BaseException:
        traceback.print_exc()
        termination.end_descendants()
    finally:
        os._exit(code)
