"""The interface of a transport, which gives the launcher a connection to an agent on each host."""

from __future__ import annotations

import shlex
import shutil
from abc import ABC, abstractmethod
from collections.abc import Sequence

from ascend_adapt.launch.transport.connection import Connection


class Transport(ABC):
    """One way to reach hosts.

    ``port`` is the port of the hosts' ssh servers; None uses ssh's configuration. ``programs`` must be on PATH here.
    """

    programs: tuple[str, ...] = ()

    def __init__(self, port: int | None) -> None:
        self._port = port

    @classmethod
    def why_unusable(cls, addresses: Sequence[str]) -> str:
        """Return why these hosts cannot be reached from here, with the next step, or "" if no reason is known."""
        missing = [name for name in cls.programs if shutil.which(name) is None]
        if missing:
            return f"{' and '.join(missing)} not found on PATH — install it, or choose another --launcher"
        return ""

    @abstractmethod
    def links(self, addresses: Sequence[str]) -> list[Connection]:
        """Return a connection to an agent on each host, in the order of the hosts; agents may not have started yet."""

    @abstractmethod
    def why_not(self, link: Connection, waited_s: float) -> str:
        """Return why a host cannot be reached, in one paragraph."""

    @abstractmethod
    def close(self) -> None:
        """End the processes that do not end with their connections."""

    def described(self, link: Connection, said: Sequence[str], waited_s: float) -> str:
        """Return why a host cannot be reached, given the transport's messages about it."""
        why = " ".join(said[-3:]) or link.noise or link.lost or f"no response for {waited_s:.0f} s"
        hint = shlex.join(["ssh", *(["-p", str(self._port)] if self._port else []), link.address, "true"])
        return f"host {link.name}: cannot be reached or has no agent ({why}) — try `{hint}`"
