"""ssh transport: one ssh per host."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
from collections.abc import Sequence

from ascend_adapt.launch.placement import network
from ascend_adapt.launch.transport import ssh_command
from ascend_adapt.launch.transport.connection import Connection
from ascend_adapt.launch.transport.transport import Transport

_LAST_WORDS_S = 5.0
# Of an ssh that has ended. A process that it left in the background may keep its standard error open.
_READING_S = 1.0


class SshTransport(Transport):
    """Reaches each host with one ssh; the agent on this host is a child process."""

    programs = ("ssh",)

    def __init__(self, port: int | None) -> None:
        super().__init__(port)
        self._said: dict[str, list[str]] = {}
        self._readers: dict[str, threading.Thread] = {}

    def links(self, addresses: Sequence[str]) -> list[Connection]:
        """Start all connections; the hosts connect at the same time."""
        return list(map(self._start, addresses, network.for_each(network.is_here, addresses)))

    def why_not(self, link: Connection, waited_s: float) -> str:
        """Return ssh's messages about a host."""
        if link.process is not None and link.lost:
            # ssh has closed its output; its error messages may arrive a little later.
            with contextlib.suppress(subprocess.TimeoutExpired):
                link.process.wait(_LAST_WORDS_S)
            self._readers[link.address].join(_READING_S)
        return self.described(link, self._said.get(link.address, ()), waited_s)

    def close(self) -> None:
        """Do nothing, because each ssh ends with its connection."""

    def _start(self, address: str, is_here: bool) -> Connection:
        command = ssh_command.program()
        if not is_here:
            command = [*ssh_command.OUTLIVES_SIGNALS, *ssh_command.command(address, self._port)]
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,  # The launcher forwards Ctrl-C.
        )
        assert process.stdin is not None
        assert process.stdout is not None
        link = Connection(address, os.dup(process.stdout.fileno()), os.dup(process.stdin.fileno()), process)
        process.stdin.close()
        process.stdout.close()
        said = self._said[address] = []
        reader = threading.Thread(target=pass_on, args=(process.stderr, link.name, said), daemon=True)
        self._readers[address] = reader
        reader.start()
        return link


def pass_on(stream: object, name: str, said: list[str]) -> None:
    """Print the standard error of ssh or of an agent, prefixed with the host's name."""
    for line in stream:  # type: ignore[attr-defined]
        text = line.decode(errors="replace").rstrip()
        if text:
            said.append(text)
            print(f"{name}: {text}", file=sys.stderr, flush=True)
