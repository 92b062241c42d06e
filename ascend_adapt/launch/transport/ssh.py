"""How the agents of all hosts are started and reached: here as a child, elsewhere over ssh, or by one pdsh."""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import subprocess
import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Sequence

from ascend_adapt.errors import LaunchError
from ascend_adapt.launch.placement import network
from ascend_adapt.launch.request import Request
from ascend_adapt.launch.transport import ssh_command
from ascend_adapt.launch.transport.connection import Link

_LAST_WORDS_S = 5.0


class Way(ABC):
    """One way to reach hosts; ``port`` is that of their sshd, None for what ssh's configuration says."""

    def __init__(self, port: int | None) -> None:
        self._port = port

    @abstractmethod
    def links(self, addresses: Sequence[str]) -> list[Link]:
        """Return a connection to an agent on each host, in their order; the agents may not be there yet."""

    @abstractmethod
    def why_not(self, link: Link, waited_s: float) -> str:
        """Return why a host is not there, in one paragraph."""

    @abstractmethod
    def close(self) -> None:
        """End what is not ended by the connections themselves."""

    def described(self, link: Link, said: Sequence[str], waited_s: float) -> str:
        """Return why a host is not there, given what was said of it."""
        why = " ".join(said[-3:]) or link.noise or link.lost or f"no word from it for {waited_s:.0f} s"
        hint = shlex.join(["ssh", *(["-p", str(self._port)] if self._port else []), link.address, "true"])
        return f"host {link.name}: cannot be reached or has no agent ({why}) — try `{hint}`"


def choose(request: Request, addresses: Sequence[str]) -> Way:
    """Return how the hosts of a job are reached.

    Raises:
        LaunchError: the program is not there, or there are others and they may not be reached.
    """
    others = sum(not network.is_here(address) for address in addresses)
    if others and request.launcher == "local":
        raise LaunchError(f"--launcher local: {others} hosts of the hostfile are other machines — use ssh or pdsh")
    needed = {"ssh": ("ssh",), "pdsh": ("pdsh", "openssl")}
    wanted = request.launcher
    if wanted == "auto":
        can = all(shutil.which(name) for name in needed["pdsh"]) and not any(":" in address for address in addresses)
        wanted = "pdsh" if can else "ssh"
    for name in needed[wanted] if others else ():
        if shutil.which(name) is None:
            raise LaunchError(f"--launcher {wanted}: {name} is not on PATH — install it, or choose another launcher")
    if wanted == "pdsh" and others:
        # It would read what stands before the colon as the name of a module.
        if colon := [address for address in addresses if ":" in address]:
            raise LaunchError(
                f"--launcher pdsh: {colon[0]} has a colon, pdsh takes names and IPv4 — use --launcher ssh"
            )
        from ascend_adapt.launch.transport.pdsh import OverPdsh

        return OverPdsh(request.ssh_port)
    return OverSsh(request.ssh_port)


class OverSsh(Way):
    """One ssh a host; the agent on this machine is a child."""

    def __init__(self, port: int | None) -> None:
        super().__init__(port)
        self._said: dict[str, list[str]] = {}

    def links(self, addresses: Sequence[str]) -> list[Link]:
        """Start all of them; they connect at the same time."""
        return [self._start(address) for address in addresses]

    def why_not(self, link: Link, waited_s: float) -> str:
        """Return what ssh said of a host."""
        if link.process is not None and link.lost:
            # It has closed its output; what it says on the other one may come a little later.
            with contextlib.suppress(subprocess.TimeoutExpired):
                link.process.wait(_LAST_WORDS_S)
        return self.described(link, self._said.get(link.address, ()), waited_s)

    def close(self) -> None:
        """Do nothing: each ssh ends with its connection."""

    def _start(self, address: str) -> Link:
        command = ssh_command.program()
        if not network.is_here(address):
            command = [*ssh_command.OUTLIVES_SIGNALS, *ssh_command.command(address, self._port)]
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,  # a Ctrl-C is the launcher's to hand down
        )
        assert process.stdin is not None
        assert process.stdout is not None
        link = Link(address, os.dup(process.stdout.fileno()), os.dup(process.stdin.fileno()), process)
        process.stdin.close()
        process.stdout.close()
        said = self._said[address] = []
        threading.Thread(target=pass_on, args=(process.stderr, link.name, said), daemon=True).start()
        return link


def pass_on(stream: object, name: str, said: list[str]) -> None:
    """Show what ssh, or an agent itself, says on standard error, with the host's name."""
    for line in stream:  # type: ignore[attr-defined]
        text = line.decode(errors="replace").rstrip()
        if text:
            said.append(text)
            print(f"{name}: {text}", file=sys.stderr, flush=True)
