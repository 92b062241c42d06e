"""Fixes for DeepSpeed's launcher: variables forwarded to other hosts, their quoting, and hostfiles."""

from __future__ import annotations

import collections
import os
import shlex
from pathlib import Path
from typing import Any

from ascend_adapt import Call, Symptom, replace, wrap
from ascend_adapt.launch.placement import hostfile

# Name prefixes. ASCEND includes ASCEND_ADAPT_*, without which other hosts would apply different patches.
FORWARDED = ("ASCEND", "HCCL", "LD_LIBRARY_PATH", "OMP_", "PATH")


@wrap(
    "deepspeed.launcher.runner:main",
    requires="deepspeed>=0.6",
    why="variables of CANN, HCCL and this package are not forwarded, so other hosts run with different settings",
    until="DeepSpeed forwards them",
    without="wrong numbers",
    symptom=Symptom(reason="the fault is that a list lacks entries"),
)
def forward_ascend_variables(call: Call) -> Any:
    """Add the prefixes to EXPORT_ENVS while the launcher runs."""
    from deepspeed.launcher import runner

    added = [prefix for prefix in FORWARDED if prefix not in runner.EXPORT_ENVS]
    runner.EXPORT_ENVS.extend(added)
    try:
        return call.proceed()
    finally:
        for prefix in added:
            runner.EXPORT_ENVS.remove(prefix)


@replace(
    "deepspeed.launcher.multinode_runner:MultiNodeRunner.add_export",
    requires="deepspeed>=0.6.3",
    why="values reach the remote shell unquoted or in double quotes, so that spaces, $ and quotes are changed",
    until="DeepSpeed quotes them for the remote shell",
    without="wrong numbers",
    symptom=Symptom("'export {}={}; '.format(key, val)", at="deepspeed.launcher.multinode_runner:PDSHRunner"),
)
def quote_exports(self: Any, key: str, var: str) -> None:
    """Quote a value once, for pdsh, the only runner whose exports pass through a shell."""
    value = var.strip()
    self.exports[key.strip()] = shlex.quote(value) if self.name == "pdsh" else value


@wrap(
    "deepspeed.launcher.runner:fetch_hostfile",
    requires="deepspeed>=0.6",
    why="comments and blank lines are rejected before 0.8, and `slot=`, as in the guides, since 0.8",
    until="DeepSpeed reads both",
    without="crash",
    symptom=Symptom(reason="the fault is in a parser, not in one expression"),
)
def read_hostfile(call: Call) -> Any:
    """Read an existing hostfile as ascend-run does; if none exists, run DeepSpeed's code."""
    path = call["hostfile_path"]
    if not os.path.isfile(path):
        return call.proceed()
    from deepspeed.launcher import runner

    hosts = hostfile.read(Path(path), runner.logger.warning)
    return collections.OrderedDict((host.address, len(host.slots)) for host in hosts)
