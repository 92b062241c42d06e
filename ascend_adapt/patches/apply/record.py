"""The record of one patch: its state so far, and what of that must not be passed over."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Collection
from dataclasses import dataclass, field

from ascend_adapt.errors import AdaptError, PatchConflict, PatchDrift, PatchFailed, PatchLost
from ascend_adapt.patches.apply.applied_patch import AppliedPatch
from ascend_adapt.patches.declare.outcome import Outcome
from ascend_adapt.patches.declare.spec import Patch, Registered

logger = logging.getLogger("ascend_adapt")

_ERRORS: dict[str, type[AdaptError]] = {"drifted": PatchDrift, "failed": PatchFailed, "lost": PatchLost}


@dataclass(eq=False)
class PatchRecord:
    """What has become of one patch so far; ``applications`` has one entry for each import of the target."""

    registered: Registered
    state: str = "armed"
    reason: str = ""
    found: str = ""
    conflicts: bool = False
    applications: list[AppliedPatch] = field(default_factory=list)
    _told: str = ""

    @property
    def patch(self) -> Patch:
        return self.registered.patch

    def set(self, state: str, reason: str) -> None:
        """Note a new state and how it came about."""
        self.state, self.reason = state, reason

    def is_lost(self) -> bool:
        """Return whether the target is no longer what the patch made of it."""
        if self.state != "applied" or not self.applications:
            return self.state == "lost"
        application = self.applications[-1]
        return sys.modules.get(self.patch.target.module) is not application.module or not application.is_current()

    def notice_loss(self) -> None:
        """Note it if the patch was lost since it was applied."""
        if self.state == "applied" and self.is_lost():
            by = self.applications[-1].replaced_by()
            told = f": it is {by} now — leave that out, or disable {self.registered.plugin}.{self.registered.name}"
            self.set("lost", f"{self.patch.target} was reloaded or replaced after apply{told if by else ''}")

    def outcome(self) -> Outcome:
        """Return the state now, as a value."""
        self.notice_loss()
        return self.registered.outcome(self.state, self.reason, self.found)

    def raise_grave(self, strict: bool, allow_drift: Collection[str]) -> None:
        """Raise if the patch drifted, failed or was lost, and must not be passed over; else rank 0 logs it once.

        Raises:
            PatchConflict: it failed because another patch excludes it.
            PatchDrift, PatchFailed: its absence gives wrong numbers, or ``strict``, and ``allow_drift`` has no name of
                its own.
            PatchLost: the same, with ``strict`` only.
        """
        if strict:
            self.notice_loss()
        if self.state == "failed" and self.conflicts:
            raise PatchConflict(self.reason)
        error = _ERRORS.get(self.state)
        if error is None or self.registered.is_named(allow_drift):
            return
        if strict or (self.patch.without == "wrong numbers" and self.state != "lost"):
            raise error(f"{self._account()}; --allow-drift {self.registered.name} goes on without")
        self._warn()

    def tell_loss(self, allow_drift: Collection[str]) -> None:
        """Log once, on rank 0, that the patch was lost, unless ``allow_drift`` has a name of its own."""
        if self.state == "lost" and not self.registered.is_named(allow_drift):
            self._warn()

    def _warn(self) -> None:
        told = self._account()
        if self._told != told and os.environ.get("RANK", "0") == "0":
            self._told = told
            logger.warning("ascend_adapt: %s", told)

    def _account(self) -> str:
        return f"{self.registered} {self.state}: {self.reason} — without it: {self.patch.without} ({self.patch.why})"


def as_reason(error: Exception) -> str:
    """Return the reason of a patch that failed with ``error``; our own errors speak for themselves."""
    return str(error) if isinstance(error, AdaptError) else f"{type(error).__name__}: {error}"
