"""enable(), disable() and status(): the only module that combines device probe, plugins and patches."""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from types import CodeType
from typing import TYPE_CHECKING, Any

from ascend_adapt.errors import EnableConflict, PluginError
from ascend_adapt.patches.declare.outcome import Outcome, Status

if TYPE_CHECKING:
    from ascend_adapt.patches.declare.spec import Registered
    from ascend_adapt.patches.session import Session
    from ascend_adapt.runtime.plugin_manager import PluginManager
    from ascend_adapt.runtime.settings import Settings

logger = logging.getLogger("ascend_adapt")


@dataclass
class _InForce:
    """State of the active enable() calls."""

    session: Session
    manager: PluginManager
    settings: Settings
    device: str
    device_reason: str
    caller: str
    programs: list[Any]


_lock = threading.RLock()
# A forked child must not inherit a lock that another thread holds, nor the unfinished work of that thread.
os.register_at_fork(before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release)
_in_force: _InForce | None = None
_is_beginning = False
_last = Status()


def enable(
    *,
    plugins: Iterable[Any] = (),
    disable: Iterable[str] = (),
    device: str | None = None,
    kernels: Mapping[str, str] | str | None = None,
    strict: bool | None = None,
    cuda_code: str | None = None,
) -> Status:
    """Enable all patches that apply in this process, and return the status.

    Imports no target: a patch is applied when its target is imported. A further call adds to earlier calls, including
    those of a launcher. With ASCEND_ADAPT=0, the call does nothing, and every patch is ``disabled``.

    Args:
        plugins: plugin modules or objects to add to the installed ones.
        disable: names of plugins or patches to disable.
        device: ``npu``, ``cuda`` or ``cpu`` instead of the detected device.
        kernels: kernel backends to use, such as ``{"attention": "npu"}``.
        strict: whether to raise an error for every patch that drifted, failed or was lost, and every unusable plugin.
        cuda_code: in which code "cuda" means the device of this host: ``auto`` (the script, and every package that does
            not support the device), ``script`` (the script and its modules), ``all`` (also packages that support the
            device) or ``off``.

    Raises:
        SettingsError: a value is invalid, or conflicts with an earlier call (EnableConflict, naming both callers).
        PluginError: a plugin in ``plugins`` cannot be used, or with ``strict`` any plugin.
        PatchError: two patches change the same place; a patch drifted or failed, and without it numbers are wrong; with
            ``strict``, any patch drifted, failed or was lost.
    """
    return _enable(
        plugins=plugins, disable=disable, device=device, kernels=kernels, strict=strict, cuda_code=cuda_code
    )[0]


def disable() -> Status:
    """Revert every patch, newest first, and return the status. Originals and aliases are the same objects as before."""
    global _in_force, _last
    with _lock:
        if _in_force is not None:
            for program in reversed(_in_force.programs):
                program.undo()
            _in_force.session.revert()
            if _in_force.settings.kernels is not None:
                _request(None)
            _extend_kernels(None)
            _last = _status_of(_in_force)
            _in_force = None
        return _last


def status() -> Status:
    """Return the status of all patches; after disable(), the status that it returned."""
    with _lock:
        return _status_of(_in_force) if _in_force is not None else _last


def check() -> None:
    """Raise the errors of patches that enable() would raise, in case an import has swallowed them."""
    with _lock:
        if _in_force is not None:
            _in_force.session.check()


def kernel_backends() -> dict[str, str]:
    """Return the backend chosen so far for each kind of kernel call, without importing kernels."""
    dispatch = sys.modules.get("ascend_adapt.kernels.dispatch")
    choices = dispatch.choices() if dispatch is not None else ()
    return {f"{choice.kernel} of {choice.call}": choice.backend for choice in choices}


def is_beginning() -> bool:
    """Return whether the first enable() is running in this thread. Its search for targets calls every import finder."""
    with _lock:
        return _is_beginning


def at_first_apply(callback: Callable[[], None]) -> None:
    """Call ``callback`` once, as soon as a patch has been applied."""
    with _lock:
        if _in_force is not None:
            _in_force.session.at_first_apply(callback)


def script_code(path: str, source: bytes) -> CodeType:
    """Return the code of the script that a launcher is about to run, rewritten by the patches that target it."""
    with _lock:
        if _in_force is not None:
            return _in_force.session.script_code(path, source)
    return compile(source, path, "exec", dont_inherit=True)


@contextmanager
def enabled(
    *,
    plugins: Iterable[Any] = (),
    disable: Iterable[str] = (),
    device: str | None = None,
    kernels: Mapping[str, str] | str | None = None,
    strict: bool | None = None,
    cuda_code: str | None = None,
) -> Iterator[Status]:
    """Context manager for enable(). Its exit undoes only the changes of this call."""
    current, undo = _enable(
        plugins=plugins, disable=disable, device=device, kernels=kernels, strict=strict, cuda_code=cuda_code
    )
    try:
        yield current
    finally:
        undo()


def _enable(**stated: Any) -> tuple[Status, Callable[[], object]]:
    """Enable patches as enable() does; return the status, and a function that undoes only this call."""
    from ascend_adapt.runtime import settings as settings_module

    global _in_force, _is_beginning, _last
    environ = os.environ
    with _lock:
        if _is_beginning:
            return status(), lambda: None
        if settings_module.is_off(environ):
            _last = _switched_off(settings_module.Settings(plugins=tuple(stated["plugins"])))
            return _last, lambda: None
        wanted = settings_module.resolve(environ, **stated)
        undo: Callable[[], object]
        if _in_force is None:
            _is_beginning = True
            try:
                _in_force, undo = _begin(wanted, environ, _caller()), disable
            finally:
                _is_beginning = False
        else:
            undo = _join(_in_force, wanted, _caller())
        current = status()
        if environ.get("RANK", "0") == "0":
            logger.info("ascend_adapt: %s (see ascend-adapt status)", current.summary())
        return current, undo


def _begin(wanted: Settings, environ: Mapping[str, str], caller: str) -> _InForce:
    from ascend_adapt import probe
    from ascend_adapt.patches.session import Session
    from ascend_adapt.runtime import code_bases, third_party_patchers
    from ascend_adapt.runtime.plugin_manager import PluginManager

    device, reason = probe.device_to_use(wanted.device, environ)
    if environ.get("ASCEND_ADAPT_EMULATED"):
        reason = "emulated on this host, no hardware"
    manager = PluginManager.of(wanted)
    patches = manager.patches()
    known, usable = manager.hosts(patches, code_bases.KNOWN)
    manager.check_names(wanted.disable, wanted.allowed_plugins, wanted.allow_drift)
    session = Session(
        device=device,
        hosts=known,
        strict=bool(wanted.strict),
        allow_drift=wanted.allow_drift,
        lock=_lock,
        others=third_party_patchers.KNOWN,
    )
    try:
        _extend_kernels(manager)
        _report_problems(manager.problems, wanted)
        if wanted.kernels is not None:
            _request(wanted.kernels)
        session.add(usable, wanted.disable)
        programs = manager.adapt_programs(device, wanted.cuda_code or "auto")
    except BaseException:
        session.revert()
        if wanted.kernels is not None:
            _request(None)
        _extend_kernels(None)
        raise
    return _InForce(session, manager, wanted, device, reason, caller, programs)


def _join(in_force: _InForce, wanted: Settings, caller: str) -> Callable[[], None]:
    """Add the request of a further call, and return the function that undoes it. Changes nothing if it raises."""
    stated = in_force.settings
    if wanted.device not in (None, in_force.device):
        _refuse(in_force, caller, f"device={wanted.device!r}", f"device {in_force.device!r} ({in_force.device_reason})")
    if wanted.strict is not None and stated.strict not in (None, wanted.strict):
        _refuse(in_force, caller, f"strict={wanted.strict}", f"strict={stated.strict}")
    if wanted.kernels is not None and stated.kernels not in (None, wanted.kernels):
        _refuse(in_force, caller, f"kernels={wanted.kernels}", f"kernels={stated.kernels}")
    if wanted.cuda_code not in (None, stated.cuda_code or "auto"):
        _refuse(in_force, caller, f"cuda_code={wanted.cuda_code!r}", f"cuda_code {stated.cuda_code or 'auto'!r}")
    joined = _Joined(in_force, len(in_force.manager.problems))
    try:
        joined.apply(wanted)
    except BaseException:
        joined.undo()
        raise
    return joined.undo


@dataclass
class _Joined:
    """Changes of one further enable() call, so that they can be undone alone."""

    in_force: _InForce
    known_problems: int
    stated: Settings | None = None
    """The settings before this call, if the call has changed them."""
    plugins: list[Any] = field(default_factory=list)
    silenced: set[str] = field(default_factory=set)
    disabled: dict[Registered, Outcome] = field(default_factory=dict)
    patches: list[Registered] = field(default_factory=list)

    def apply(self, wanted: Settings) -> None:
        manager, session = self.in_force.manager, self.in_force.session
        self.plugins = [plugin for plugin in wanted.plugins if not manager.has(plugin)]
        manager.add(self.plugins)
        manager.check_names(wanted.disable, ())
        usable = self._usable()
        self.silenced = set(wanted.disable) - manager.without_kernels
        manager.without_kernels |= self.silenced
        _extend_kernels(manager)
        _report_problems(manager.problems[self.known_problems :], wanted)
        now = self.in_force.settings
        joint = replace(
            now,
            strict=now.strict if wanted.strict is None else wanted.strict,
            kernels=now.kernels if wanted.kernels is None else wanted.kernels,
        )
        if joint != now:
            self.stated = now
            self._state(joint)
        self.disabled = session.disable(wanted.disable)
        self.patches = session.add(usable, wanted.disable)
        session.refresh()

    def undo(self) -> None:
        with _lock:
            if self.in_force is not _in_force:
                return  # disable() was called in the meantime
            self.in_force.session.forget(self.patches)
            self.in_force.manager.remove(self.plugins)
            self.in_force.manager.without_kernels -= self.silenced
            self._usable()
            _extend_kernels(self.in_force.manager)
            del self.in_force.manager.problems[self.known_problems :]
            if self.stated is not None:
                self._state(self.stated)
            self.in_force.session.enable_again(self.disabled)

    def _usable(self) -> list[Registered]:
        from ascend_adapt.runtime import code_bases

        manager = self.in_force.manager
        self.in_force.session.hosts, usable = manager.hosts(manager.patches(), code_bases.KNOWN)
        return usable

    def _state(self, settings: Settings) -> None:
        if settings.kernels != self.in_force.settings.kernels:
            _request(settings.kernels)
        self.in_force.settings, self.in_force.session.strict = settings, bool(settings.strict)


def _extend_kernels(manager: PluginManager | None) -> None:
    """Register the kernel backends of plugins, or none. Kernels are imported only if a plugin has backends."""
    if (manager is not None and manager.extends_kernels) or "ascend_adapt.kernels.dispatch" in sys.modules:
        from ascend_adapt.kernels import dispatch

        dispatch.register(manager.kernels(dispatch.unusable) if manager is not None else ())


def _request(kernels: Mapping[str, str] | None) -> None:
    """Select the requested kernel backends, or undo the selection for None. Imports kernels."""
    from ascend_adapt.kernels import dispatch

    dispatch.request(kernels)


def _refuse(in_force: _InForce, caller: str, requested: str, fact: str) -> None:
    raise EnableConflict(
        f"enable({requested}) at {caller}: {fact} has been active since enable() at {in_force.caller} — "
        "pass it in the first call, or call disable() in between"
    )


def _report_problems(problems: Iterable[str], wanted: Settings) -> None:
    own = {getattr(plugin, "__name__", type(plugin).__name__) for plugin in wanted.plugins}
    for problem in problems:
        if wanted.strict or any(problem.startswith(f"plugin {name!r}:") for name in own):
            raise PluginError(problem)
        logger.warning("ascend_adapt: %s", problem)


def _switched_off(wanted: Settings) -> Status:
    from ascend_adapt.runtime.plugin_manager import PluginManager

    patches = PluginManager.of(wanted).patches()
    return Status(tuple(one.outcome("disabled", "ASCEND_ADAPT=0") for one in patches))


def _status_of(in_force: _InForce) -> Status:
    from ascend_adapt.runtime import third_party_patchers

    return Status(
        in_force.session.outcomes(),
        in_force.device,
        in_force.device_reason,
        tuple(in_force.manager.problems),
        third_party_patchers.active(),
        tuple(filter(None, (program.describe() for program in in_force.programs))),
    )


def _caller() -> str:
    """Return the caller of enable() as ``file:line``."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__") in (__name__, "contextlib"):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"
