"""Ends a job at full size after a few optimizer steps, when memory use repeats; only ranks import this module.

A configuration may request 150000 steps. All ranks end together, after each rank has taken its steps, so that no
rank waits for another rank that has exited.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch

from ascend_adapt.emulation import library

_POLL_S = 0.2
_PREFIX = "ascend_adapt_full_size"


def end(steps: int, write: Callable[[], None]) -> None:
    """Start to end this process, whose report ``write`` writes; return unless this is the only rank."""
    distributed = torch.distributed.is_available() and torch.distributed.is_initialized()
    if not distributed or torch.distributed.get_world_size() == 1:
        _leave(steps, write, lambda: None)
    store = torch.distributed.distributed_c10d._get_default_store()
    ranks = range(torch.distributed.get_world_size())
    own = torch.distributed.get_rank()

    def together(what: str) -> None:
        store.set(f"{_PREFIX}/{what}/{own}", "1")
        keys = [f"{_PREFIX}/{what}/{rank}" for rank in ranks]
        while not store.check(keys):
            time.sleep(_POLL_S)

    def wait() -> None:
        with suppress(RuntimeError):  # The rank that serves the store may end first.
            together("written")

    def leave() -> None:
        together("done")
        library.ignore_lost_ranks()
        _leave(steps, write, wait)

    threading.Thread(target=leave, daemon=True).start()


def _leave(steps: int, write: Callable[[], Any], wait: Callable[[], None]) -> None:
    # To the other stream than the script's prints, in one write: an unbuffered print of the main thread writes its line
    # end separately.
    sys.stderr.write(f"full size: ended after {steps} optimizer steps (--full-size-steps)\n")
    write()
    wait()
    # For a killed worker of a DataLoader, torch's handler raises an error in the main thread. Only that thread may call
    # signal.signal; this may be another.
    ctypes.CDLL(None).signal(int(signal.SIGCHLD), ctypes.c_void_p(int(signal.SIG_IGN)))
    for child in multiprocessing.active_children():
        child.kill()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # Exit handlers of other packages would wait for steps that never end.
