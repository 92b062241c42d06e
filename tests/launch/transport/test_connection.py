"""What another host sends is data: a message that cannot be read loses that host, by name, and is no traceback."""

from __future__ import annotations

import json
import os
import socket
import struct
import time
from dataclasses import asdict
from types import SimpleNamespace

import pytest

from ascend_adapt.launch.many_hosts.agent import Agent
from ascend_adapt.launch.many_hosts.launcher import HostsLauncher
from ascend_adapt.launch.one_host.failures import Failure
from ascend_adapt.launch.one_host.moment import Moment
from ascend_adapt.launch.placement.ports import Ports
from ascend_adapt.launch.transport.connection import Connection
from ascend_adapt.launch.transport.protocol import _MARK, FrameDecoder, Kind, frame, json_frame

DEEP = b"[" * 100_000


@pytest.fixture
def pipes():
    """Descriptors of what a host sends, and of what it receives: its reading and its writing end each."""
    descriptors = [*os.pipe(), *os.pipe()]
    yield descriptors
    for descriptor in descriptors:
        try:
            os.close(descriptor)
        except OSError:
            continue


@pytest.mark.parametrize(
    ("sent", "why"),
    [
        *((frame(kind, DEEP), "RecursionError") for kind in (Kind.HELLO, Kind.BEGAN, Kind.STATUS, Kind.ENDED)),
        *((frame(kind, b"{"), "JSONDecodeError") for kind in (Kind.HELLO, Kind.BEGAN, Kind.STATUS, Kind.ENDED)),
        (frame(Kind.HELLO, b"[1]"), "ValueError: a JSON list, expected an object"),
        (frame(Kind.BEGAN, b"{}"), "KeyError"),
        (frame(Kind.BEGAN, b'{"ordered_ns": []}'), "TypeError"),
        (struct.pack(">cI", b"?", 0), "ValueError"),
        (struct.pack(">cI", b"H", 0xFFFFFFFF), "ValueError: a frame of 4294967295 bytes, expected at most"),
    ],
)
def test_a_message_that_cannot_be_read_loses_the_host(pipes, sent, why):
    source, host, _, sink = pipes
    link = Connection("w-1", source, sink, None)
    os.write(host, _MARK)
    left = memoryview(sent)
    while not link.lost:
        left = left[os.write(host, left[: 1 << 15]) :]
        assert link.read(SimpleNamespace()) == []
    assert link.lost.startswith(f"received a message that cannot be read ({why}")
    assert (link.is_closed, link.has_failed, link.is_over) == (True, True, True)


@pytest.mark.parametrize("wall_clock_off_s", [-3600, 3600])
def test_failures_of_hosts_are_ordered_by_monotonic_clocks(wall_clock_off_s):
    """The fault is on w-2, whose clocks differ from the launcher's and which starts slowly; w-1 fails 50 ms later."""
    found = {}
    for name, ahead_s, off_s, failed_ms, slow_s in (("w-1", 0, 0, 1050, 0), ("w-2", 5000, wall_clock_off_s, 1000, 0.2)):
        ours, theirs = socket.socketpair()
        with ours, theirs:
            link = Connection(name, ours.fileno(), ours.fileno(), None)
            began_ns = time.monotonic_ns() + ahead_s * 10**9
            link.order({})
            time.sleep(slow_s)
            at = Moment(name, began_ns + failed_ms * 10**6, time.time_ns() + off_s * 10**9 + failed_ms * 10**6)
            theirs.send(_MARK + json_frame(Kind.BEGAN, {"ordered_ns": began_ns}))
            theirs.send(json_frame(Kind.ENDED, {"code": 1, "failure": asdict(Failure(0, at, 1))}))
            link.read(SimpleNamespace())
            if link.ended is None:
                link.read(SimpleNamespace())
        found[name] = link.failure().at.monotonic_ns
    assert found["w-2"] < found["w-1"]


@pytest.mark.parametrize("text", [DEEP.decode(), "{", "[]", "{}", '{"job": "x", "facts": {}}'])
def test_a_status_that_cannot_be_read_is_reported_and_the_job_continues(text, capfd):
    assignment = SimpleNamespace(plan=SimpleNamespace(by_host=list), device="cpu")
    launcher = HostsLauncher(assignment)
    launcher._keep_status({"rank": 1, "text": text})
    is_valid_json_of_a_status = "facts" in text
    assert ("a rank's status cannot be read" in capfd.readouterr().err) is not is_valid_json_of_a_status


@pytest.mark.parametrize("order", [DEEP, b"{", b"3"])
def test_an_agent_answers_an_order_that_it_cannot_read(pipes, order):
    source, _, answers, sink = pipes
    with Ports() as ports:
        agent = Agent(source, sink, ports)
        agent._frames.append((Kind.ORDER, order))
        assert agent.serve() == 1
    frames = list(FrameDecoder(marked=True).feed(os.read(answers, 1 << 16)))
    assert [kind for kind, _ in frames] == [Kind.HELLO, Kind.ENDED]
    assert json.loads(frames[1][1])["error"].startswith("the launcher's order cannot be read: ")
