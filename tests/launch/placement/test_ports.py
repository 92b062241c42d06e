from __future__ import annotations

import errno
import os
import socket

import pytest

from ascend_adapt.errors import LaunchError
from ascend_adapt.launch.placement import ports
from ascend_adapt.launch.placement.ports import Ports


def test_jobs_at_once_never_share_a_port():
    held = [Ports() for _ in range(20)]
    try:
        assert len({one.rendezvous for one in held}) == 20
        ranges = [set(range(one.hccl_base, one.hccl_base + 16)) for one in held]
        assert len(set.union(*ranges)) == 20 * 16
    finally:
        for one in held:
            one.close()


@pytest.mark.usefixtures("needs_torch")
def test_nobody_is_given_the_port_and_rank_0_can_listen_on_it():
    with Ports() as held:
        with socket.socket() as other, pytest.raises(OSError, match="in use"):
            other.bind(("", held.rendezvous))
        from torch.distributed import TCPStore

        for use_libuv in (True, False):
            store = TCPStore("127.0.0.1", held.rendezvous, 1, True, use_libuv=use_libuv)
            store.set("key", "value")
            assert store.get("key") == b"value"
            del store


@pytest.fixture
def two_ranges(monkeypatch):
    """Leave two ranges, which jobs that run beside the tests do not take."""
    monkeypatch.setattr(ports, "_HCCL_BASES", range(65100, 65132, 16))


def test_a_range_with_a_port_in_use_is_passed_over(two_ranges):
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.bind(("", 65107))
        other.listen()
        with Ports() as held:
            assert held.hccl_base == 65116


def test_all_ranges_in_use_is_reported(two_ranges):
    with Ports(), Ports(), pytest.raises(LaunchError, match="HCCL ports 65100 to 65132: no block of 16 is free"):
        Ports()


@pytest.mark.parametrize(("number", "why"), [(errno.EADDRINUSE, "is in use"), (errno.EACCES, "Permission denied")])
def test_a_port_that_rank_0_cannot_have_is_refused_with_the_reason(number, why, monkeypatch):
    def bound(port):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(ports, "_bound", bound)
    with pytest.raises(LaunchError, match=f"^port 80: {why}, expected a free one"):
        ports.check_free(80)
