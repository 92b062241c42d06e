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
    """One process: where it runs, and what is set for it."""

    host: str
    rank: int
    local_rank: int
    device: str
    env: Mapping[str, str]
    argv: tuple[str, ...]


@dataclass(frozen=True)
class Plan:
    """All processes of a job."""

    world_size: int
    master_addr: str
    master_port: int
    ranks: tuple[RankCommand, ...]

    def to_json(self) -> dict[str, Any]:
        """Return the plan as plain data, with values that look secret hidden."""
        data = asdict(self)
        for rank in data["ranks"]:
            rank["env"] = {name: "***" if _SECRET.search(name) else value for name, value in rank["env"].items()}
        return data


def build(
    request: Request,
    *,
    device: str,
    devices_found: int,
    environ: Mapping[str, str],
    plugin_env: Mapping[str, str],
    free_port: int,
    run_dir: str,
) -> Plan:
    """Return the plan for this machine.

    Args:
        request: what the command line asks for.
        device: the kind of device the ranks run on.
        devices_found: how many of them this machine lets the job see.
        environ: the launcher's environment; what it has set is never overridden.
        plugin_env: variables that plugins want.
        free_port: the port to use if none is asked for.
        run_dir: the run directory.

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
    common = {
        **plugin_env,
        **({} if "OMP_NUM_THREADS" in environ else {"OMP_NUM_THREADS": str(_threads_per_rank(nproc))}),
        **_adapt_env(request, device, environ),
        "ASCEND_ADAPT_RUN_DIR": run_dir,
    }
    flag = ("-m",) if request.is_module else ()
    entry = (sys.executable, "-m", "ascend_adapt.launch.rank_entry", *flag, request.target)
    ranks = tuple(
        RankCommand(
            host="localhost",
            rank=rank,
            local_rank=rank,
            device=device if device == "cpu" else f"{device}:{rank}",
            env={
                **common,
                "RANK": str(rank),
                "LOCAL_RANK": str(rank),
                "WORLD_SIZE": str(nproc),
                "LOCAL_WORLD_SIZE": str(nproc),
                "MASTER_ADDR": master_addr,
                "MASTER_PORT": str(master_port),
            },
            argv=(*entry, *((f"--local_rank={rank}",) if request.pass_local_rank else ()), *request.arguments),
        )
        for rank in range(nproc)
    )
    return Plan(nproc, master_addr, master_port, ranks)


def _threads_per_rank(nproc: int) -> int:
    return max((os.cpu_count() or 1) // nproc, 1)


def _adapt_env(request: Request, device: str, environ: Mapping[str, str]) -> dict[str, str]:
    def joined(name: str, words: tuple[str, ...]) -> dict[str, str]:
        everything = [word for word in (environ.get(name, ""), *words) if word]
        return {name: ",".join(everything)} if words else {}

    if not request.adapt:
        return {"ASCEND_ADAPT": "0"}
    return {
        "ASCEND_ADAPT_DEVICE": device,
        **joined("ASCEND_ADAPT_DISABLE", request.disable),
        **joined("ASCEND_ADAPT_ALLOW_DRIFT", request.allow_drift),
        **({"ASCEND_ADAPT_STRICT": "1"} if request.strict else {}),
    }
