"""Registers what a process does at its normal exit, also in a process of multiprocessing."""

from __future__ import annotations

import atexit
import sys
from collections.abc import Callable
from typing import Any


def call(function: Callable[[], Any]) -> None:
    """Call ``function`` when this process exits; forked processes of multiprocessing run no handlers of atexit."""
    process = sys.modules.get("multiprocessing.process")
    if process is None or process.parent_process() is None:
        atexit.register(function)
    else:
        from multiprocessing import util

        util.Finalize(None, function, exitpriority=0)
