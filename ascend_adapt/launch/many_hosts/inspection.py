"""`ascend-adapt doctor --hostfile`: inspects the hosts of a hostfile before a job is started."""

from __future__ import annotations

import os
import selectors
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ascend_adapt import terminal
from ascend_adapt.launch.many_hosts.launcher import described
from ascend_adapt.launch.one_host.console import Console
from ascend_adapt.launch.placement import hostfile
from ascend_adapt.launch.placement.hostfile import Host
from ascend_adapt.launch.transport import choice
from ascend_adapt.launch.transport.connection import Connection
from ascend_adapt.launch.transport.transport import Transport

_LOOK_S = 0.2
_PATIENCE_S = 30.0
_CLOCK_S = 1.0


@dataclass(frozen=True)
class HostReport:
    """Report on one host: ``problems`` must be fixed before a job can run there; ``notes`` are informational."""

    host: str
    versions: Mapping[str, str]
    devices: Mapping[str, int]
    free_port: int | None
    clock_ahead_s: float | None
    sees_this_folder: bool | None
    problems: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def examine(path: Path, launcher: str, ssh_port: int | None, device: str) -> tuple[HostReport, ...]:
    """Return a report on each host of a hostfile, made by an agent on that host.

    Raises:
        LaunchError: the hostfile cannot be read, or the transport cannot be used.
    """
    warnings: list[str] = []
    hosts = hostfile.read(path, warnings.append)
    for warning in warnings:
        print(f"ascend-adapt doctor: {warning}", file=sys.stderr)
    transport = choice.choose(launcher, ssh_port, [host.address for host in hosts])
    # Only hosts that share this folder see this file.
    with tempfile.NamedTemporaryFile(prefix=".ascend-adapt-doctor-", dir=os.getcwd()) as mark:
        return look(hosts, transport, mark.name, device)


def look(hosts: Sequence[Host], transport: Transport, mark: str, device: str) -> tuple[HostReport, ...]:
    """Return each host's report, made by an agent there; ``mark`` is a local file that the agent looks for."""
    links = transport.links([host.address for host in hosts])
    selector, console = selectors.DefaultSelector(), Console(whole_lines=True)
    ahead_s: dict[str, float] = {}
    try:
        for link in links:
            selector.register(link.source, selectors.EVENT_READ, link)

        def wait_for(is_there: Callable[[Connection], bool]) -> None:
            deadline = time.monotonic() + _PATIENCE_S
            while time.monotonic() < deadline and not all(is_there(link) or link.lost for link in links):
                for key, _ in selector.select(_LOOK_S):
                    key.data.read(console)
                    if key.data.is_closed:
                        selector.unregister(key.fd)

        wait_for(lambda link: link.hello is not None)
        asked = time.time()
        for link in links:
            if link.hello is not None:
                link.order({"look": mark})
        wait_for(lambda link: link.ended is not None)
        for link in links:
            if link.ended is not None:
                # The host's time lies between the two local times, which bounds the error.
                there, now = float(link.ended["time_s"]), time.time()
                ahead_s[link.address] = there - now if there > now else min(there - asked, 0.0)
        first = next((link for link in links if link.hello is not None), None)
        return tuple(
            _report(host, link, first, ahead_s.get(link.address), transport, device)
            for host, link in zip(hosts, links, strict=True)
        )
    finally:
        for link in links:
            link.close()
        transport.close()


def _report(
    host: Host, link: Connection, first: Connection | None, ahead_s: float | None, transport: Transport, device: str
) -> HostReport:
    if link.hello is None:
        return HostReport(link.name, {}, {}, None, None, None, (transport.why_not(link, _PATIENCE_S),))
    hello, ended = link.hello, link.ended or {}
    problems, notes = [], []
    reference: Mapping[str, Any] = first.hello if first is not None and first.hello is not None else hello
    for what in sorted(hello["versions"].keys() | reference["versions"].keys()):
        ours, theirs = reference["versions"].get(what, "none"), hello["versions"].get(what, "none")
        if first is not None and ours != theirs:
            problems.append(f"{what} {theirs}, {first.name} has {ours} — install the same on all hosts")
    if device in hello["devices"] and hello["devices"][device] < len(host.slots):
        problems.append(f"{hello['devices'][device]} {device} devices, the hostfile has slots={len(host.slots)}")
    if ended.get("has_folder") is False:
        problems.append(f"no folder {os.getcwd()} — create it there, or start jobs in a folder that all hosts have")
    if ahead_s is not None and abs(ahead_s) > _CLOCK_S:
        notes.append(f"its clock differs from this host's by {ahead_s:+.1f} s — synchronize it with NTP")
    notes += [f"a job is running there, {described(job)}" for job in hello["jobs"]]
    return HostReport(
        link.name,
        hello["versions"],
        hello["devices"],
        hello["port"],
        ahead_s,
        ended.get("sees_mark"),
        tuple(problems),
        tuple(notes),
    )


def show(reports: Sequence[HostReport]) -> None:
    """Print the reports of all hosts."""
    for one in reports:
        if not one.versions:
            terminal.line(f"{one.host}: must be fixed: {one.problems[0]}", "red")
            continue
        versions = ", ".join(f"{name} {version}" for name, version in one.versions.items())
        devices = ", ".join(f"{count} {kind}" for kind, count in one.devices.items())
        storage = "shares this folder" if one.sees_this_folder else "has its own storage"
        terminal.line(f"{one.host}: {versions}; devices: {devices}; port {one.free_port} is free; {storage}")
        for problem in one.problems:
            terminal.line(f"{one.host}: must be fixed: {problem}", "red")
        for note in one.notes:
            terminal.line(f"{one.host}: note: {note}", "yellow")
    if not any(one.problems for one in reports):
        terminal.line("nothing must be fixed", "green")
