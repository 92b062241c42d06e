"""Arming: judges patches and applies them as soon as their targets are imported. Until then they are armed."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from types import ModuleType

from ascend_adapt import probe
from ascend_adapt.errors import PatchConflict, PatchDrift
from ascend_adapt.patches.apply import aliases
from ascend_adapt.patches.apply.aliases import Swaps, chain
from ascend_adapt.patches.apply.applier import Applier
from ascend_adapt.patches.apply.claims import Claims
from ascend_adapt.patches.apply.imports import ImportWatch
from ascend_adapt.patches.apply.providing import Provided, ProvidingFinder
from ascend_adapt.patches.apply.record import PatchRecord, as_reason
from ascend_adapt.patches.apply.third_party import ThirdPartyPatcher
from ascend_adapt.patches.declare.code_base import CodeBase
from ascend_adapt.patches.declare.spec import NotNeeded, Patch
from ascend_adapt.patches.judge import gate
from ascend_adapt.patches.judge.installation import ThisProcess, missing_module


class Arming:
    """Judges and applies patch records.

    ``watch`` knows which modules are imported. ``on_filled(record, state, reason)`` is called after the import of a
    provided module.
    """

    def __init__(
        self,
        device: str,
        hosts: Mapping[str, CodeBase],
        watch: ImportWatch,
        on_filled: Callable[[PatchRecord, str, str], None],
        others: Sequence[ThirdPartyPatcher] = (),
    ) -> None:
        self.device, self.hosts = device, hosts
        self.applier = Applier(others)
        self._claims = Claims()
        self._finder = ProvidingFinder()
        self._is_complete, self._on_filled = watch.is_complete, on_filled
        self._installation = ThisProcess(watch.is_complete, watch.has_begun)

    def claim(self, record: PatchRecord) -> None:
        """Register a record.

        Raises:
            PatchConflict: this and another admitted patch change the same place.
        """
        self._claims.claim(record, self._is_admitted)

    def forget(self, records: Collection[PatchRecord]) -> None:
        """Forget records that have been reverted."""
        self._claims.forget(records)

    def undo(self, records: Sequence[PatchRecord]) -> None:
        """Revert all applied patches of ``records``."""
        undo(records, self.applier, self._finder)

    def hosts_of(self, patch: Patch) -> tuple[CodeBase, ...]:
        """Return the code bases that a patch is limited to, or nothing if it is for all code."""
        return tuple(self.hosts[str(host)] for host in patch.hosts)

    def bring_up_to_date(self, record: PatchRecord) -> bool:
        """Judge one record again and apply it if possible. Return whether this call has applied it."""
        patch = record.patch
        verdict = self._judge(patch)
        record.found = verdict.found or record.found
        if verdict.admits is False:
            self.undo([record])
            record.set("skipped", verdict.reason)
            return False
        if patch.kind == "provide":
            self._provide(record, verdict.reason)
            return False
        if patch.host_script is not None:
            return False
        module = sys.modules.get(patch.target.module)
        if any(module is one.module and one.is_current() for one in record.applications):
            return False
        missing = missing_module(patch.target, self._is_complete) if module is None else ""
        if missing and verdict.admits:
            record.set("drifted", f"{patch.target}: {missing}")
            return False
        if module is None or verdict.admits is None:
            record.set("armed", verdict.reason)
            return False
        if not self._is_complete(patch.target.module):
            record.set("armed", f"{patch.target.module} is still being imported")
            return False
        return self._apply(record, module, verdict.reason)

    def _apply(self, record: PatchRecord, module: ModuleType, reason: str) -> bool:
        try:
            self._claims.refuse_second(record)
            application = self.applier.apply(record.patch, module)
        except NotNeeded as seen:
            record.set("not_needed", str(seen))
        except PatchDrift as drift:
            record.set("drifted", str(drift))
        except PatchConflict as conflict:
            record.set("failed", str(conflict))
            record.conflicts = True
        except Exception as error:  # an error in a patch must not break the import of the target
            record.set("failed", as_reason(error))
        else:
            record.applications.append(application)
            record.set("applied", "; ".join(filter(None, (reason, application.note))))
            return True
        return False

    def _provide(self, record: PatchRecord, reason: str) -> None:
        name = record.patch.target.module
        if self._finder.offers(record.registered):
            return
        found = not record.patch.instead and "." not in name and probe.find_root(name) is not None
        if name in sys.modules or found:
            record.set("not_needed", f"a real {name} exists")
            return
        fill = functools.partial(self._fill, record, reason)
        self._finder.offer(name, Provided(record.registered, self.hosts_of(record.patch), fill))
        record.set("armed", reason)

    def _fill(self, record: PatchRecord, reason: str, module: ModuleType) -> None:
        assert record.patch.function is not None  # provide() is a decorator, so the patch has a function
        try:
            record.patch.function(module)
        except Exception as error:
            self._on_filled(record, "failed", as_reason(error))
            # Raise the error that the import raises without the patch, because upstream may have a fallback.
            raise ModuleNotFoundError(f"No module named {module.__name__!r}", name=module.__name__) from error
        self._on_filled(record, "applied", reason)

    def _is_admitted(self, record: PatchRecord) -> bool:
        return record.state != "disabled" and bool(self._judge(record.patch).admits)

    def _judge(self, patch: Patch) -> gate.Verdict:
        return gate.judge(patch, self.device, self.hosts, self._installation)


def undo(records: Sequence[PatchRecord], applier: Applier, finder: ProvidingFinder) -> None:
    """Revert all applied patches of ``records``, and rebind aliases of their targets."""
    swaps: Swaps = {}
    homes: list[ModuleType] = []
    for record in reversed(records):
        patch = record.patch
        if patch.kind == "provide" and finder.offers(record.registered):
            finder.withdraw(record.registered)
            record.set("reverted", "")
        for application in reversed(record.applications):
            if not application.holds():
                record.set(
                    "lost", f"{patch.target} was changed by other code after the patch was applied, so it is left alone"
                )
                continue
            if application.is_below():
                record.set(
                    "lost",
                    f"left alone: it stays applied inside {application.replaced_by()}, which wrapped it later",
                )
                continue
            chain(swaps, applier.undo(application))
            homes.append(application.module)
            record.set("reverted", "" if patch.reversible else "its effects cannot be undone")
            try:
                if patch.undo is not None:
                    patch.undo()
            except Exception as error:  # the other patches are still reverted
                record.set("failed", f"its undo: {as_reason(error)}")
        record.applications.clear()
    if swaps:
        aliases.rebind(swaps, aliases.all_modules(), homes)
