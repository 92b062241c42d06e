"""The plan of a job: its processes as plain data, printed by --dry-run and started by the runner."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from ascend_adapt.errors import LaunchError
from ascend_adapt.launch.cores import threads_per_rank
from ascend_adapt.launch.placement.cluster_environment import ClusterNode
from ascend_adapt.launch.placement.hostfile import Host
from ascend_adapt.launch.request import Request
from ascend_adapt.probe import VISIBLE_DEVICES

LOCALHOST = "localhost"

_RANK_ENTRY = Path(__file__).parents[1] / "program" / "rank_entry.py"
_SECRET = re.compile(
    r"(?i)token|secret|passw|passphrase|credential|api_?key|private_?key|(?:^|_)(?:pass|auth)(?:_|$)|_(?:key|pwd)$"
)


class RankCommand(NamedTuple):
    # Not frozen: creating frozen instances takes four times as long, and a plan may have 80,000.
    """One process of a plan: host, environment and arguments; ``rank`` is None for a command that is started once."""

    host: str
    rank: int | None
    local_rank: int | None
    device: str
    env: Mapping[str, str]
    argv: tuple[str, ...]

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> RankCommand:
        """Return a command that another host has planned; this host may have another folder for this package."""
        program, *words = data["argv"]
        if words and Path(words[0]).parts[-3:] == _RANK_ENTRY.parts[-3:]:
            words[0] = str(_RANK_ENTRY)
        return cls(**{**data, "argv": (program, *words)})


@dataclass(frozen=True)
class Plan:
    """All processes of a job; a command's plan has no world size and no address, because its ranks are unknown."""

    world_size: int | None
    master_addr: str | None
    master_port: int | None
    ranks: tuple[RankCommand, ...]

    def to_json(self) -> dict[str, Any]:
        """Return the plan as plain data, with secret-looking values hidden."""
        ranks = [{**rank._asdict(), "env": without_secrets(rank.env)} for rank in self.ranks]
        return {**vars(self), "ranks": ranks}

    def by_host(self) -> dict[str, Plan]:
        """Return the part of the plan that each host runs."""
        parts: dict[str, list[RankCommand]] = {}
        for rank in self.ranks:
            parts.setdefault(rank.host, []).append(rank)
        return {host: replace(self, ranks=tuple(ranks)) for host, ranks in parts.items()}

    def on_top_of(self, forwarded: Mapping[str, str]) -> Plan:
        """Return the plan combined with the variables that the launcher forwards, as each host combines them."""
        ranks = (rank._replace(env={**forwarded, **rank.env}) for rank in self.ranks)
        return replace(self, ranks=tuple(ranks))

    def at_port(self, port: int) -> Plan:
        """Return the plan with another rendezvous port."""
        ranks = (rank._replace(env={**rank.env, "MASTER_PORT": str(port)}) for rank in self.ranks)
        return replace(self, master_port=port, ranks=tuple(ranks))

    def also_set(self, env: Mapping[str, str]) -> Plan:
        """Return the plan with additional variables for every process."""
        return replace(self, ranks=tuple(rank._replace(env={**rank.env, **env}) for rank in self.ranks))


def without_secrets(env: Mapping[str, str]) -> dict[str, str]:
    """Return the variables, with the value hidden if the name looks secret."""
    return {name: "***" if _SECRET.search(name) else value for name, value in env.items()}


def of_command(request: Request, *, device: str, env: Mapping[str, str]) -> Plan:
    """Return the plan of a command, or of a script that is a launcher: one process that is not a rank.

    RANK and similar variables keep the values that the user has set.
    """
    argv = (request.target, *request.arguments)
    if request.form == "script":
        argv = (sys.executable, *argv)
    return Plan(None, None, None, (RankCommand("localhost", None, None, device, env, argv),))


def local_host(request: Request, device: str, devices_found: int, share: ClusterNode | None = None) -> Host:
    """Return this host with one slot per rank.

    Raises:
        LaunchError: this host has no such device, or fewer devices than ranks.
    """
    if device != "cpu" and not devices_found and request.nproc is None:
        raise LaunchError(
            f"--device {device}: no device found on this host — see `ascend-adapt doctor --device {device}`, or choose "
            "--device npu-emulated or cpu"
        )
    nproc = request.nproc or (share.nproc if share is not None else None) or max(devices_found, 1)
    if device != "cpu" and nproc > devices_found:
        raise LaunchError(
            f"--nproc {nproc}: found {devices_found} {device} devices — lower it, widen the visible devices, "
            f"see `ascend-adapt doctor --device {device}`, or choose --device cpu"
        )
    return Host(LOCALHOST, tuple(range(nproc)))


def _rendezvous(request: Request, first: Host, free_port: int) -> tuple[str, int]:
    """Return the address and port of rank 0."""
    own = "127.0.0.1" if first.address == LOCALHOST else first.name
    return request.master_addr or own, request.master_port or free_port


def of_ranks(
    request: Request,
    *,
    device: str,
    hosts: Sequence[Host],
    env: Mapping[str, str],
    environ: Mapping[str, str],
    free_port: int,
    share: ClusterNode | None = None,
) -> Plan:
    """Return a plan with one rank per slot, numbered in the order of hosts and slots.

    Args:
        request: the parsed command line.
        device: the kind of device on which the ranks run.
        hosts: the hosts and their slots; with ``share``, only this host.
        env: variables to set for every rank.
        environ: the launcher's environment; variables that it sets are never overridden.
        free_port: the rendezvous port if the request names none.
        share: this host's place among several hosts, if each host has its own launcher.

    Raises:
        LaunchError: other hosts cannot reach a host by its name, or a slot has no visible device.
    """
    several = len(hosts) > 1
    if several and any(host.name in (LOCALHOST, "127.0.0.1", "::1") for host in hosts):
        raise LaunchError(
            f"{LOCALHOST} together with {len(hosts) - 1} other hosts: they cannot reach this host by that name "
            "— use its host name"
        )
    nproc = len(hosts[0].slots)
    if share is not None:
        world_size, first_rank, first_node = share.nodes * nproc, share.node * nproc, share.node
        master_addr, master_port = share.master_addr, share.master_port
    else:
        world_size, first_rank, first_node = sum(len(host.slots) for host in hosts), 0, 0
        master_addr, master_port = _rendezvous(request, hosts[0], free_port)
    common = {
        **env,
        "WORLD_SIZE": str(world_size),
        "MASTER_ADDR": master_addr,
        "MASTER_PORT": str(master_port),
        # Rank 0 serves the rendezvous store itself, so a setting of an outer torchrun must not reach it.
        "TORCHELASTIC_USE_AGENT_STORE": "False",
        "TORCHELASTIC_MAX_RESTARTS": str(request.max_restarts),
    }
    flag = ("-m",) if request.form == "module" else ()
    entry = (sys.executable, str(_RANK_ENTRY), *flag, request.target)
    argv = (*entry, *request.arguments)
    ranks: list[RankCommand] = []
    for node, host in enumerate(hosts, first_node):
        size = len(host.slots)
        of_host = {
            **_threads(size, several, environ),
            **common,
            **_narrowed(host, device, environ),
            "GROUP_RANK": str(node),
            "LOCAL_WORLD_SIZE": str(size),
        }
        for local_rank in range(size):
            rank = first_rank + len(ranks)
            ranks.append(
                RankCommand(
                    host.address,
                    rank,
                    local_rank,
                    device if device == "cpu" else f"{device}:{local_rank}",
                    {**of_host, "RANK": str(rank), "LOCAL_RANK": str(local_rank)},
                    (*entry, f"--local_rank={local_rank}", *request.arguments) if request.pass_local_rank else argv,
                )
            )
    return Plan(world_size, master_addr, master_port, tuple(ranks))


def _narrowed(host: Host, device: str, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the visible devices of a host that its slots select; slot numbers index the launcher's visible devices."""
    if not host.narrowed or device not in VISIBLE_DEVICES:
        return {}
    name = VISIBLE_DEVICES[device]
    numbers = [str(slot) for slot in host.slots]
    if name in environ:
        listed = [word.strip() for word in environ[name].split(",") if word.strip()]
        beyond = [slot for slot in host.slots if slot >= len(listed)]
        if beyond:
            raise LaunchError(
                f"slot {beyond[0]} of {host.address}: {name}={environ[name]} lists {len(listed)} devices — list more"
            )
        numbers = [listed[slot] for slot in host.slots]
    return {name: ",".join(numbers)}


def _threads(nproc: int, several: bool, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the number of threads per rank on this host; other hosts count their cores themselves."""
    if several or "OMP_NUM_THREADS" in environ:
        return {}
    return {"OMP_NUM_THREADS": str(threads_per_rank(nproc))}
