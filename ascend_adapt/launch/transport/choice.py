"""Chooses the transport to the hosts of a job: ssh, unless the user requests another transport.

Transports, including built-in ones, are entry points of the group ``ascend_adapt.transports``. Each entry point names
a subclass of ``ascend_adapt.launch.transport.transport.Transport``.
"""

from __future__ import annotations

from collections.abc import Sequence

from ascend_adapt import extensions
from ascend_adapt.errors import LaunchError, SettingsError
from ascend_adapt.launch.placement import network
from ascend_adapt.launch.transport.transport import Transport

GROUP = "ascend_adapt.transports"
DEFAULT = "ssh"
_WITHOUT_A_NAME = ("auto", "local")


def check_name(launcher: str) -> None:
    """Check the value of ``--launcher``.

    Raises:
        SettingsError: no transport has this name.
    """
    if launcher in _WITHOUT_A_NAME:
        return
    known = (*_WITHOUT_A_NAME, *extensions.names(GROUP, DEFAULT))
    if launcher not in known:
        raise SettingsError(f"--launcher {launcher}: is not a transport — choose from {', '.join(known)}")


def choose(launcher: str, port: int | None, addresses: Sequence[str], look_up: bool = True) -> Transport:
    """Return the transport to the hosts of a job.

    ``look_up``: resolve host names to recognize this host; otherwise, compare only its known names.

    Raises:
        SettingsError: no transport has this name, or the transport cannot be imported.
        LaunchError: the transport cannot be used here, or ``local`` was requested for a job on other hosts.
    """
    check_name(launcher)
    are_here = network.for_each(network.is_here if look_up else network.is_own_name, addresses)
    others = [one for one, is_here in zip(addresses, are_here, strict=True) if not is_here]
    if others and launcher == "local":
        raise LaunchError(f"--launcher local: {len(others)} hosts of the hostfile are not this host — use ssh or pdsh")
    name = DEFAULT if launcher in ("auto", "local") else launcher
    transport: type[Transport] = extensions.load(GROUP, name, built_in=DEFAULT)
    if others and (why := transport.why_unusable(others)):
        raise LaunchError(f"--launcher {name}: {why}")
    return transport(port)
