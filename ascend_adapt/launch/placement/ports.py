"""Ports that one job reserves on this host while it runs; the kernel releases them at the latest."""

from __future__ import annotations

import errno
import socket
from types import TracebackType

from ascend_adapt.errors import LaunchError

# Above Linux's ephemeral ports (32768 to 60999). HCCL uses 16 consecutive ports from its base port, one per device.
_HCCL_BASES = range(61000, 65000, 16)


class Ports:
    """A rendezvous port and the base of an HCCL range, both reserved until ``close()`` or the end of this process."""

    def __init__(self) -> None:
        self._hccl_lock, self.hccl_base = _lock_range()
        # The socket is bound but does not listen: no other program gets the port, but rank 0 can still listen on it,
        # because torch's store sets SO_REUSEADDR.
        self._rendezvous = _bound(0)
        self.rendezvous = int(self._rendezvous.getsockname()[1])

    def close(self) -> None:
        """Release the port and the range."""
        self._rendezvous.close()
        self._hccl_lock.close()

    def __enter__(self) -> Ports:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


def check_free(port: int) -> None:
    """Check that rank 0 can listen on this port of this host. Other ranks would join the job that listens there.

    Raises:
        LaunchError: the port is in use, or this user may not listen on it.
    """
    try:
        _bound(port).close()
    except OSError as error:
        why = "is in use" if error.errno == errno.EADDRINUSE else error.strerror
        raise LaunchError(f"port {port}: {why}, expected a free one — choose another --master-port") from error


def _bound(port: int) -> socket.socket:
    holder = socket.socket()
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        holder.bind(("", port))
    except OSError:
        holder.close()
        raise
    return holder


def _lock_range() -> tuple[socket.socket, int]:
    for base in _HCCL_BASES:
        # An abstract socket name belongs to the network namespace, like the ports, and leaves no file to clean up.
        lock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            lock.bind(f"\0ascend_adapt hccl {base}")
            for port in range(base, base + _HCCL_BASES.step):
                _bound(port).close()
        except OSError:
            lock.close()
            continue
        return lock, base
    raise LaunchError(
        f"HCCL ports {_HCCL_BASES.start} to {_HCCL_BASES.stop}: no block of {_HCCL_BASES.step} is free — "
        "set HCCL_IF_BASE_PORT, or end another job"
    )
