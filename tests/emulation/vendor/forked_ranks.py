"""Processes of the start method "spawn", forked from one that has imported torch_npu and used no device.

The distributed tests start two or four ranks for each test, and each would import torch and torch_npu for seven
seconds. This is the fork server of multiprocessing, but forked from this process, and its children get the
environment variables of the process that starts them, as spawned ones do.
"""

from __future__ import annotations

import os
from multiprocessing import context, forkserver, popen_forkserver, process, resource_tracker, util
from typing import Any


class _Popen(popen_forkserver.Popen):
    def _launch(self, process_obj: Any) -> None:
        process_obj.environ = dict(os.environ)
        super()._launch(process_obj)  # type: ignore[misc]


def _bootstrap(self: Any, parent_sentinel: int | None = None) -> int:
    os.environ.clear()
    os.environ.update(self.environ)
    return process.BaseProcess._bootstrap(self, parent_sentinel)  # type: ignore[attr-defined, no-any-return]


def _fork(path: object, args: list[str], passfds: object) -> int:
    """Run the code of ``python -c`` in a fork of this process instead of in a new interpreter."""
    child = os.fork()
    if child == 0:
        exec(args[-1])  # noqa: S102 - main() of the fork server, which ends with SystemExit
        os._exit(0)
    return child


def begin() -> None:
    """Start the server. It ends with its session, or when no process uses it."""
    resource_tracker.ensure_running()
    context.SpawnProcess._bootstrap = _bootstrap  # type: ignore[attr-defined]
    context.SpawnProcess._Popen = staticmethod(_Popen)  # type: ignore[assignment]
    forkserver.set_forkserver_preload([])
    new_interpreter = util.spawnv_passfds
    util.spawnv_passfds = _fork
    try:
        forkserver.ensure_running()
    finally:
        util.spawnv_passfds = new_interpreter
