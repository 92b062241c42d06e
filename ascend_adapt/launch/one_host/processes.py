"""Linux processes: their identity (pid and start time), their descendants, and signals that cannot hit a reused pid."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from ascend_adapt.errors import LaunchError
from ascend_adapt.whole_numbers import whole_number

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_PF_FORKNOEXEC = 0x40


@dataclass(frozen=True)
class Identity:
    """A process, identified by pid and start time because the kernel reuses pids."""

    pid: int
    start: int

    @classmethod
    def own(cls) -> Identity:
        """Return the identity of this process.

        Raises:
            LaunchError: /proc is not mounted.
        """
        own = cls.of(os.getpid())
        if own is None:
            raise LaunchError("/proc: does not show this process, expected Linux with /proc mounted — mount it")
        return own

    @classmethod
    def of(cls, pid: int) -> Identity | None:
        """Return the identity of a running process, or None."""
        stat = _Stat.read(pid)
        return cls(pid, stat.start) if stat is not None else None

    def since(self) -> float:
        """Return the process's start time, in seconds since the epoch."""
        # The kernel rounds down to ticks since boot; one tick later is never before the real start.
        after_s = (self.start + 1) / os.sysconf("SC_CLK_TCK") - time.clock_gettime(time.CLOCK_BOOTTIME)
        return time.time() + after_s

    def is_alive(self) -> bool:
        """Return whether the process is still running; a zombie is not."""
        stat = _Stat.read(self.pid)
        return stat is not None and stat.start == self.start and stat.state not in "ZX"

    def is_forked_copy(self) -> bool:
        """Return whether the process has not called exec since it was forked."""
        stat = _Stat.read(self.pid)
        return stat is not None and stat.start == self.start and bool(stat.flags & _PF_FORKNOEXEC)

    def handles(self, number: int) -> bool:
        """Return whether the process has a handler for a signal."""
        return self._is_in("SigCgt", number)

    def ignores(self, number: int) -> bool:
        """Return whether the process ignores a signal."""
        return self._is_in("SigIgn", number)

    def _is_in(self, which: str, number: int) -> bool:
        try:
            lines = Path(f"/proc/{self.pid}/status").read_text(errors="replace").splitlines()
        except OSError:
            return False
        (mask,) = (line.split()[1] for line in lines if line.startswith(f"{which}:"))
        return bool(int(mask, 16) >> (number - 1) & 1)

    def send(self, number: int) -> None:
        """Send the process a signal; do nothing if the process is gone, even if its pid has been reused."""
        try:
            handle = os.pidfd_open(self.pid)
        except ProcessLookupError:
            return
        except OSError:
            # Before kernel 5.3: the pid could, in theory, be reused between the check and the signal.
            if self.is_alive():
                os.kill(self.pid, number)
            return
        try:
            if self.is_alive():
                signal.pidfd_send_signal(handle, number)
        except ProcessLookupError:
            pass
        finally:
            os.close(handle)


def environment(pid: int) -> dict[str, str]:
    """Return a process's initial environment; it is empty if the process is gone or belongs to another user."""
    try:
        words = os.fsdecode(Path(f"/proc/{pid}/environ").read_bytes()).split("\0")
    except OSError:
        return {}
    return dict(word.partition("=")[::2] for word in words if word)


def descendants(of: int) -> list[Identity]:
    """Return the running descendants of a process in every session and process group, without zombies."""
    children: dict[int, list[tuple[int, _Stat]]] = {}
    for entry in os.listdir("/proc"):
        if (pid := whole_number(entry)) is not None and (stat := _Stat.read(pid)) is not None:
            children.setdefault(stat.parent, []).append((int(entry), stat))
    found: list[Identity] = []
    parents = [of]
    while parents:
        for pid, stat in children.get(parents.pop(), ()):
            parents.append(pid)
            if stat.state not in "ZX":
                found.append(Identity(pid, stat.start))
    return found


def adopt_orphans() -> None:
    """Make this process the subreaper, which becomes the parent of every orphaned descendant."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def dies_with_parent() -> Callable[[], None]:
    """Return a function to call between fork and exec: the kernel then kills the child when this process ends."""
    parent = os.getpid()
    _libc()  # Load the library here, because a child should not load anything between fork and exec.

    def in_child() -> None:
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(128 + signal.SIGKILL)

    return in_child


def reap() -> Iterable[tuple[int, int]]:
    """Reap every child that has ended, including adopted ones; yield its pid and exit code (128 + n for signal n)."""
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        yield pid, exit_code(status)


def exit_code(status: int) -> int:
    """Convert a wait status to a shell's exit code, which is 128 + n for signal n."""
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


def code_name(code: int) -> str:
    """Return an exit code as text, with the name of its signal, if any."""
    try:
        return f"exit code {code} ({signal.Signals(code - 128).name})"
    except ValueError:
        return f"exit code {code}"


@dataclass(frozen=True)
class _Stat:
    state: str
    parent: int
    flags: int
    start: int

    @classmethod
    def read(cls, pid: int) -> _Stat | None:
        try:
            text = Path(f"/proc/{pid}/stat").read_bytes()
        except OSError:
            return None
        # The process name, which ends at the last parenthesis, may contain spaces and parentheses.
        fields = text[text.rindex(b")") + 2 :].split()
        return cls(fields[0].decode(), int(fields[1]), int(fields[6]), int(fields[19]))


def _libc() -> ctypes.CDLL:
    global _loaded
    if _loaded is None:
        _loaded = ctypes.CDLL(None, use_errno=True)
    return _loaded


_loaded: ctypes.CDLL | None = None


def _prctl(option: int, value: int) -> None:
    if not sys.platform.startswith("linux"):
        return
    if _libc().prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl")
