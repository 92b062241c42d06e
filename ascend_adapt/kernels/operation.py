"""Data types of kernels: an operation, its calls, and its backends."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, cast

from ascend_adapt.errors import BackendUnavailable


class KernelCall:
    """Arguments of one kernel call; subclasses are dataclasses that are never modified.

    They are not frozen: a frozen dataclass takes three times as long to create, and every kernel call creates one.
    """

    __match_args__: tuple[str, ...]
    """The dataclass's fields, in order."""
    overwritten: ClassVar[frozenset[str]] = frozenset()
    """Arguments that a backend may use as scratch memory, so they are not results of an in-place call."""

    def tensor(self) -> Any:
        """Return the tensor whose device the call runs on."""
        return getattr(self, self.__match_args__[0])

    def check(self) -> None:
        """Check the arguments against the contract, using only ``signature``; called once for each kind of call."""

    def signature(self) -> tuple[Any, ...]:
        """Return everything that ``check`` and a backend's ``supports`` may read.

        These are shapes, dtypes, devices and flags, but not values.
        """
        # Not from self.__dict__: torch.compile of torch 2.11 breaks the graph there.
        values = [getattr(self, name) for name in self.__match_args__]
        return tuple([value if type(value) in _PLAIN else _seen(value) for value in values])

    def small(self) -> KernelCall | None:
        """Return a small call of the same kind with random values, or None if no small call is meaningful."""
        return None

    def describe(self, *, rounded: bool = False) -> str:
        """Describe the call; ``rounded``: with sizes rounded up to powers of two, as a class of shapes."""
        described = ((name, _described(value, rounded)) for name, value in vars(self).items())
        return ", ".join(f"{name} {text}" if text != "True" else name for name, text in described if text)


_PLAIN = frozenset((type(None), int, str))


def _seen(value: Any) -> Any:
    if value is True or value is False:
        return bool, value  # in this key True must differ from 1
    if hasattr(value, "requires_grad"):
        return (value.shape, value.dtype, value.device, value.requires_grad)
    if isinstance(value, float):
        return float, value != 0.0
    if isinstance(value, (list, tuple)):
        return tuple([_seen(one) for one in value])
    return value if type(value) in _PLAIN else type(value)


def _described(value: Any, rounded: bool) -> str:
    if hasattr(value, "shape"):
        sizes = [1 << (size - 1).bit_length() if rounded and size else size for size in value.shape]
        grad = " with gradient" if value.requires_grad else ""
        return f"{sizes} {str(value.dtype).removeprefix('torch.')}{grad}"
    if isinstance(value, (list, tuple)):
        return f"{len(value)} x ({_described(value[0], rounded)})" if value else ""
    if value is None or value is False or value == 0.0:
        return ""
    return str(value) if isinstance(value, (bool, int, str)) else "given"


class Implementation(Protocol):
    """Interface of a backend's module, or of an object in it."""

    def supports(self, call: Any) -> str:
        """Return "" if this backend computes ``call`` according to the contract, else the reason."""

    def run(self, call: Any) -> Any:
        """Compute and return the differentiable result."""


@dataclass(frozen=True)
class Backend:
    """Backend: one implementation of a kernel."""

    name: str
    devices: tuple[str, ...]
    """Device types; empty: every device."""
    where: str
    """``package.module`` or ``package.module:object`` of the Implementation, imported when first considered."""
    measured: bool = False
    """Whether it is timed against its neighbours in the list, rather than preferred over those after it."""
    deterministic: bool = True
    composed: bool = False
    """Whether it consists of torch operators only, so that it also accepts fake and transformed tensors."""
    inlined: bool = False
    """Whether torch.compile uses it unless another is requested: it fuses these operators with their neighbours."""

    def implementation(self) -> Implementation:
        """Return the implementation; imports it on first use."""
        module, _, name = self.where.partition(":")
        loaded = importlib.import_module(module)
        return cast(Implementation, getattr(loaded, name) if name else loaded)


@dataclass(frozen=True)
class Choice:
    """The backend chosen for one kind of call, and the reason."""

    kernel: str
    call: str
    device: str
    backend: str
    reason: str
    passed_over: tuple[tuple[str, str], ...] = ()
    """Preferred backends of this device that do not support the call, each with its reason."""


class Operation:
    """An operation and its registered backends, the preferred first and the reference last."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.backends: list[Backend] = []

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
