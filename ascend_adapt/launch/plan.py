"""From a request to the processes of a job, as pure data: what --dry-run prints, and what the runner starts."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from ascend_adapt.errors import LaunchError
from ascend_adapt.launch.request import Request

_SECRET = re.compile(r"(?i)(token|secret|passw|api_?key|credential)")


@dataclass(frozen=True)
class RankCommand:
    """One process: where it runs, and what is set for it; a command that is started once is no rank."""

    host: str
    rank: int | None
    local_rank: int | None
    device: str
    env: Mapping[str, str]
    argv: tuple[str, ...]


@dataclass(frozen=True)
class Plan:
    """All processes of a job; what a command starts by itself is not known, so it has no size and no address."""

    world_size: int | None
    master_addr: str | None
    master_port: int | None
    ranks: tuple[RankCommand, ...]

    def to_json(self) -> dict[str, Any]:
        """Return the plan as plain data, with values that look secret hidden."""
        data = asdict(self)
        for rank in data["ranks"]:
            rank["env"] = {name: "***" if _SECRET.search(name) else value for name, value in rank["env"].items()}
        return data


def of_command(request: Request, *, device: str, env: Mapping[str, str]) -> Plan:
    """Return the plan of a command, or of a script that is a launcher itself: one process that is no rank.

    RANK and its like are left as the user has them.
    """
    argv = (request.target, *request.arguments)
    if request.form == "script":
        argv = (sys.executable, *argv)
    return Plan(None, None, None, (RankCommand("localhost", None, None, device, env, argv),))


def of_ranks(
    request: Request,
    *,
    device: str,
    devices_found: int,
    env: Mapping[str, str],
    environ: Mapping[str, str],
    free_port: int,
) -> Plan:
    """Return the plan of one rank a device of this machine.

    Args:
        request: what the command line asks for.
        device: the kind of device the ranks run on.
        devices_found: how many of them this machine lets the job see.
        env: what is set for every rank.
        environ: the launcher's environment; what it has set is never overridden.
        free_port: the port to use if none is asked for.

    Raises:
        LaunchError: more ranks than devices.
    """
    nproc = request.nproc or max(devices_found, 1)
    if device != "cpu" and nproc > devices_found:
        raise LaunchError(
            f"--nproc {nproc}: found {devices_found} {device} devices — lower it, widen the visible devices, "
            "or choose --device cpu"
        )
    master_addr = request.master_addr or "127.0.0.1"
    master_port = request.master_port or free_port
    threads = {} if "OMP_NUM_THREADS" in environ else {"OMP_NUM_THREADS": str(_threads_per_rank(nproc))}
    flag = ("-m",) if request.form == "module" else ()
    entry = (sys.executable, "-m", "ascend_adapt.launch.rank_entry", *flag, request.target)
    ranks = tuple(
        RankCommand(
            host="localhost",
            rank=rank,
            local_rank=rank,
            device=device if device == "cpu" else f"{device}:{rank}",
            env={
                **threads,
                **env,
                "RANK": str(rank),
                "LOCAL_RANK": str(rank),
                "GROUP_RANK": "0",
                "WORLD_SIZE": str(nproc),
                "LOCAL_WORLD_SIZE": str(nproc),
                "MASTER_ADDR": master_addr,
                "MASTER_PORT": str(master_port),
                # Rank 0 serves the store itself; an outer torchrun's word must not reach it.
                "TORCHELASTIC_USE_AGENT_STORE": "False",
                "TORCHELASTIC_MAX_RESTARTS": str(request.max_restarts),
            },
            argv=(*entry, *((f"--local_rank={rank}",) if request.pass_local_rank else ()), *request.arguments),
        )
        for rank in range(nproc)
    )
    return Plan(nproc, master_addr, master_port, ranks)


def _threads_per_rank(nproc: int) -> int:
    return max((os.cpu_count() or 1) // nproc, 1)
