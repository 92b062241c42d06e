"""Backends that the user requests: ``attention:npu,softmax:reference``."""

from __future__ import annotations

import os
from collections.abc import Mapping

from ascend_adapt.errors import SettingsError
from ascend_adapt.kernels import built_in

VARIABLE = "ASCEND_ADAPT_KERNELS"
NAMES = tuple(dict.fromkeys(kernel for kernel, _ in built_in.register_kernels()))
_SHORT = {"softmax": "masked_softmax"}

_stated: dict[str, str] | None = None
_of_environment: tuple[str, dict[str, str]] = ("", {})


def parse(requested: Mapping[str, str] | str) -> dict[str, str]:
    """Return kernel name -> backend name.

    Raises:
        SettingsError: the request has another form, or names an unknown kernel.
    """
    pairs: list[tuple[str, str]]
    if isinstance(requested, str):
        words = [word.strip() for word in requested.split(",") if word.strip()]
        pairs = [(name.strip(), backend.strip()) for name, _, backend in (word.partition(":") for word in words)]
    elif isinstance(requested, Mapping):
        pairs = list(requested.items())
    else:
        raise SettingsError(f"kernels {requested!r}: expected {{'attention': 'npu'}} or 'attention:npu' — correct it")
    backends: dict[str, str] = {}
    for name, backend in pairs:
        if not (isinstance(name, str) and isinstance(backend, str) and name and backend):
            raise SettingsError(f"kernels {requested!r}: expected KERNEL:BACKEND, separated by commas — correct it")
        name = _SHORT.get(name, name)
        if name not in NAMES:
            raise SettingsError(f"kernels {requested!r}: there is no kernel {name!r} — choose from {', '.join(NAMES)}")
        if backends.setdefault(name, backend) != backend:
            raise SettingsError(f"kernels {requested!r}: two backends for {name} — pass one")
    return backends


def state(requested: Mapping[str, str] | None) -> None:
    """Use the backends given to enable() instead of the environment variable's; None restores the latter."""
    global _stated
    _stated = None if requested is None else dict(requested)


def wanted(kernel: str) -> str | None:
    """Return the requested backend, or None for the automatic choice."""
    global _of_environment
    if _stated is not None:
        return _stated.get(kernel)
    text = os.environ.get(VARIABLE, "")
    if text != _of_environment[0]:
        _of_environment = (text, parse(text))
    return _of_environment[1].get(kernel)
