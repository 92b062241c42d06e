"""The session: arms patches, applies them as their targets are imported, and can take all of them back."""

from __future__ import annotations

import ast
import os
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from ascend_adapt import probe
from ascend_adapt.errors import AdaptError, PatchConflict, PatchDrift, PatchFailed, PatchLost
from ascend_adapt.patches import aliases, gate, syntax
from ascend_adapt.patches.applying import Application, Applier, Swaps, chain
from ascend_adapt.patches.host import Host
from ascend_adapt.patches.imports import ImportWatch
from ascend_adapt.patches.installation import ThisProcess
from ascend_adapt.patches.outcome import Outcome
from ascend_adapt.patches.providing import Provided, ProvidingFinder
from ascend_adapt.patches.rewriting import rewrite_definition
from ascend_adapt.patches.spec import NotNeeded, Patch, Registered


@dataclass(eq=False)
class _Record:
    """What has become of one patch so far; ``applications`` has one entry for each import of the target."""

    registered: Registered
    state: str = "armed"
    reason: str = ""
    found: str = ""
    applications: list[Application] = field(default_factory=list)

    @property
    def patch(self) -> Patch:
        return self.registered.patch

    def set(self, state: str, reason: str) -> None:
        self.state, self.reason = state, reason


class Session:
    """All patches of this process.

    ``hosts`` resolves the names that patches give as ``host=``; ``allow_drift`` names patches whose drift or failure
    never raises; ``lock`` (reentrant) guards the session where its owner has one already.
    """

    def __init__(
        self,
        *,
        device: str,
        hosts: Mapping[str, Host],
        strict: bool = False,
        allow_drift: Iterable[str] = (),
        lock: AbstractContextManager[Any] | None = None,
    ) -> None:
        self.device, self.hosts, self.strict = device, dict(hosts), strict
        self.allow_drift = frozenset(allow_drift)
        self._records: list[_Record] = []
        self._on_apply: list[Callable[[], None]] = []
        self._by_module: dict[str, list[_Record]] = {}
        self._rivals: dict[str, list[_Record]] = {}
        self._applier = Applier()
        self._finder = ProvidingFinder()
        self._watch = ImportWatch(self._on_import)
        self._installation = ThisProcess(self._watch.is_complete)
        self._lock = lock or threading.RLock()

    def add(self, registered: Iterable[Registered], disabled: Iterable[str] = ()) -> None:
        """Take in patches: judge them, apply those whose target is imported already, arm the others.

        Raises:
            PatchConflict: two patches that both are right for what is installed exclude each other.
            PatchDrift, PatchFailed: as in ``check``; none of the new patches is in force then.
        """
        with self._lock:
            new = [_Record(one) for one in registered]
            self._records += new
            try:
                self.disable(disabled)
                self._refuse_conflicts(new)
                for record in new:
                    for name in _watched_names(record.patch):
                        self._by_module.setdefault(name, []).append(record)
                self._watch.watch(self._by_module)
                self._consider(new)
            except BaseException:
                self._forget(new)
                raise

    def has(self, registered: Registered) -> bool:
        """Return whether this patch has been taken in."""
        return any(record.registered == registered for record in self._records)

    def disable(self, names: Iterable[str]) -> None:
        """Revert or disarm the patches and plugins with these names, for good."""
        with self._lock:
            chosen = [record for record in self._records if _is_named(record.registered, names)]
            self._revert(chosen)
            for record in chosen:
                record.set("disabled", "by the user")

    def refresh(self) -> None:
        """Judge every patch again, and apply again what was lost."""
        with self._lock:
            for record in self._records:
                if self._is_lost(record):
                    record.applications = [one for one in record.applications if one.holds()]
                    record.set("armed", "")
            self._consider(self._records)

    def revert(self) -> None:
        """Undo every patch, newest first, and disarm the rest; the session is over."""
        with self._lock:
            self._watch.stop()
            self._revert(self._records)
            for record in self._records:
                if record.state == "armed":
                    record.set("reverted", "was armed, its target was never imported")

    def check(self) -> None:
        """Raise for what must not be passed over.

        Raises:
            PatchDrift, PatchFailed, PatchLost: a patch drifted, failed or was lost, and it is one whose absence gives
                wrong numbers, or the session is strict.
        """
        with self._lock:
            self._raise_worst(self._records)

    def script_code(self, path: str, source: bytes) -> CodeType:
        """Return the code of a script that is about to run as ``__main__``, rewritten by the patches that name it.

        Raises:
            SyntaxError: the script does not parse.
            PatchDrift, PatchFailed: as in ``check``.
        """
        with self._lock:
            named = [record for record in self._records if record.patch.host_script == os.path.basename(path)]
            named = [record for record in named if record.state == "armed"]
            tree = ast.parse(source, path)
            for record in named:
                self._rewrite_script(record, path, tree)
            self._raise_worst(named)
            return compile(tree, path, "exec", dont_inherit=True)

    def _rewrite_script(self, record: _Record, path: str, tree: ast.Module) -> None:
        patch = record.patch
        foreign = self.hosts[str(patch.host)].owns(Path(path).resolve().parent) if patch.host is not None else ""
        if foreign:
            record.set("skipped", f"is for {patch.host}: {foreign}")
            return
        found = syntax.find(tree, patch.target.path)
        try:
            if len(found) != 1:
                raise PatchDrift(f"{patch.target}: expected one definition in {path}, found {len(found)}")
            rewrite_definition(patch, found[0])
        except NotNeeded as reason:
            record.set("not_needed", str(reason))
        except AdaptError as drift:
            record.set("drifted", str(drift))
        else:
            record.set("applied", f"in {path}, before it ran")

    def at_first_apply(self, callback: Callable[[], None]) -> None:
        """Call ``callback`` once, now or as soon as a patch has been applied."""
        with self._lock:
            if any(record.state == "applied" for record in self._records):
                callback()
            else:
                self._on_apply.append(callback)

    def outcomes(self) -> tuple[Outcome, ...]:
        """Return the state of every patch now."""
        with self._lock:
            return tuple(self._outcome(record) for record in self._records)

    # Import events

    def _on_import(self, name: str) -> None:
        with self._lock:
            self._consider(self._by_module.get(name, ()), imported=sys.modules.get(name))

    # Judging and applying

    def _consider(self, records: Iterable[_Record], imported: ModuleType | None = None) -> None:
        """Bring records up to date, because the import of a module has just ended or for another reason."""
        touched = [record for record in records if record.state not in ("disabled", "reverted")]
        changed = [record for record in touched if self._consider_one(record)]
        self._follow_aliases(changed, imported)
        if any(record.state == "applied" for record in touched):
            self._tell_applied()
        self._raise_worst(touched)

    def _consider_one(self, record: _Record) -> bool:
        """Bring one record up to date; return whether it was applied just now."""
        patch = record.patch
        verdict = gate.judge(patch, self.device, self.hosts, self._installation)
        record.found = verdict.found or record.found
        if verdict.admits is False:
            self._revert([record])
            record.set("skipped", verdict.reason)
            return False
        if patch.kind == "provide":
            self._provide(record, verdict)
            return False
        if patch.host_script is not None:
            return False
        module = sys.modules.get(patch.target.module)
        if any(module is one.module and one.is_current() for one in record.applications):
            return False
        if module is None or verdict.admits is None:
            record.set("armed", verdict.reason)
            return False
        if not self._watch.is_complete(patch.target.module):
            record.set("armed", f"{patch.target.module} is still being imported")
            return False
        try:
            self._refuse_rival(record)
            application = self._applier.apply(patch, module)
        except NotNeeded as reason:
            record.set("not_needed", str(reason))
        except PatchDrift as drift:
            record.set("drifted", str(drift))
        except Exception as error:  # whatever it is, it must not break the target's import by itself
            record.set("failed", str(error) if isinstance(error, AdaptError) else f"{type(error).__name__}: {error}")
        else:
            record.applications.append(application)
            record.set("applied", verdict.reason)
            return True
        return False

    def _provide(self, record: _Record, verdict: gate.Verdict) -> None:
        name = record.patch.target.module
        if name in self._finder.provided:
            return
        real = name in sys.modules or ("." not in name and probe.find_root(name) is not None)
        if real:
            record.set("not_needed", f"a real {name} is there")
            return

        def fill(module: ModuleType) -> None:
            self._fill(record, verdict.reason, module)

        host = self.hosts[str(record.patch.host)] if record.patch.host is not None else None
        self._finder.offer(name, Provided(record.registered, host, fill))
        record.set("armed", verdict.reason)

    def _fill(self, record: _Record, reason: str, module: ModuleType) -> None:
        assert record.patch.function is not None
        try:
            record.patch.function(module)
        except Exception as error:
            with self._lock:
                record.set("failed", f"{type(error).__name__}: {error}")
                self._raise_worst([record])
            # Missing, as it is without the patch: upstream may know what to do then.
            raise ModuleNotFoundError(f"No module named {module.__name__!r}", name=module.__name__) from error
        with self._lock:
            record.set("applied", reason)
            self._tell_applied()

    def _tell_applied(self) -> None:
        while self._on_apply:
            self._on_apply.pop()()

    def _follow_aliases(self, changed: Sequence[_Record], imported: ModuleType | None) -> None:
        applications = [record.applications[-1] for record in changed]
        swaps: Swaps = {}
        for application in applications:
            if application.is_borrowed:
                self._follow_in_borrower(application)
            else:
                chain(swaps, application.swaps)
        self._applier.follow(swaps)
        if not swaps:
            return
        homes = {application.module.__name__: application.module for application in applications}
        if imported is not None and all(
            getattr(old, "__module__", None) == imported.__name__ for old, _ in swaps.values()
        ):
            # Only modules that entered sys.modules after it can hold a copy of what it defines.
            modules = aliases.modules_after(imported.__name__)
        else:
            modules = aliases.all_modules()
        aliases.rebind(swaps, modules, homes.values())
        if imported is None:
            self._tell_out_of_reach(changed, swaps)

    def _follow_in_borrower(self, application: Application) -> None:
        """What a module took over from another package is patched for its own package only."""
        if isinstance(application.place.owner, ModuleType):
            root = f"{application.patch.target.root}."
            own = [module for module in aliases.all_modules() if f"{module.__name__}.".startswith(root)]
            aliases.rebind(application.swaps, own, [application.module])

    def _tell_out_of_reach(self, changed: Sequence[_Record], swaps: Swaps) -> None:
        held = aliases.out_of_reach(swaps, self._applier.holders())
        for record in changed:
            holders = [text for key in record.applications[-1].swaps for text in held.get(key, ())]
            if holders:
                kinds = ", ".join(f"{kind} ({n} times)" if n > 1 else kind for kind, n in Counter(holders).items())
                told = f"applied after its import; {len(holders)} places keep the original: {kinds}"
                record.reason = f"{record.reason}; {told}" if record.reason else told

    def _refuse_conflicts(self, new: Iterable[_Record]) -> None:
        """Refuse new patches that are right here and exclude one another, or one that is here already."""
        for record in new:
            key = _exclusive_place(record.patch)
            if not key:
                continue
            rivals = self._rivals.setdefault(key, [])
            if self._is_admitted(record):
                for other in filter(self._is_admitted, rivals):
                    raise PatchConflict(_conflict(other, record))
            rivals.append(record)

    def _is_admitted(self, record: _Record) -> bool:
        return record.state != "disabled" and bool(
            gate.judge(record.patch, self.device, self.hosts, self._installation).admits
        )

    def _refuse_rival(self, record: _Record) -> None:
        """Refuse what only now, with the versions known, excludes a patch that is applied."""
        for other in self._rivals.get(_exclusive_place(record.patch), ()):
            if other is not record and any(application.is_current() for application in other.applications):
                raise PatchConflict(_conflict(other, record))

    # Undoing

    def _revert(self, records: Iterable[_Record]) -> None:
        swaps: Swaps = {}
        homes: list[ModuleType] = []
        for record in reversed(list(records)):
            if record.patch.kind == "provide" and record.patch.target.module in self._finder.provided:
                self._finder.withdraw(record.patch.target.module)
                record.set("reverted", "")
            for application in reversed(record.applications):
                if not application.holds():
                    record.set("lost", f"{record.patch.target} was changed by somebody else after apply; left alone")
                    continue
                chain(swaps, self._applier.undo(application))
                homes.append(application.module)
                record.set("reverted", "" if record.patch.reversible else "what it did cannot be undone")
            record.applications.clear()
        if swaps:
            aliases.rebind(swaps, aliases.all_modules(), homes)

    def _forget(self, records: Sequence[_Record]) -> None:
        self._revert(records)
        for known in (self._records, *self._by_module.values(), *self._rivals.values()):
            known[:] = [record for record in known if record not in records]

    # Telling

    def _is_lost(self, record: _Record) -> bool:
        if record.state != "applied" or not record.applications:
            return record.state == "lost"
        application = record.applications[-1]
        return sys.modules.get(record.patch.target.module) is not application.module or not application.is_current()

    def _outcome(self, record: _Record) -> Outcome:
        if record.state == "applied" and self._is_lost(record):
            record.set("lost", f"{record.patch.target} was reloaded or replaced after apply")
        return Outcome(
            patch=record.registered.name,
            plugin=record.registered.plugin,
            target=str(record.patch.target),
            state=record.state,
            reason=record.reason,
            requires=gate.requirement_text(record.patch),
            found=record.found,
            reversible=record.patch.reversible,
        )

    def _raise_worst(self, records: Iterable[_Record]) -> None:
        for record in records:
            outcome = self._outcome(record)
            error = _ERRORS.get(outcome.state)
            grave = self.strict or (record.patch.without == "wrong numbers" and outcome.state != "lost")
            if error is not None and grave and not _is_named(record.registered, self.allow_drift):
                raise error(
                    f"{record.registered} {outcome.state}: {outcome.reason} — without it: {record.patch.without} "
                    f"({record.patch.why}); --allow-drift {record.registered.name} goes on without"
                )


_ERRORS: dict[str, type[AdaptError]] = {"drifted": PatchDrift, "failed": PatchFailed, "lost": PatchLost}


def _exclusive_place(patch: Patch) -> str:
    """What only one patch may change, or ``""``."""
    if patch.kind == "entry":
        return f"{patch.target}[{patch.key!r}]"
    return str(patch.target) if patch.kind in ("replace", "rewrite") else ""


def _conflict(one: _Record, other: _Record) -> str:
    place = _exclusive_place(one.patch)
    return f"{place}: {one.registered} and {other.registered} both change it, expected one of them — disable the other"


def _watched_names(patch: Patch) -> tuple[str, ...]:
    if patch.kind == "provide" or patch.target.module == "__main__":
        return ()
    # The packages above the target tell versions once their own import is complete.
    return patch.target.packages


def _is_named(registered: Registered, names: Iterable[str]) -> bool:
    own = (registered.name, registered.plugin, f"{registered.plugin}.{registered.name}")
    return any(name in own for name in names)
