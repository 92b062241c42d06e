"""The launcher's part of a running job: it puts a guardian between itself and the ranks, and hands signals down."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import traceback
from types import FrameType

from ascend_adapt.errors import AdaptError
from ascend_adapt.launch import ending, guardian, processes
from ascend_adapt.launch.guardian import Assignment, Guardian
from ascend_adapt.launch.processes import Identity


def run(assignment: Assignment) -> int:
    """Run a job to its end and return its exit code.

    If the guardian is killed, its ranks die with it and what they left becomes a child of this process, which ends it.
    """
    processes.adopt_orphans()
    launcher = Identity.own()
    reader, writer = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    # A signal that comes between fork and the handlers waits, and is handled by the one it was sent to.
    before: set[int] = set(signal.pthread_sigmask(signal.SIG_BLOCK, guardian.HEEDED))
    pid = os.fork()
    if pid == 0:
        os.close(writer)
        _guard(Guardian(assignment, reader, launcher), before)
    os.close(reader)

    def hand_down(number: int, frame: FrameType | None) -> None:
        # Where the guardian is gone, waitpid below says so.
        with contextlib.suppress(OSError):
            os.write(writer, bytes([number]))

    for number in guardian.HEEDED:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, hand_down)
    signal.pthread_sigmask(signal.SIG_SETMASK, before)
    _, status = os.waitpid(pid, 0)
    code = processes.exit_code(status)
    if os.WIFSIGNALED(status):
        guardian.say(f"the guardian was killed, {processes.code_name(code)}")
        ending.end_descendants()
    return code


def _guard(guard: Guardian, mask: set[int]) -> None:
    """Be the guardian; never returns into the launcher's code."""
    code = 1
    try:
        os.setsid()  # a Ctrl-C is the launcher's to hand down
        guard.listen()
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        code = guard.run()
    except AdaptError as error:
        guardian.say(str(error))
        ending.end_descendants()
    except BaseException:
        traceback.print_exc()
        ending.end_descendants()
    finally:
        os._exit(code)
