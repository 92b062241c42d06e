"""Signal handling in each Python process of a job: SIGUSR1 and SIGUSR2 do not end it; a beacon lists received signals.

Standard library only, and only its fast C modules: every Python process of the job runs this.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # signal itself would import enum
import faulthandler
import fcntl
import os

_PASSED = (_signal.SIGUSR1, _signal.SIGUSR2)
_LOWEST_BEACON = 256


def outlive_passed() -> None:
    """Ignore a scheduler's warning signals (SIGUSR1, SIGUSR2) until the script installs its own handlers.

    signal.getsignal still returns SIG_DFL. PyTorch Lightning, for example, installs its handler only in that case.
    """
    for number in _PASSED:
        if _signal.getsignal(number) != _signal.SIG_DFL:
            continue
        # unregister() restores the handler that register() found, without updating what signal.getsignal() returns.
        _signal.signal(number, _signal.SIG_IGN)
        faulthandler.register(number, file=2)
        _signal.signal(number, _signal.SIG_DFL)
        faulthandler.unregister(number)


def keep_received(beacon: int) -> None:
    """Append each signal that a Python handler receives to the beacon, so that the guardian does not send it again.

    Takes over the beacon's descriptor and moves it to a high number: a program that closes low descriptors and opens
    files would otherwise find signal bytes in one of them. Another owner of the wakeup descriptor, such as asyncio,
    replaces it.
    """
    try:
        descriptor = fcntl.fcntl(beacon, fcntl.F_DUPFD_CLOEXEC, _LOWEST_BEACON)
    except OSError:
        descriptor = beacon  # RLIMIT_NOFILE does not allow a descriptor that high.
    else:
        os.close(beacon)
    os.set_blocking(descriptor, False)
    _signal.set_wakeup_fd(descriptor, warn_on_full_buffer=False)
