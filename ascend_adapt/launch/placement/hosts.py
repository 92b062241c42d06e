"""The hosts on which a job runs: the hosts of a hostfile, or this host."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from ascend_adapt.errors import LaunchError
from ascend_adapt.launch.placement import hostfile, network
from ascend_adapt.launch.placement.hostfile import Host
from ascend_adapt.launch.placement.plan import LOCALHOST
from ascend_adapt.launch.request import Request


def chosen(request: Request, devices_found: int, warn: Callable[[str], None]) -> tuple[Host, ...] | None:
    """Return the requested hosts and slots, or None for all slots of this host.

    Without a hostfile, the filters select devices of this host, which is named localhost.

    Raises:
        LaunchError: the hostfile or a filter is invalid.
    """
    if request.hostfile is not None:
        if request.node is not None or request.node_ips:
            raise LaunchError(
                "--hostfile with --node-rank or --node-ips: the hostfile determines both — remove these options"
            )
        hosts = hostfile.read(Path(request.hostfile), warn)
    elif request.include or request.exclude:
        hosts = (Host(LOCALHOST, tuple(range(devices_found))),)
    else:
        return None
    hosts = hostfile.select(hosts, request.include, request.exclude)
    if request.nodes is not None:
        if request.nodes > len(hosts):
            raise LaunchError(f"--nnodes {request.nodes}: {len(hosts)} hosts are left — lower it, or filter less")
        hosts = hosts[: request.nodes]
    if request.nproc is not None:
        hosts = tuple(_first_slots(host, request.nproc) for host in hosts)
    return hosts


def _first_slots(host: Host, count: int) -> Host:
    if count > len(host.slots):
        raise LaunchError(
            f"--nproc {count}: {host.name} has {len(host.slots)} slots — lower it, or correct the hostfile"
        )
    return replace(host, slots=host.slots[:count])


def as_local(host: Host, device: str, devices_found: int) -> Host:
    """Return this host as the only host of the job.

    Raises:
        LaunchError: this host has fewer devices than its hostfile entry has slots.
    """
    if device != "cpu" and max(host.slots) >= devices_found:
        raise LaunchError(
            f"slot {max(host.slots)} of {host.name}: found {devices_found} {device} devices, counted from 0 — "
            "correct the hostfile, or widen the visible devices"
        )
    return replace(host, address=LOCALHOST)


def are_several(hosts: Sequence[Host]) -> bool:
    """Return whether a job on these hosts needs agents: there are several hosts, or the only host is not this host."""
    return len(hosts) > 1 or any(not network.is_here(host.address) for host in hosts)
