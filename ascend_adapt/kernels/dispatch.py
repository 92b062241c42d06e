"""Which backend computes a call: chosen by the tensor's device, once for each kind of call, and kept to be shown."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ascend_adapt.errors import BackendUnavailable, SettingsError
from ascend_adapt.kernels import measurement, requests, tracing, verification
from ascend_adapt.kernels.operation import Backend, Choice, Implementation, KernelCall, Operation

logger = logging.getLogger("ascend_adapt")
_AUTOCAST = ("cuda", "cpu", "npu")
_KINDS_KEPT = 1024
"""Kinds of call that a kernel remembers: where every batch has another length there would be no end of them."""


class Kernel(Operation):
    """An operation, and the backends that compute it, the preferred first and the reference last."""

    def __init__(self, name: str, backends: Sequence[Backend]) -> None:
        super().__init__(name, backends)
        self.choices: dict[tuple[Any, ...], Choice] = {}
        # Compiled code is made anew where one of these has grown; an evaluation must not do so to training's.
        self._chosen_with_gradients: dict[tuple[Any, ...], Implementation] = {}
        self._chosen_without: dict[tuple[Any, ...], Implementation] = {}
        _KERNELS[name] = self

    def __call__(self, call: KernelCall) -> Any:
        """Return what the backend chosen for this kind of call computes.

        Raises:
            BackendUnavailable: a backend was asked for that is not there, or does not serve this call.
        """
        import torch

        if not torch.compiler.is_compiling() and tracing.is_abstract(call.tensor()):
            chosen = self._composed(call)
        else:
            key = self._key(call, torch)
            found = self._chosen(torch).get(key)
            chosen = self._choose(call, key) if found is None else found
        kind = call.tensor().device.type
        if kind in _AUTOCAST and torch.is_autocast_enabled(kind):
            # It would round what a backend computes in fp32, and give layer_norm another dtype than its input's.
            with torch.autocast(kind, enabled=False):
                return chosen.run(call)
        return chosen.run(call)

    def choose(self, call: KernelCall) -> Choice:
        """Return which backend computes ``call``, and why, without computing it."""
        import torch

        key = self._key(call, torch)
        if key not in self.choices:
            self._choose(call, key)
        return self.choices[key]

    def candidates(self, call: KernelCall, *, composed: bool = False) -> Iterator[tuple[Backend, str]]:
        """Yield every backend of the call's device, or the composed ones, with "" or why it does not serve the call."""
        device = call.tensor().device.type
        for backend in self.backends:
            if (not backend.devices or device in backend.devices) and (backend.composed or not composed):
                yield backend, _unfit(backend, call)

    def extend(self, backends: Sequence[Backend]) -> None:
        """Prefer these to the built-in ones, in place of what was so preferred before, and choose anew."""
        extended = [*backends, *self.built_in]
        if extended != self.backends:
            self.backends = extended
            self.forget()

    def forget(self) -> None:
        """Choose anew from now on."""
        self.choices.clear()
        self._chosen_with_gradients.clear()
        self._chosen_without.clear()

    def _key(self, call: KernelCall, torch: Any) -> tuple[Any, ...]:
        repeats = (torch.are_deterministic_algorithms_enabled() or _told_to_repeat(), attention_gradients_repeat())
        return (requests.wanted(self.name), torch.is_grad_enabled(), repeats, type(call), call.signature())

    def _chosen(self, torch: Any) -> dict[tuple[Any, ...], Implementation]:
        return self._chosen_with_gradients if torch.is_grad_enabled() else self._chosen_without

    def _choose(self, call: KernelCall, key: tuple[Any, ...]) -> Implementation:
        import torch

        call.check()
        wish = requests.wanted(self.name)
        if wish is not None:
            backend, reason, settled = self._asked_for(wish, call), "as asked", True
            passed_over: list[tuple[str, str]] = []
        else:
            backend, reason, passed_over, settled = self._automatic(call)
        implementation = backend.implementation()
        if settled and verification.is_possible(call):
            device = call.tensor().device.type
            choice = Choice(self.name, call.describe(), device, backend.name, reason, tuple(passed_over))
            chosen = self._chosen(torch)
            while len(chosen) >= _KINDS_KEPT:
                oldest = next(iter(chosen))
                del chosen[oldest], self.choices[oldest]
            self.choices[key], chosen[key] = choice, implementation
        for name, why in passed_over:
            _tell_once(f"kernel {self.name!r}: {name} does not serve this call ({why}); {backend.name} does")
        return implementation

    def _composed(self, call: KernelCall) -> Implementation:
        """Return what serves a call without numbers; it is not kept: such calls have the shapes of real ones."""
        call.check()
        fit = [backend for backend, unfit in self.candidates(call, composed=True) if not unfit]
        return fit[0].implementation()

    def _asked_for(self, wish: str, call: KernelCall) -> Backend:
        backend, device = self.backend(wish), call.tensor().device.type
        if backend.devices and device not in backend.devices:
            why = f"it is for {' and '.join(backend.devices)}, the tensors are on {device}"
        else:
            why = _unfit(backend, call) or verification.disagreement(self, backend, call)
        if why:
            raise BackendUnavailable(
                f"kernel {self.name!r}: backend {wish!r} was asked for, but {why} (call: {call.describe()}) — "
                f"ask for another, or unset kernels= and {requests.VARIABLE}"
            )
        return backend

    def _automatic(self, call: KernelCall) -> tuple[Backend, str, list[tuple[str, str]], bool]:
        """Return the backend, why it, those passed over, and whether this holds for the next such call too."""
        passed_over: list[tuple[str, str]] = []
        fit = []
        for backend, unfit in self.candidates(call):
            why = unfit or verification.disagreement(self, backend, call)
            if why:
                passed_over.append((backend.name, why))
            else:
                fit.append(backend)
                if not backend.measured:
                    break
        if not fit:
            reasons = "; ".join(f"{name}: {why}" for name, why in passed_over)
            raise BackendUnavailable(
                f"kernel {self.name!r}: no backend serves this call ({call.describe()}): {reasons} — "
                "change the call, or report it"
            )
        rivals = [backend for backend in fit if backend.measured]
        if len(rivals) < 2:
            return fit[0], "the first that serves the call", passed_over, True
        why_not = "deterministic" if is_deterministic() else measurement.why_not(call.tensor())
        if why_not:
            reason = f"the first that serves the call; not measured: {why_not}"
            return rivals[0], reason, passed_over, why_not != measurement.CAPTURED
        runs = {backend.name: backend.implementation().run for backend in rivals}
        told = measurement.fastest(self.name, call, runs)
        return self.backend(told.backend), told.reason, [*passed_over, *told.failed], True


_KERNELS: dict[str, Kernel] = {}
_told_already: set[str] = set()


def kernels() -> Mapping[str, Kernel]:
    """Return every kernel, by name."""
    from ascend_adapt import kernels as all_of_them  # noqa: F401  its import declares them

    return dict(_KERNELS)


def ask_for(wishes: Mapping[str, str] | None) -> None:
    """Put the backends that the user asked for in force, by kernel; None: those of the environment.

    Raises:
        SettingsError: no such kernel, or no such backend of it.
    """
    for name, backend in (wishes or {}).items():
        known = [one.name for one in kernels()[name].backends]
        if backend not in known:
            raise SettingsError(
                f"kernels {dict(wishes or {})!r}: {name} has no backend {backend!r} — choose one of {', '.join(known)}"
            )
    requests.state(wishes)


def unusable(kernel: str, backend: Any) -> str:
    """Return "" if ``backend`` may extend the kernel of that name, else why not, in words."""
    if kernel not in kernels():
        return f"there is no kernel {kernel!r}, expected one of {', '.join(kernels())}"
    if not isinstance(backend, Backend):
        return f"{backend!r} is no backend, expected a Backend of ascend_adapt.kernels.dispatch"
    if backend.name in [one.name for one in kernels()[kernel].built_in]:
        return f"{kernel} has a backend {backend.name!r} of its own, expected another name"
    return ""


def extend(backends: Sequence[tuple[str, Backend]]) -> None:
    """Prefer these backends, by kernel, to the built-in ones, in place of all that an earlier call has given."""
    for name, kernel in kernels().items():
        kernel.extend([backend for extended, backend in backends if extended == name])


def choices() -> tuple[Choice, ...]:
    """Return every choice made in this process, in order; ranks of a job that differ in one diverge without a word."""
    return tuple(choice for kernel in _KERNELS.values() for choice in kernel.choices.values())


def forget() -> None:
    """Make every choice anew from now on."""
    for kernel in _KERNELS.values():
        kernel.forget()


def is_deterministic() -> bool:
    """Return whether the same call must give the same bits: torch was told so, or the job was (--deterministic)."""
    import torch

    return torch.are_deterministic_algorithms_enabled() or _told_to_repeat()


def attention_gradients_repeat() -> bool:
    """Return whether torch's own attention has gradients that repeat: only where torch would refuse what does not.

    Under ``warn_only`` flash attention warns once and does not repeat.
    """
    import torch

    return torch.are_deterministic_algorithms_enabled() and not _torch_only_warns()


def _torch_only_warns() -> bool:
    import torch

    told: bool = torch.is_deterministic_algorithms_warn_only_enabled()
    return told


# torch's compiler cuts a graph at that question, and makes code anew where the answer has changed. This is what
# torch.compiler.assume_constant_result does, which imports all of the compiler.
_torch_only_warns._dynamo_marked_constant = True  # type: ignore[attr-defined]


def _told_to_repeat() -> bool:
    return os.environ.get("ASCEND_ADAPT_DETERMINISTIC", "0") != "0"


def _unfit(backend: Backend, call: KernelCall) -> str:
    if not backend.deterministic and is_deterministic():
        return "it is not deterministic"
    try:
        implementation = backend.implementation()
    except ImportError as error:
        return f"it cannot be imported: {error}"
    return implementation.supports(call)


def _tell_once(text: str) -> None:
    if text not in _told_already:
        _told_already.add(text)
        logger.info("ascend_adapt: %s", text)
