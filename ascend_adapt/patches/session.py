"""The session: arms patches, applies them as their targets are imported, and can take all of them back."""

from __future__ import annotations

import ast
import os
import sys
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, ModuleType

from ascend_adapt import probe
from ascend_adapt.errors import AdaptError, PatchConflict, PatchDrift, PatchFailed, PatchLost
from ascend_adapt.patches import aliases, gate, syntax
from ascend_adapt.patches.applying import Application, Applier
from ascend_adapt.patches.host import Host
from ascend_adapt.patches.imports import ImportWatch
from ascend_adapt.patches.installation import ThisProcess
from ascend_adapt.patches.outcome import Outcome
from ascend_adapt.patches.providing import Provided, ProvidingFinder
from ascend_adapt.patches.rewriting import rewrite_definition
from ascend_adapt.patches.spec import NotNeeded, Patch, Registered


@dataclass
class _Record:
    """What has become of one patch so far; ``applications`` has one entry for each import of the target."""

    registered: Registered
    state: str = "armed"
    reason: str = ""
    found: str = ""
    applications: list[tuple[ModuleType, Application]] = field(default_factory=list)

    @property
    def patch(self) -> Patch:
        return self.registered.patch

    def set(self, state: str, reason: str) -> None:
        self.state, self.reason = state, reason


class Session:
    """All patches of this process.

    ``hosts`` resolves the names that patches give as ``host=``; ``allow_drift`` names patches whose drift or failure
    never raises.
    """

    def __init__(
        self, *, device: str, hosts: Mapping[str, Host], strict: bool = False, allow_drift: Iterable[str] = ()
    ) -> None:
        self.device, self.hosts, self.strict = device, dict(hosts), strict
        self.allow_drift = frozenset(allow_drift)
        self._records: list[_Record] = []
        self._on_apply: list[Callable[[], None]] = []
        self._by_module: dict[str, list[_Record]] = {}
        self._applier = Applier()
        self._finder = ProvidingFinder()
        self._watch = ImportWatch(self._on_import, self._on_any_import)
        self._installation = ThisProcess(self._watch.is_complete)
        self._lock = threading.RLock()

    def add(self, registered: Iterable[Registered], disabled: Iterable[str] = ()) -> None:
        """Take in patches: judge them, apply those whose target is imported already, arm the others.

        Raises:
            PatchConflict: two patches that both are right for what is installed exclude each other.
            PatchDrift, PatchFailed: as in ``check``.
        """
        with self._lock:
            new = [_Record(one) for one in registered]
            self._records += new
            self.disable(disabled)
            self._refuse_conflicts()
            for record in new:
                for name in _watched_names(record.patch):
                    self._by_module.setdefault(name, []).append(record)
            self._watch.watch(self._by_module)
            self._consider(new, late=True)

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
                    record.applications.clear()
                    record.set("armed", "")
            self._consider(self._records, late=True)

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
            self._on_any_import()
            return tuple(self._outcome(record) for record in self._records)

    # Import events

    def _on_import(self, module: ModuleType) -> None:
        with self._lock:
            self._consider(self._by_module[module.__name__], late=False)

    def _on_any_import(self) -> None:
        with self._lock:
            if self._watch.waiting:
                self._watch.waiting = False
                self._consider([record for record in self._records if record.state == "armed"], late=True)

    # Judging and applying

    def _consider(self, records: Iterable[_Record], late: bool) -> None:
        changed: list[tuple[_Record, ModuleType]] = []
        touched = [record for record in records if record.state not in ("disabled", "reverted")]
        for record in touched:
            module = self._consider_one(record)
            if module is not None:
                changed.append((record, module))
        self._follow_aliases(changed, late)
        if any(record.state == "applied" for record in touched):
            while self._on_apply:
                self._on_apply.pop()()
        self._raise_worst(touched)

    def _consider_one(self, record: _Record) -> ModuleType | None:
        """Bring one record up to date; return the module if it was applied just now."""
        patch = record.patch
        verdict = gate.judge(patch, self.device, self.hosts, self._installation)
        record.found = verdict.found or record.found
        if verdict.admits is False:
            self._revert([record])
            record.set("skipped", verdict.reason)
            return None
        if patch.kind == "provide":
            self._provide(record, verdict)
            return None
        if patch.host_script is not None:
            return None
        module = sys.modules.get(patch.target.module)
        if any(module is known for known, _ in record.applications):
            return None
        if module is None or verdict.admits is None:
            record.set("armed", verdict.reason)
            return None
        if not self._watch.is_complete(module):
            self._watch.waiting = True
            record.set("armed", f"{patch.target.module} is still being imported")
            return None
        try:
            application = self._applier.apply(patch, module)
        except NotNeeded as reason:
            record.set("not_needed", str(reason))
        except PatchDrift as drift:
            record.set("drifted", str(drift))
        except Exception as error:  # whatever it is, it must not break the target's import by itself
            record.set("failed", str(error) if isinstance(error, AdaptError) else f"{type(error).__name__}: {error}")
        else:
            record.applications.append((module, application))
            record.set("applied", verdict.reason)
            return module
        return None

    def _provide(self, record: _Record, verdict: gate.Verdict) -> None:
        name = record.patch.target.module
        if name in self._finder.provided:
            return
        real = name in sys.modules or ("." not in name and probe.find_root(name) is not None)
        if real:
            record.set("not_needed", f"a real {name} is there")
            return

        def on_import(module: ModuleType) -> None:
            record.set("applied", verdict.reason)

        host = self.hosts[str(record.patch.host)] if record.patch.host is not None else None
        self._finder.offer(name, Provided(record.registered, host, on_import))
        record.set("armed", verdict.reason)

    def _follow_aliases(self, changed: Sequence[tuple[_Record, ModuleType]], late: bool) -> None:
        swaps: dict[int, tuple[object, object]] = {}
        for record, _ in changed:
            swaps.update(record.applications[-1][1].swaps)
        if not swaps:
            return
        homes = {module.__name__: module for _, module in changed}
        # After an import only modules that entered sys.modules during it can hold a copy.
        modules = aliases.all_modules() if late else [m for name in homes for m in aliases.modules_after(name)]
        aliases.rebind(swaps, modules, homes.values())
        if late:
            self._tell_out_of_reach(changed, swaps)

    def _tell_out_of_reach(
        self, changed: Sequence[tuple[_Record, ModuleType]], swaps: Mapping[int, tuple[object, object]]
    ) -> None:
        ours = [*self._applier.holders(), *swaps.values()]
        held = aliases.out_of_reach([old for old, _ in swaps.values()], ours)
        for record, _ in changed:
            holders = [text for key in record.applications[-1][1].swaps for text in held.get(key, ())]
            if holders:
                told = f"applied after its import; {len(holders)} places keep the original: {', '.join(holders)}"
                record.reason = f"{record.reason}; {told}" if record.reason else told

    def _refuse_conflicts(self) -> None:
        exclusive: dict[str, Registered] = {}
        for record in self._records:
            patch = record.patch
            if patch.kind not in ("replace", "rewrite") or record.state == "disabled":
                continue
            if not gate.judge(patch, self.device, self.hosts, self._installation).admits:
                continue
            other = exclusive.setdefault(str(patch.target), record.registered)
            if other is not record.registered:
                raise PatchConflict(
                    f"{patch.target}: {other} and {record.registered} both change it, expected one of them — "
                    f"disable the other by name"
                )

    # Undoing

    def _revert(self, records: Iterable[_Record]) -> None:
        swaps: dict[int, tuple[object, object]] = {}
        homes: list[ModuleType] = []
        for record in reversed(list(records)):
            if record.patch.kind == "provide" and record.patch.target.module in self._finder.provided:
                self._finder.withdraw(record.patch.target.module)
                record.set("reverted", "")
            for module, application in reversed(record.applications):
                if not application.holds():
                    record.set("lost", f"{record.patch.target} was changed by somebody else after apply; left alone")
                    continue
                # What an earlier step rebinds to may be rebound again by a later one.
                undone = application.undo()
                for key, (old, new) in swaps.items():
                    swaps[key] = (old, undone[id(new)][1] if id(new) in undone else new)
                swaps.update(undone)
                homes.append(module)
                record.set("reverted", "" if record.patch.reversible else "what it did cannot be undone")
            record.applications.clear()
        if swaps:
            aliases.rebind(swaps, aliases.all_modules(), homes)

    # Telling

    def _is_lost(self, record: _Record) -> bool:
        if record.state != "applied" or not record.applications:
            return record.state == "lost"
        module, application = record.applications[-1]
        return sys.modules.get(record.patch.target.module) is not module or not application.holds()

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


def _watched_names(patch: Patch) -> tuple[str, ...]:
    if patch.kind == "provide" or patch.target.module == "__main__":
        return ()
    # The packages above the target tell versions once their own import is complete.
    return patch.target.packages


def _is_named(registered: Registered, names: Iterable[str]) -> bool:
    own = (registered.name, registered.plugin, f"{registered.plugin}.{registered.name}")
    return any(name in own for name in names)
