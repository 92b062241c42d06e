"""Patch record: the current state of one patch, and the errors that must not be ignored."""

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
    """The current state of one patch. ``applications`` has one entry for each import of the target."""

    registered: Registered
    state: str = "armed"
    reason: str = ""
    found: str = ""
    conflicts: bool = False
    applications: list[AppliedPatch] = field(default_factory=list)
    _logged: str = ""

    @property
    def patch(self) -> Patch:
        return self.registered.patch

    def set(self, state: str, reason: str) -> None:
        """Set a new state and its reason."""
        self.state, self.reason = state, reason

    def is_lost(self) -> bool:
        """Return whether the target is no longer patched."""
        if self.state != "applied" or not self.applications:
            return self.state == "lost"
        application = self.applications[-1]
        return sys.modules.get(self.patch.target.module) is not application.module or not application.is_current()

    def notice_loss(self) -> None:
        """Set the state to ``lost`` if the target is no longer patched."""
        if self.state == "applied" and self.is_lost():
            by = self.applications[-1].replaced_by()
            cause = f": it is now {by} — leave that out, or disable {self.registered.plugin}.{self.registered.name}"
            self.set("lost", f"{self.patch.target} was reloaded or replaced after apply{cause if by else ''}")

    def outcome(self) -> Outcome:
        """Return the current outcome."""
        self.notice_loss()
        return self.registered.outcome(self.state, self.reason, self.found)

    def raise_grave(self, strict: bool, allow_drift: Collection[str]) -> None:
        """Raise if the patch drifted, failed or was lost and this counts as an error; else log it once on rank 0.

        Raises:
            PatchConflict: the patch conflicts with another patch.
            PatchDrift, PatchFailed: without the patch numbers are wrong, or ``strict`` is set. Patches named in
                ``allow_drift`` are exempt.
            PatchLost: ``strict`` is set, and ``allow_drift`` does not name the patch.
        """
        if strict:
            self.notice_loss()
        if self.state == "failed" and self.conflicts:
            raise PatchConflict(self.reason)
        error = _ERRORS.get(self.state)
        if error is None or self.registered.is_named(allow_drift):
            return
        if strict or (self.patch.without == "wrong numbers" and self.state != "lost"):
            raise error(f"{self._description()}; --allow-drift {self.registered.name} continues without it")
        self._warn()

    def log_loss(self, allow_drift: Collection[str]) -> None:
        """Log once on rank 0 that the patch was lost, unless ``allow_drift`` names it."""
        if self.state == "lost" and not self.registered.is_named(allow_drift):
            self._warn()

    def _warn(self) -> None:
        message = self._description()
        if self._logged != message and os.environ.get("RANK", "0") == "0":
            self._logged = message
            logger.warning("ascend_adapt: %s", message)

    def _description(self) -> str:
        return f"{self.registered} {self.state}: {self.reason} — without it: {self.patch.without} ({self.patch.why})"


def as_reason(error: Exception) -> str:
    """Return ``error`` as the reason of a failure, with the type name unless it is an error of this package."""
    return str(error) if isinstance(error, AdaptError) else f"{type(error).__name__}: {error}"
