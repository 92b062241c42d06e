"""An operation as data: its calls, and the backends that can compute them."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, cast

from ascend_adapt.errors import BackendUnavailable


class KernelCall:
    """One call of a kernel; subclasses are dataclasses of its arguments, which nobody changes.

    Not frozen ones: to build those takes three times as long, and every call of a kernel builds one.
    """

    def tensor(self) -> Any:
        """Return the tensor that says on which device the call runs."""
        return next(iter(self.__dict__.values()))

    def check(self) -> None:
        """Refuse arguments that break the contract, by what ``signature`` shows; asked once for each kind of call."""

    def signature(self) -> tuple[Any, ...]:
        """Return all of the call that ``check`` and a backend's ``supports`` may look at.

        That is shapes, dtypes, devices and flags, but no values.
        """
        return tuple([value if type(value) in _PLAIN else _seen(value) for value in self.__dict__.values()])

    def small(self) -> KernelCall | None:
        """Return a small call of the same kind, with random numbers; None: there is none that shows anything."""
        return None

    def describe(self, *, rounded: bool = False) -> str:
        """Return the call in words; ``rounded``: with sizes rounded up to powers of two, as a class of shapes."""
        told = ((name, _told(value, rounded)) for name, value in vars(self).items())
        return ", ".join(f"{name} {text}" if text != "True" else name for name, text in told if text)


_PLAIN = frozenset((type(None), int, str))


def _seen(value: Any) -> Any:
    if value is True or value is False:
        return bool, value  # a key in which True is not 1
    if hasattr(value, "requires_grad"):
        return (value.shape, value.dtype, value.device, value.requires_grad)
    if isinstance(value, float):
        return float, value != 0.0
    if isinstance(value, (list, tuple)):
        return tuple([_seen(one) for one in value])
    return value if type(value) in _PLAIN else type(value)


def _told(value: Any, rounded: bool) -> str:
    if hasattr(value, "shape"):
        sizes = [1 << (size - 1).bit_length() if rounded and size else size for size in value.shape]
        grad = " with gradient" if value.requires_grad else ""
        return f"{sizes} {str(value.dtype).removeprefix('torch.')}{grad}"
    if isinstance(value, (list, tuple)):
        return f"{len(value)} x ({_told(value[0], rounded)})" if value else ""
    if value is None or value is False or value == 0.0:
        return ""
    return str(value) if isinstance(value, (bool, int, str)) else "given"


class Implementation(Protocol):
    """What a backend's module, or an object in it, must have."""

    def supports(self, call: Any) -> str:
        """Return "" if this computes ``call`` as the contract says, else why not, in words."""

    def run(self, call: Any) -> Any:
        """Return the result; gradients flow through it."""


@dataclass(frozen=True)
class Backend:
    """One way to compute a kernel."""

    name: str
    devices: tuple[str, ...]
    """Types of device; none: every device."""
    where: str
    """``package.module`` or ``package.module:object`` of the Implementation, imported when it is first considered."""
    measured: bool = False
    """Whether it is timed against its neighbours in the list, rather than preferred to those behind it."""
    deterministic: bool = True
    composed: bool = False
    """Whether it is made of torch's operators alone, so that it also takes fake and transformed tensors."""

    def implementation(self) -> Implementation:
        """Return the implementation, imported now if it was not."""
        module, _, name = self.where.partition(":")
        loaded = importlib.import_module(module)
        return cast(Implementation, getattr(loaded, name) if name else loaded)


@dataclass(frozen=True)
class Choice:
    """Which backend computes one kind of call, and why."""

    kernel: str
    call: str
    device: str
    backend: str
    reason: str
    passed_over: tuple[tuple[str, str], ...] = ()
    """Backends of this device that come first but do not serve the call, each with its reason."""


class Operation:
    """An operation and its backends, the preferred first and the reference last."""

    def __init__(self, name: str, backends: Sequence[Backend]) -> None:
        self.name = name
        self.built_in = tuple(backends)
        self.backends = list(backends)

    def backend(self, name: str) -> Backend:
        """Return the backend of that name.

        Raises:
            BackendUnavailable: there is none.
        """
        for backend in self.backends:
            if backend.name == name:
                return backend
        known = ", ".join(one.name for one in self.backends)
        raise BackendUnavailable(f"kernel {self.name!r}: no backend {name!r} — choose one of {known}")
