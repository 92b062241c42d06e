"""Data types of kernels: an operation, its calls, and its backends."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, cast

from ascend_adapt.errors import BackendUnavailable


class KernelCall:
    """Arguments of one kernel call. Direct subclasses are dataclasses that are never modified.

    They are not frozen, because a frozen dataclass takes three times as long to create, and every kernel call creates
    one.
    """

    __match_args__: tuple[str, ...]
    """The dataclass's fields, in order."""
    overwritten: ClassVar[frozenset[str]] = frozenset()
    """Arguments that a backend may overwrite as scratch memory, so they are not results of an in-place call."""

    def tensor(self) -> Any:
        """Return the tensor whose device the call runs on."""
        return getattr(self, self.__match_args__[0])

    def check(self) -> None:
        """Check the arguments against the contract, reading only ``signature``. Called once for each kind of call."""

    def signature(self) -> tuple[Any, ...]:
        """Return all that ``check`` and ``supports`` may read: shapes, dtypes, devices and flags, but not values."""
        # The method is generated on the first call: a loop over the fields would take twice as long.
        type(self).signature = _signature_method(type(self).__match_args__)  # type: ignore[assignment, method-assign]
        return self.signature()

    def small(self) -> KernelCall | None:
        """Return a small call of the same kind with random values, or None if no small call is meaningful."""
        return None

    def describe(self, *, rounded: bool = False) -> str:
        """Describe the call. ``rounded`` rounds sizes up to powers of two, to describe a class of shapes."""
        described = ((name, _described(value, rounded)) for name, value in vars(self).items())
        return ", ".join(f"{name} {text}" if text != "True" else name for name, text in described if text)


def _signature_method(fields: tuple[str, ...]) -> Callable[[KernelCall], tuple[Any, ...]]:
    """Return the method ``signature`` of a class of calls with these fields."""
    import torch

    kind = (
        "value if (value := call.{0}) is None else "
        "(value.shape, value.dtype, value.device, value.requires_grad) if type(value) in tensors else "
        "value if type(value) in plain else seen(value)"
    )
    known = {"plain": _PLAIN, "tensors": frozenset((torch.Tensor, torch.nn.Parameter)), "seen": _seen}
    reader = eval(f"lambda call: ({', '.join(map(kind.format, fields))},)", known)
    return cast(Callable[[KernelCall], tuple[Any, ...]], reader)


_PLAIN = frozenset((type(None), int, str))


def _seen(value: Any) -> Any:
    if value is True or value is False:
        return bool, value  # the key of True must differ from that of 1
    if isinstance(value, float):
        return float, value != 0.0
    if hasattr(value, "requires_grad"):
        # The sizes of a fake tensor may be symbolic, and symbolic sizes cannot be hashed.
        return (type(value), str(value.shape), value.dtype, value.device, value.requires_grad)
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
    """Interface of a backend's module, or of an object in the module."""

    def supports(self, call: Any) -> str:
        """Return "" if this backend computes ``call`` according to the contract, else the reason."""

    def run(self, call: Any) -> Any:
        """Compute and return the differentiable result."""


def runner(implementation: Implementation, call: KernelCall) -> Callable[[Any], Any]:
    """Return the function that computes calls of this kind.

    It is ``run``, unless the implementation has the optional method ``prepared``, which returns a faster one.
    """
    prepared = getattr(implementation, "prepared", None)
    return implementation.run if prepared is None else cast(Callable[[Any], Any], prepared(call))


@dataclass(frozen=True)
class Backend:
    """Backend: one implementation of a kernel."""

    name: str
    devices: tuple[str, ...]
    """Device types of the backend. If empty, it runs on every device."""
    where: str
    """``package.module`` or ``package.module:object`` of the Implementation, imported when first considered."""
    measured: bool = False
    """Whether it is timed against other measured backends, rather than preferred to the backends after it."""
    deterministic: bool = True
    composed: bool = False
    """Whether it is composed of torch operators, so that it also accepts fake and transformed tensors."""
    inlined: bool = False
    """Whether compiled code uses it by default, so that torch.compile fuses its operators with their neighbours."""

    def implementation(self) -> Implementation:
        """Return the implementation, which is imported on first use."""
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
    """An operation and its registered backends, preferred backends first and the reference last."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.backends: list[Backend] = []

    def backend(self, name: str) -> Backend:
        """Return the backend of that name.

        Raises:
            BackendUnavailable: no backend has this name.
        """
        for backend in self.backends:
            if backend.name == name:
                return backend
        known = ", ".join(one.name for one in self.backends)
        raise BackendUnavailable(f"kernel {self.name!r}: no backend {name!r} — choose one of {known}")
