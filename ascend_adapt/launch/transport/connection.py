"""The launcher's end of the connection to one host."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ascend_adapt.errors import type_and_message
from ascend_adapt.launch.one_host.console import STDERR, STDOUT, Console
from ascend_adapt.launch.one_host.failures import Failure
from ascend_adapt.launch.transport.protocol import FrameDecoder, FrameSender, Kind, frame, json_frame, json_object

_AT_ONCE = 1 << 16
_END_S = 5.0


class Connection:
    """Connection to the agent on one host.

    ``hello`` and ``ended`` are messages of the agent; ``lost`` is the reason if the connection is lost.
    """

    def __init__(self, address: str, source: int, sink: int, process: subprocess.Popen[bytes] | None) -> None:
        self.address, self.source, self.process = address, source, process
        self.hello: Mapping[str, Any] | None = None
        self.ended: Mapping[str, Any] | None = None
        self.has_begun = False
        self.lost = ""
        self.is_closed = False
        self.ended_at = 0.0
        self.ahead_ns = 0
        self.heard = time.monotonic()
        os.set_blocking(sink, False)
        self._sink, self._sender, self._decoder = sink, FrameSender(sink), FrameDecoder(marked=True)
        self._ordered_ns = 0

    @property
    def name(self) -> str:
        """Host name without the user."""
        return self.address.rpartition("@")[2]

    @property
    def is_over(self) -> bool:
        """Whether the connection has ended or is lost."""
        return self.ended is not None or bool(self.lost)

    @property
    def has_failed(self) -> bool:
        """Whether this host's part of the job has failed."""
        result = self.ended or {}
        return bool(self.lost and self.ended is None) or bool(result.get("code") or result.get("error"))

    def order(self, data: Mapping[str, Any]) -> None:
        """Send the order, which describes the processes to run on the host."""
        self._ordered_ns = time.monotonic_ns()
        self._sender.send(json_frame(Kind.ORDER, data))

    def signal(self, number: int) -> None:
        """Send a signal to the host's guardian."""
        self._sender.send(frame(Kind.SIGNAL, bytes([number])))

    def say(self, kind: Kind) -> None:
        """Send a heartbeat, and any bytes that an earlier call could not write."""
        self._sender.send(frame(kind) if not self.is_over else b"")

    def flush(self) -> None:
        """Send bytes that an earlier call could not write."""
        self._sender.send()

    def read(self, console: Console) -> list[Mapping[str, Any]]:
        """Read all frames that have arrived; print the output of the host's ranks, and return their status files."""
        try:
            data = os.read(self.source, _AT_ONCE)
        except OSError:
            data = b""
        self.heard = time.monotonic()
        if not data:
            self.is_closed = True
            for descriptor in (STDOUT, STDERR):
                console.show(self.address, descriptor, b"", ended=True)
            if self.ended is None and not self.lost:
                self.lost = "connection closed"
            return []
        statuses: list[Mapping[str, Any]] = []
        try:
            for kind, payload in self._decoder.feed(data):
                self._receive(kind, payload, console, statuses)
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            self.is_closed = True
            why = f"received a message that cannot be read ({type_and_message(error)})"
            self.lost = self.lost or why
        return statuses

    def _receive(self, kind: Kind, payload: bytes, console: Console, statuses: list[Mapping[str, Any]]) -> None:
        if kind is Kind.STDOUT or kind is Kind.STDERR:
            console.show(self.address, int(kind.value), payload)
        elif kind is Kind.HELLO:
            self.hello = json_object(payload)
        elif kind is Kind.BEGAN:
            self.has_begun = True
            # The time that the order took is the error; how long the host took to begin does not matter.
            self.ahead_ns = json_object(payload)["ordered_ns"] - self._ordered_ns
        elif kind is Kind.STATUS:
            statuses.append(json_object(payload))
        elif kind is Kind.ENDED:
            self.ended, self.ended_at = json_object(payload), time.monotonic()

    @property
    def noise(self) -> str:
        """Output of a login shell that arrived instead of an agent's hello message."""
        return self._decoder.noise.decode(errors="replace").strip()

    def failure(self) -> Failure | None:
        """Return the failure that the agent reported, with its time converted to the launcher's monotonic clock."""
        failure = (self.ended or {}).get("failure")
        if failure is None:
            return None
        reported = Failure.from_json(failure)
        at = replace(reported.at, monotonic_ns=reported.at.monotonic_ns - self.ahead_ns)
        return replace(reported, at=at, host=self.name)

    def close(self) -> None:
        """Close the connection; an agent that is still running ends its part of the job."""
        for descriptor in {self.source, self._sink}:
            try:
                os.close(descriptor)
            except OSError:
                continue
        if self.process is None:
            return
        if self.lost or self.ended is None:
            self.process.kill()  # ssh may still be trying to reach its host, or may have lost it.
        try:
            self.process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
