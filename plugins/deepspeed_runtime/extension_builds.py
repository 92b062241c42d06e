"""torch's builder of C++ extensions: it says what it compiles, and no lock of a killed build is waited for."""

from __future__ import annotations

import inspect
import logging
import time
from pathlib import Path
from typing import Any

from ascend_adapt import Symptom, build_locks, wrap

logger = logging.getLogger("ascend_adapt")
_UNTIL = "torch says what it compiles, and releases locks with the process that holds them"
_NOT_JUDGED = Symptom(reason="the fault is in torch")
_REPORT_EVERY_S = 60.0


@wrap(
    "torch.utils.cpp_extension:_jit_compile",
    requires="torch>=2",
    why="an extension is compiled for minutes without a word, such as cpu_adam of ZeRO-Offload",
    until=_UNTIL,
    without="slower",
    symptom=_NOT_JUDGED,
)
def builds_are_announced(wrapped: Any, instance: None, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Log what is compiled and where, before and after; what was compiled before is loaded in silence."""
    call = inspect.signature(wrapped).bind(*args, **kwargs).arguments
    folder = Path(call["build_directory"])
    if any(folder.glob(f"{call['name']}*.so")):
        return wrapped(*args, **kwargs)
    logger.warning(
        "ascend_adapt: compiles the extension %s (%d source files) in %s, once: often 1 to 5 minutes, longer for CUDA",
        call["name"],
        len(call["sources"]),
        folder,
    )
    began_s = time.monotonic()
    built = wrapped(*args, **kwargs)
    logger.warning("ascend_adapt: extension %s is ready after %.0f s", call["name"], time.monotonic() - began_s)
    return built


@wrap(
    "torch.utils.file_baton:FileBaton.try_acquire",
    requires="torch>=2",
    why="a killed build leaves its lock file, for which every later job waits for ever",
    until=_UNTIL,
    without="crash",
    symptom=_NOT_JUDGED,
)
def left_locks_are_taken(wrapped: Any, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Remove a lock whose process is gone, and write into a new one who holds it."""
    lock = Path(instance.lock_file_path)
    if not wrapped(*args, **kwargs):
        if not build_locks.is_left_behind(lock):
            return False
        logger.warning("ascend_adapt: %s: the build that made this lock is gone, the lock is removed", lock)
        build_locks.remove(lock)
        if not wrapped(*args, **kwargs):
            return False
    build_locks.sign(lock)
    return True


@wrap(
    "torch.utils.file_baton:FileBaton.wait",
    requires="torch>=2",
    why="the wait for another process's build is silent, and has no end if that process is killed",
    until=_UNTIL,
    without="crash",
    symptom=_NOT_JUDGED,
)
def waits_end_with_the_builder(wrapped: Any, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Wait while the builder lives; log it each minute.

    Raises:
        RuntimeError: the builder is gone, and what it was to build is not there.
    """
    lock = Path(instance.lock_file_path)
    began_s = said_s = time.monotonic()
    while lock.exists():
        if build_locks.is_left_behind(lock):
            raise RuntimeError(
                f"{lock}: the process that compiled here is gone and has left its lock, expected the extension — start "
                "the job again, it removes the lock"
            )
        if time.monotonic() - said_s > _REPORT_EVERY_S:
            said_s = time.monotonic()
            logger.warning("ascend_adapt: has waited %.0f s for the build that holds %s", said_s - began_s, lock)
        time.sleep(max(instance.wait_seconds, 0.1))
