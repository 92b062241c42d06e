"""Kernel dispatch: chooses a backend for the tensor's device, once for each kind of call, and records the choice."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from ascend_adapt import switches
from ascend_adapt.errors import BackendUnavailable, SettingsError
from ascend_adapt.kernels import built_in, measurement, requests, tracing, verification
from ascend_adapt.kernels.operation import Backend, Choice, Implementation, KernelCall, Operation, runner

logger = logging.getLogger("ascend_adapt")
Run = Callable[[Any], Any]
"""A function that computes the result of a call."""
_AUTOCAST = ("cuda", "cpu", "npu")
FIRST = "the first that supports the call"
"""The reason of a choice that needed no comparison."""
_KINDS_KEPT = 1024
"""Maximum number of kinds of call that a kernel remembers. New lengths in every batch would exceed any memory."""


class Kernel(Operation):
    """An operation that chooses one of its backends for each kind of call."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.choices: dict[tuple[Any, ...], Choice] = {}
        # Imported at the first choice, because an import breaks a graph of torch.compile.
        self._inlined: tuple[tuple[tuple[str, ...], Implementation], ...] = ()
        # torch.compile recompiles when a dict grows that it has read. Evaluation must not recompile the training graph.
        self._chosen_with_gradients: dict[tuple[Any, ...], Run] = {}
        self._chosen_without: dict[tuple[Any, ...], Run] = {}
        _KERNELS[name] = self

    def __call__(self, call: KernelCall) -> Any:
        """Run the backend chosen for this kind of call and return its result.

        Raises:
            BackendUnavailable: the requested backend does not exist, or does not support this call.
        """
        import torch

        if torch.compiler.is_compiling():
            run = self._inlined_for(call)
        else:
            run = self._composed_for(call) if tracing.is_observed(torch) else None
        if run is None:
            key = self._key(call, torch)
            run = (self._chosen_with_gradients if key[0] else self._chosen_without).get(key)
            if run is None:
                run = self._choose(call, key)
        return _without_autocast(run, call) if torch._C._is_any_autocast_enabled() else run(call)

    def choose(self, call: KernelCall) -> Choice:
        """Return which backend computes ``call``, and why, without computing it."""
        import torch

        key = self._key(call, torch)
        if key not in self.choices:
            self._choose(call, key)
        return self.choices[key]

    def candidates(self, call: KernelCall, *, composed: bool = False) -> Iterator[tuple[Backend, str]]:
        """Yield each backend for the call's device, or each composed backend, with "" or why it rejects the call."""
        device = call.tensor().device.type
        for backend in self.backends:
            if (not backend.devices or device in backend.devices) and (backend.composed or not composed):
                yield backend, _unfit(backend, call)

    def register(self, backends: Sequence[Backend]) -> None:
        """Use these backends, preferred backends first and the reference last, and forget all choices."""
        if list(backends) != self.backends:
            self.backends = list(backends)
            self.forget()

    def forget(self) -> None:
        """Forget the choices, so that the next call of each kind chooses again."""
        self.choices.clear()
        self._chosen_with_gradients.clear()
        self._chosen_without.clear()

    def _key(self, call: KernelCall, torch: Any) -> tuple[Any, ...]:
        """Return the key of the cached choice for a call. Its first value is whether gradients are computed."""
        strict = torch.are_deterministic_algorithms_enabled()
        repeats = strict and not _torch_only_warns()
        wanted = requests.wanted(self.name)
        return (torch.is_grad_enabled(), strict or _must_repeat(), repeats, wanted, call.signature())

    def _choose(self, call: KernelCall, key: tuple[Any, ...]) -> Run:
        import torch

        if not torch.compiler.is_compiling() and (composed := self._composed_for(call)) is not None:
            return composed
        call.check()
        self._inlined = tuple((one.devices, one.implementation()) for one in self.backends if one.inlined)
        requested = requests.wanted(self.name)
        if requested is not None:
            backend, reason, settled = self._requested(requested, call), "as requested", True
            passed_over: list[tuple[str, str]] = []
        else:
            backend, reason, passed_over, settled = self._automatic(call)
        run = runner(backend.implementation(), call)
        if settled and verification.is_possible(call):
            device = call.tensor().device.type
            choice = Choice(self.name, call.describe(), device, backend.name, reason, tuple(passed_over))
            chosen = self._chosen_with_gradients if key[0] else self._chosen_without
            while len(chosen) >= _KINDS_KEPT:
                oldest = next(iter(chosen))
                del chosen[oldest], self.choices[oldest]
            self.choices[key], chosen[key] = choice, run
        for name, why in passed_over:
            _log_once(f"kernel {self.name!r}: {name} does not support this call ({why}); {backend.name} does")
        return run

    def _composed_for(self, call: KernelCall) -> Run | None:
        """Return the backend for a call without values, or None if the call has values.

        It is not cached, because calls with values have the same key.
        """
        if not tracing.is_abstract(call.tensor()):
            return None
        call.check()
        fit = [backend for backend, unfit in self.candidates(call, composed=True) if not unfit]
        return fit[0].implementation().run

    def _inlined_for(self, call: KernelCall) -> Run | None:
        """Return the backend that torch.compile fuses with other operators, or None to choose as in eager mode."""
        if requests.wanted(self.name) is not None:
            return None
        device = call.tensor().device.type
        for devices, implementation in self._inlined:
            if (not devices or device in devices) and not implementation.supports(call):
                return implementation.run
        return None

    def _requested(self, requested: str, call: KernelCall) -> Backend:
        backend, device = self.backend(requested), call.tensor().device.type
        if backend.devices and device not in backend.devices:
            why = f"it is for {' and '.join(backend.devices)}, the tensors are on {device}"
        else:
            why = _unfit(backend, call) or verification.disagreement(self, backend, call)
        if why:
            raise BackendUnavailable(
                f"kernel {self.name!r}: backend {requested!r} was requested, but {why} (call: {call.describe()}) — "
                f"request another, or unset kernels= and {requests.VARIABLE}"
            )
        return backend

    def _automatic(self, call: KernelCall) -> tuple[Backend, str, list[tuple[str, str]], bool]:
        """Return the backend, the reason, the rejected backends, and whether to cache the choice."""
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
                f"kernel {self.name!r}: no backend supports this call ({call.describe()}): {reasons} — "
                "change the call, or report it"
            )
        rivals = [backend for backend in fit if backend.measured]
        if len(rivals) < 2:
            return fit[0], FIRST, passed_over, True
        why_not = "deterministic" if is_deterministic() else measurement.why_not(call.tensor())
        if why_not:
            reason = f"{FIRST}; not measured: {why_not}"
            return rivals[0], reason, passed_over, why_not != measurement.CAPTURED
        runs = {backend.name: runner(backend.implementation(), call) for backend in rivals}
        fastest = measurement.fastest(self.name, call, runs)
        return self.backend(fastest.backend), fastest.reason, [*passed_over, *fastest.failed], True


def _without_autocast(run: Run, call: KernelCall) -> Any:
    """Return ``run(call)`` with autocast disabled.

    Autocast would round its fp32 computation, and change the output dtype of layer_norm.
    """
    import torch

    kind = call.tensor().device.type
    if kind not in _AUTOCAST or not torch.is_autocast_enabled(kind):
        return run(call)
    if torch.compiler.is_compiling() or torch._C._is_torch_function_mode_enabled():
        with torch.autocast(kind, enabled=False):  # the graph records this context, not the function below
            return run(call)
    torch.set_autocast_enabled(kind, False)  # torch.autocast takes ten times as long
    try:
        return run(call)
    finally:
        torch.set_autocast_enabled(kind, True)


_KERNELS: dict[str, Kernel] = {}
_logged: set[str] = set()


def kernels() -> Mapping[str, Kernel]:
    """Return every kernel, by name."""
    from ascend_adapt import kernels as all_of_them  # noqa: F401  its import declares them

    return dict(_KERNELS)


def request(requested: Mapping[str, str] | None) -> None:
    """Select the requested backend of each kernel. None selects the backends in the environment variable.

    Raises:
        SettingsError: a kernel or backend does not exist.
    """
    for name, backend in (requested or {}).items():
        known = [one.name for one in kernels()[name].backends]
        if backend not in known:
            raise SettingsError(
                f"kernels {dict(requested or {})!r}: {name} has no backend {backend!r} — "
                f"choose one of {', '.join(known)}"
            )
    requests.state(requested)


def unusable(kernel: str, backend: Any) -> str:
    """Return "" if ``backend`` may be added to the kernel of that name, else the reason."""
    if kernel not in kernels():
        return f"there is no kernel {kernel!r}, expected one of {', '.join(kernels())}"
    if not isinstance(backend, Backend):
        return f"{backend!r} is not a backend, expected a Backend of ascend_adapt.kernels.dispatch"
    if backend.name in [one.name for name, one in built_in.register_kernels() if name == kernel]:
        return f"{kernel} already has a backend {backend.name!r}, expected another name"
    return ""


def register(of_plugins: Sequence[tuple[str, Backend]]) -> None:
    """Register the backends of plugins, then the built-in ones, in place of those that an earlier call registered."""
    registered = [*of_plugins, *built_in.register_kernels()]
    for name, kernel in kernels().items():
        kernel.register([backend for extended, backend in registered if extended == name])


def choices() -> tuple[Choice, ...]:
    """Return every choice made in this process, in order. Ranks whose choices differ diverge silently."""
    return tuple(choice for kernel in _KERNELS.values() for choice in kernel.choices.values())


def forget() -> None:
    """Forget every choice, so that each kind of call chooses again."""
    for kernel in _KERNELS.values():
        kernel.forget()


def is_deterministic() -> bool:
    """Return whether results must be bitwise repeatable, by torch's setting or the job's option --deterministic."""
    import torch

    return torch.are_deterministic_algorithms_enabled() or _must_repeat()


def attention_gradients_repeat() -> bool:
    """Return whether gradients of torch's attention are repeatable.

    They are if torch raises errors for nondeterministic operators. Under ``warn_only``, flash attention warns once and
    is not repeatable.
    """
    import torch

    return torch.are_deterministic_algorithms_enabled() and not _torch_only_warns()


def _torch_only_warns() -> bool:
    import torch

    warns_only: bool = torch.is_deterministic_algorithms_warn_only_enabled()
    return warns_only


# torch.compile would break the graph at the call inside, and recompile when the result has changed. This sets the
# attribute that torch.compiler.assume_constant_result sets, which would import the entire compiler.
_torch_only_warns._dynamo_marked_constant = True  # type: ignore[attr-defined]


def _must_repeat() -> bool:
    return switches.is_on(os.environ, "ASCEND_ADAPT_DETERMINISTIC")


def _unfit(backend: Backend, call: KernelCall) -> str:
    if not backend.deterministic and is_deterministic():
        return "it is not deterministic"
    try:
        implementation = backend.implementation()
    except ImportError as error:
        return f"it cannot be imported: {error}"
    return implementation.supports(call)


def _log_once(text: str) -> None:
    if text not in _logged:
        _logged.add(text)
        logger.info("ascend_adapt: %s", text)
