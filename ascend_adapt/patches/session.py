"""Session: arms patches, applies them when their targets are imported, and reverts them."""

from __future__ import annotations

import ast
import os
import sys
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from types import CodeType, ModuleType
from typing import Any

from ascend_adapt.patches.apply.arming import Arming
from ascend_adapt.patches.apply.imports import ImportWatch
from ascend_adapt.patches.apply.rebinding import follow
from ascend_adapt.patches.apply.record import PatchRecord
from ascend_adapt.patches.apply.script import rewrite_script
from ascend_adapt.patches.apply.third_party import ThirdPartyPatcher
from ascend_adapt.patches.declare.code_base import CodeBase
from ascend_adapt.patches.declare.outcome import Outcome
from ascend_adapt.patches.declare.spec import Patch, Registered


class Session:
    """All patches of this process.

    ``hosts`` maps the names in ``host=`` to code bases. ``allow_drift`` has the names of patches whose drift or failure
    never raises an error. ``lock`` is a reentrant lock that is shared with the owner. ``others`` are third-party
    patchers.
    """

    def __init__(
        self,
        *,
        device: str,
        hosts: Mapping[str, CodeBase],
        strict: bool = False,
        allow_drift: Iterable[str] = (),
        lock: AbstractContextManager[Any] | None = None,
        others: Sequence[ThirdPartyPatcher] = (),
    ) -> None:
        self.strict = strict
        self.allow_drift = frozenset(allow_drift)
        self._records: list[PatchRecord] = []
        self._on_apply: list[Callable[[], None]] = []
        self._by_module: dict[str, list[PatchRecord]] = {}
        self._watch = ImportWatch(self._on_import)
        self._arming = Arming(device, hosts, self._watch, self._on_filled, others)
        self._lock = lock or threading.RLock()

    @property
    def hosts(self) -> Mapping[str, CodeBase]:
        """Code bases by name. Further plugins may add code bases."""
        return self._arming.hosts

    @hosts.setter
    def hosts(self, hosts: Mapping[str, CodeBase]) -> None:
        self._arming.hosts = hosts

    def add(self, registered: Iterable[Registered], disabled: Iterable[str] = ()) -> list[Registered]:
        """Add and judge patches. Patches whose target is already imported are applied, and the others are armed.

        Patches named in ``disabled`` are skipped. Returns the patches that were not yet in the session.

        Raises:
            PatchConflict: two admitted patches change the same location.
            PatchDrift, PatchFailed: as in ``refresh``; in this case no new patch is applied.
        """
        with self._lock:
            known = {record.registered for record in self._records}
            new = [PatchRecord(one) for one in registered if one not in known]
            self._records += new
            try:
                self._disable(record for record in new if record.registered.is_named(disabled))
                roots = [root for record in new for host in self._arming.hosts_of(record.patch) for root in host.roots]
                self._watch.watch((), roots)
                for record in new:
                    self._arming.claim(record)
                    for name in _watched_names(record.patch, self._arming.hosts_of(record.patch)):
                        self._by_module.setdefault(name, []).append(record)
                self._watch.watch(self._by_module)
                self._consider(new)
            except BaseException:
                self._forget(new)
                raise
            return [record.registered for record in new]

    def forget(self, registered: Iterable[Registered]) -> None:
        """Revert or disarm patches and remove them from the session."""
        with self._lock:
            self._forget(self._records_of(registered))

    def disable(self, names: Iterable[str]) -> dict[Registered, Outcome]:
        """Revert or disarm the patches and plugins with these names; return their previous outcomes."""
        with self._lock:
            named = [record for record in self._records if record.registered.is_named(names)]
            chosen = [record for record in named if record.state != "disabled"]
            before = {record.registered: record.outcome() for record in chosen}
            self._disable(chosen)
            return before

    def enable_again(self, before: Mapping[Registered, Outcome]) -> None:
        """Restore the outcomes that ``disable`` returned. Wraps that were added since then stay outermost."""
        with self._lock:
            chosen = self._records_of(before)
            targets = {record.patch.target for record in chosen}
            in_force = [record for record in self._records if record.applications and not record.is_lost()]
            above = [record for record in in_force if record.patch.target in targets]
            before = {**before, **{record.registered: record.outcome() for record in above}}
            self._arming.undo(above)
            again = self._records_of(before)
            for record in again:
                record.set("armed", "")
            self._consider(again)
            for record in again:
                if record.state == before[record.registered].state:
                    record.reason = before[record.registered].reason

    def refresh(self) -> None:
        """Judge every patch again, and reapply lost patches.

        Raises:
            PatchDrift, PatchFailed, PatchLost: a patch drifted, failed or was lost, and without it numbers are wrong,
            or
                the session is strict.
        """
        with self._lock:
            for record in self._records:
                if record.is_lost():
                    record.applications = [one for one in record.applications if one.holds()]
                    record.set("armed", "")
            self._consider(self._records)

    def check(self) -> None:
        """Raise the errors of ``refresh`` without judging again, in case an import has swallowed them.

        Raises:
            PatchDrift, PatchFailed, PatchLost, PatchConflict: as in ``refresh``.
            AdaptError: a callback of ``at_first_apply`` raised this error again.
        """
        with self._lock:
            if any(record.state == "applied" for record in self._records):
                self._notify_applied()
            self._raise_grave(self._records)

    def revert(self) -> None:
        """Revert every patch, newest first, disarm the rest, and end the session."""
        with self._lock:
            self._watch.stop()
            self._arming.undo(self._records)
            for record in self._records:
                if record.state == "armed":
                    record.set("reverted", "was armed, but its target was never imported")

    def script_code(self, path: str, source: bytes) -> CodeType:
        """Return the code of a script that is about to run as ``__main__``, rewritten by the patches that target it.

        Raises:
            SyntaxError: the script does not parse.
            PatchDrift, PatchFailed: as in ``refresh``.
        """
        with self._lock:
            named = [record for record in self._records if record.patch.host_script == os.path.basename(path)]
            named = [record for record in named if record.state == "armed"]
            tree = ast.parse(source, path)
            for record in named:
                rewrite_script(record, self._arming.hosts_of(record.patch), path, tree)
            self._raise_grave(named)
            return compile(tree, path, "exec", dont_inherit=True)

    def at_first_apply(self, callback: Callable[[], None]) -> None:
        """Call ``callback`` once, now or as soon as a patch is applied. If it raises, it is called again later."""
        with self._lock:
            if any(record.state == "applied" for record in self._records):
                callback()
            else:
                self._on_apply.append(callback)

    def outcomes(self) -> tuple[Outcome, ...]:
        """Return the current outcome of every patch, and log lost patches."""
        with self._lock:
            outcomes = tuple(record.outcome() for record in self._records)
            for record in self._records:
                record.log_loss(self.allow_drift)
            return outcomes

    # Import events

    def _on_import(self, name: str) -> None:
        with self._lock:
            self._consider(self._by_module.get(name, ()), imported=sys.modules.get(name))

    def _on_filled(self, record: PatchRecord, state: str, reason: str) -> None:
        with self._lock:
            record.set(state, reason)
            if record.state == "applied":
                self._notify_applied()
            self._raise_grave([record])

    def _consider(self, records: Iterable[PatchRecord], imported: ModuleType | None = None) -> None:
        """Bring records up to date, for example after the import of a module."""
        touched = [record for record in records if record.state not in ("disabled", "reverted")]
        changed = [record for record in touched if self._arming.bring_up_to_date(record)]
        follow(self._arming.applier, changed, imported)
        if any(record.state == "applied" for record in touched):
            self._notify_applied()
        self._raise_grave(touched)

    # Undoing

    def _disable(self, records: Iterable[PatchRecord]) -> None:
        chosen = list(records)
        self._arming.undo(chosen)
        for record in chosen:
            record.set("disabled", "by the user")

    def _forget(self, records: Sequence[PatchRecord]) -> None:
        self._arming.undo(records)
        gone = set(records)
        self._arming.forget(gone)
        for known in (self._records, *self._by_module.values()):
            known[:] = [record for record in known if record not in gone]

    def _records_of(self, registered: Iterable[Registered]) -> list[PatchRecord]:
        wanted = set(registered)
        return [record for record in self._records if record.registered in wanted]

    # Notifications

    def _notify_applied(self) -> None:
        while self._on_apply:
            callback = self._on_apply.pop()
            try:
                callback()
            except BaseException:
                self._on_apply.append(callback)  # the importing code may swallow the error, so call it again later
                raise

    def _raise_grave(self, records: Iterable[PatchRecord]) -> None:
        for record in records:
            record.raise_grave(self.strict, self.allow_drift)


def _watched_names(patch: Patch, hosts: Iterable[CodeBase]) -> tuple[str, ...]:
    if patch.kind == "provide" or patch.target.module == "__main__":
        return ()
    # The version of a parent package is known once its import is complete.
    # The code base of a shared target may become importable later, when a script adds a path.
    of_hosts = [name for host in hosts for name in (*host.roots, host.module) if name]
    return tuple(dict.fromkeys([*patch.target.packages, *of_hosts]))
