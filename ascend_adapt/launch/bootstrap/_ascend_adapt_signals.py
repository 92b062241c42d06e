"""Signals in a Python process of a job: SIGUSR1 and SIGUSR2 do not end it, and its beacon shows which it received.

Standard library only, and only what is built into the interpreter: every Python process of the job runs this.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # signal itself would import enum
import faulthandler
import os

_PASSED = (_signal.SIGUSR1, _signal.SIGUSR2)


def outlive_passed() -> None:
    """Ignore the signals that a scheduler sends to every process of a job as a warning, until the script handles them.

    signal.getsignal still returns SIG_DFL: PyTorch Lightning, for one, installs its own handler only there.
    """
    for number in _PASSED:
        if _signal.getsignal(number) != _signal.SIG_DFL:
            continue
        # unregister() restores what register() has found, which Python's own record does not learn of.
        _signal.signal(number, _signal.SIG_IGN)
        faulthandler.register(number, file=2)
        _signal.signal(number, _signal.SIG_DFL)
        faulthandler.unregister(number)


def keep_received(beacon: int) -> None:
    """Append the number of each signal that a Python handler receives to the beacon: the guardian does not repeat it.

    Something else that sets a wakeup descriptor, such as asyncio, takes its place.
    """
    os.set_blocking(beacon, False)
    _signal.set_wakeup_fd(beacon, warn_on_full_buffer=False)
