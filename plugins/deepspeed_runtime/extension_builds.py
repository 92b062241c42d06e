"""Makes torch's JIT builds of C++ extensions log, and never wait for the lock of a killed build."""

from __future__ import annotations

import logging
import time
from pathlib import Path
from typing import Any

from ascend_adapt import Call, Symptom, build_locks, wrap

logger = logging.getLogger("ascend_adapt")
_UNTIL = "torch logs its builds, and releases the lock of a process that has ended"
_NOT_JUDGED = Symptom(reason="the fault is in torch")
_REPORT_EVERY_S = 60.0


@wrap(
    "torch.utils.cpp_extension:_jit_compile",
    requires="torch>=2",
    why="an extension such as cpu_adam of ZeRO-Offload compiles silently for minutes",
    until=_UNTIL,
    without="slower",
    symptom=_NOT_JUDGED,
)
def log_extension_builds(call: Call) -> Any:
    """Log which extension is compiled, where and for how long; load a cached extension silently."""
    folder = Path(call["build_directory"])
    if any(folder.glob(f"{call['name']}*.so")):
        return call.proceed()
    logger.warning(
        "ascend_adapt: compiling the extension %s (%d source files) in %s, once: often 1 to 5 minutes, longer for CUDA",
        call["name"],
        len(call["sources"]),
        folder,
    )
    began_s = time.monotonic()
    built = call.proceed()
    logger.warning("ascend_adapt: extension %s is ready after %.0f s", call["name"], time.monotonic() - began_s)
    return built


@wrap(
    "torch.utils.file_baton:FileBaton.try_acquire",
    requires="torch>=2",
    why="a killed build leaves its lock file, and every later job waits for it forever",
    until=_UNTIL,
    without="crash",
    symptom=_NOT_JUDGED,
)
def remove_stale_build_locks(call: Call) -> Any:
    """Remove the lock of a process that has ended, and write the owner into a new lock."""
    lock = Path(call.instance.lock_file_path)
    if not call.proceed():
        if not build_locks.is_left_behind(lock):
            return False
        logger.warning("ascend_adapt: %s: the build that created this lock has ended, removing the lock", lock)
        build_locks.remove(lock)
        if not call.proceed():
            return False
    build_locks.sign(lock)
    return True


@wrap(
    "torch.utils.file_baton:FileBaton.wait",
    requires="torch>=2",
    why="it waits silently for the build of another process, and forever if that process is killed",
    until=_UNTIL,
    without="crash",
    symptom=_NOT_JUDGED,
)
def wait_for_running_build(call: Call) -> Any:
    """Wait while the building process is alive; log it every minute.

    Raises:
        RuntimeError: the building process has ended without the extension.
    """
    lock = Path(call.instance.lock_file_path)
    began_s = logged_s = time.monotonic()
    while lock.exists():
        if build_locks.is_left_behind(lock):
            raise RuntimeError(
                f"{lock}: the compiling process has ended and left its lock, expected the extension — start the job "
                f"again, which removes the lock"
            )
        if time.monotonic() - logged_s > _REPORT_EVERY_S:
            logged_s = time.monotonic()
            logger.warning("ascend_adapt: waited %.0f s so far for the build that holds %s", logged_s - began_s, lock)
        time.sleep(max(call.instance.wait_seconds, 0.1))
