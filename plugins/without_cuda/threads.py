"""Threads that CUDA code starts on a CPU; each enters this package's function mode, because modes are thread-local."""

from __future__ import annotations

import contextlib
import functools
import threading
from contextlib import AbstractContextManager
from typing import Any

_THREAD: Any = threading.Thread


class Threads:
    """Makes threads that start from now on enter ``mode``, until ``undo`` is called.

    Subclasses override Thread.run, but every thread calls ``_bootstrap_inner`` (since Python 3.0).
    """

    def __init__(self, mode: AbstractContextManager[Any]) -> None:
        self._is_active = True
        original = self._original = _THREAD._bootstrap_inner

        @functools.wraps(original)
        def in_mode(thread: threading.Thread) -> None:
            with mode if self._is_active else contextlib.nullcontext():
                original(thread)

        self._changed = _THREAD._bootstrap_inner = in_mode

    def undo(self) -> None:
        """Restore the start of new threads."""
        self._is_active = False
        if _THREAD._bootstrap_inner is self._changed:
            _THREAD._bootstrap_inner = self._original
