"""Names and addresses of this host, and the network interface through which it reaches another host."""

from __future__ import annotations

import array
import fcntl
import functools
import getpass
import socket
import struct
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

_SIOCGIFADDR = 0x8915
_DISCARD_PORT = 9
# A resolver that does not answer takes seconds for each name.
_LOOKUPS_AT_A_TIME = 64

_Found = TypeVar("_Found")


def own_names() -> set[str]:
    """Return the names of this host that are known without a resolver."""
    return {"localhost", "127.0.0.1", "::1", socket.gethostname(), socket.gethostname().partition(".")[0]}


def is_own_name(address: str) -> bool:
    """Return whether an address is one of this host's names, without using the resolver."""
    return address.rpartition("@")[2] in own_names()


def is_here(address: str) -> bool:
    """Return whether ``name`` or ``user@name`` refers to this user on this host; False for an unknown name."""
    user, _, name = address.rpartition("@")
    if user and user != getpass.getuser():
        return False
    return name in own_names() or any(_can_bind(*found) for found in _resolved(name))


def for_each(look_up: Callable[[str], _Found], names: Iterable[str]) -> list[_Found]:
    """Return the result of a function that resolves a name, for each name; they are resolved concurrently."""
    with ThreadPoolExecutor(_LOOKUPS_AT_A_TIME) as pool:
        return list(pool.map(look_up, names))


def addresses() -> set[str]:
    """Return the IPv4 addresses of this host's interfaces, and its names."""
    return {address for _, name in socket.if_nameindex() if (address := _address_of(name))} | own_names()


def address_towards(name: str) -> str | None:
    """Return the IPv4 address under which host ``name`` sees this host, or None; loopback does not count."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((name, _DISCARD_PORT))  # connect() on UDP consults the routing table and sends nothing.
            address = str(probe.getsockname()[0])
        except OSError:
            return None
    return None if address.startswith("127.") else address


def interface_of(address: str) -> str | None:
    """Return the name of the interface that has an IPv4 address, or None."""
    return next((name for _, name in socket.if_nameindex() if _address_of(name) == address), None)


@functools.cache
def _resolved(name: str) -> tuple[tuple[int, str], ...]:
    try:
        return tuple((family, str(where[0])) for family, _, _, _, where in socket.getaddrinfo(name, None))
    except OSError:
        return ()


def _can_bind(family: int, address: str) -> bool:
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind((address, 0))
    except OSError:
        return False
    return True


def _address_of(interface: str) -> str | None:
    request = array.array("B", struct.pack("16s240x", interface.encode()[:15]))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, request)
        except OSError:
            return None
    return socket.inet_ntoa(request[20:24].tobytes())
