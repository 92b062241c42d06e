"""Static audit: every patch site in a patcher's source, checked against the packages that it patches."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ascend_adapt.audit.sites import Site, imported, sites
from ascend_adapt.audit.targets import EXISTS, MISSING, Targets, Verdict, parsed
from ascend_adapt.errors import SettingsError
from ascend_adapt.patches.declare import syntax
from ascend_adapt.patches.judge import static
from ascend_adapt.patches.judge.preconditions import refused_call

REFUSES, TO_NONE, ADDS = "signature differs", "set to None", "added"
_KEPT = re.compile(r"orig|backup|saved|_old\b", re.IGNORECASE)


@dataclass(frozen=True)
class Judged:
    """A patch site and its verdict: exists, missing, added, unknown, signature differs, or set to None."""

    site: Site
    state: str
    reason: str

    def to_json(self) -> dict[str, Any]:
        """Return the fields as plain data."""
        site = self.site
        place = f"{site.file}:{site.line}"
        return {"target": site.target, "new": site.replacement, "at": place, "state": self.state, "reason": self.reason}


@dataclass(frozen=True)
class Reading:
    """The judged sites of a patcher. ``several`` maps a target to the sites that assign different values to it."""

    folder: Path
    judged: tuple[Judged, ...]
    several: dict[str, tuple[Site, ...]]
    problems: tuple[str, ...]

    def counts(self) -> dict[str, int]:
        """Return the number of sites by state."""
        states: dict[str, int] = defaultdict(int)
        for one in self.judged:
            states[one.state] += 1
        return dict(states)

    def to_json(self) -> dict[str, Any]:
        """Return the fields as plain data."""
        return {
            "folder": str(self.folder),
            "counts": self.counts(),
            "sites": [one.to_json() for one in self.judged],
            "several": {target: [f"{one.file}:{one.line}" for one in found] for target, found in self.several.items()},
            "problems": list(self.problems),
        }


def read(folder: Path, upstream: Sequence[Path]) -> Reading:
    """Judge the patch sites in a patcher's source against the source trees ``upstream`` and the installed packages.

    Raises:
        SettingsError: a folder does not exist.
    """
    if absent := [str(one) for one in (folder, *upstream) if not one.is_dir()]:
        raise SettingsError(
            f"{', '.join(absent)}: is not a folder, expected a folder of Python source — correct the path"
        )
    found, problems = sites(folder)
    targets, own = Targets(upstream), Targets([folder.parent, folder])
    judged = tuple(one for site in found if not _keeps_original(one := _judge(site, targets, own)))
    by_target: dict[str, list[Site]] = defaultdict(list)
    for site in found:
        if not site.is_wrapper:
            by_target[site.target].append(site)
    several = {target: tuple(both) for target, both in by_target.items() if len({one.replacement for one in both}) > 1}
    return Reading(folder, judged, several, tuple(problems))


def _judge(site: Site, targets: Targets, own: Targets) -> Judged:
    verdict = targets.find(site.target)
    owner = site.target.rpartition(".")[0]
    if verdict.state == MISSING and not site.is_named and targets.find(owner).state == EXISTS:
        return Judged(site, ADDS, verdict.reason)
    if verdict.state != EXISTS:
        return Judged(site, verdict.state, verdict.reason)
    if site.replacement == "None" and verdict.definition is not None:
        return Judged(site, TO_NONE, "code that calls it raises TypeError")
    refused = "" if site.is_wrapper else _refused(site, verdict, own)
    if refused:
        return Judged(site, REFUSES, f"the replacement does not accept {refused}")
    return Judged(site, EXISTS, verdict.reason)


def _keeps_original(one: Judged) -> bool:
    """Return whether a site only saves an original under a new name, such as ``Class._original_forward``."""
    return one.state == ADDS and bool(_KEPT.search(one.site.target.rpartition(".")[2]))


def _refused(site: Site, verdict: Verdict, own: Targets) -> str:
    """Return a call that the original accepts and the replacement rejects, or "" if there is no such call."""
    theirs, ours = verdict.definition, _replacement(site, own)
    if not isinstance(theirs, syntax.Definition) or ours is None or ours.decorator_list or theirs.decorator_list:
        return ""
    if isinstance(ours, ast.AsyncFunctionDef) != isinstance(theirs, ast.AsyncFunctionDef):
        return "a call without await"
    return refused_call(static.signature_of(theirs), static.signature_of(ours), verdict.is_method)


def _replacement(site: Site, own: Targets) -> syntax.Definition | None:
    """Return the function that a site assigns, if it is defined in its file or imported from the patcher."""
    tree = parsed(site.file)
    found = [one.node for one in syntax.find(tree, tuple(site.replacement.split("."))) if one.node is not None]
    if len(found) == 1 and isinstance(found[0], syntax.Definition):
        return found[0]
    root, _, rest = site.replacement.partition(".")
    dotted = imported(tree).get(root)
    new = own.find(".".join(filter(None, (dotted, rest)))).definition if dotted else None
    return new if isinstance(new, syntax.Definition) else None
