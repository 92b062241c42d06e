"""Upstream facts: signatures, digests and faults of each patch's target in a release, recorded without the source."""

from __future__ import annotations

import ast
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ascend_adapt.errors import AdaptError, PatchDrift
from ascend_adapt.patches.declare import syntax
from ascend_adapt.patches.declare.spec import Patch, Registered
from ascend_adapt.patches.judge import static
from ascend_adapt.patches.judge.installation import SourceTree
from ascend_adapt.testing import faults


class RecordError(AdaptError):
    """A record of upstream facts is invalid, or was made for other patches."""


@dataclass(frozen=True)
class Facts:
    """Facts about the target of one patch in one release.

    ``signatures`` and ``digests`` have one entry for each definition. A constant has an empty signature, and that of a
    static method is marked. Without entries, the target is missing. ``fault`` and ``reason`` are as in
    ``faults.Fault``.
    """

    signatures: tuple[str, ...]
    digests: tuple[str, ...]
    fault: str
    reason: str


def gather(patch: Patch, tree: SourceTree) -> Facts:
    """Return the facts of ``patch`` in ``tree``, without importing anything."""
    fault = faults.look_for(patch, tree)
    try:
        found = [] if patch.kind == "provide" else static.originals(patch, tree)
    except PatchDrift:
        found = []
    functions = [one.node for one in found if isinstance(one.node, syntax.Definition)]
    return Facts(
        tuple(map(_signature_text, functions)),
        tuple(syntax.digest(one.node) for one in found),
        fault.state,
        fault.reason,
    )


def _signature_text(node: syntax.Definition) -> str:
    is_static = "staticmethod" in map(ast.unparse, node.decorator_list)
    return f"{'@staticmethod ' if is_static else ''}{static.signature_of(node)}"


@dataclass(frozen=True)
class UpstreamRecord:
    """The facts of many releases of one distribution, as ``facts[patch][release]``, oldest release first."""

    distribution: str
    releases: tuple[str, ...]
    declared: Mapping[str, str]
    """Digest of the relevant parts of each patch's declaration."""
    facts: Mapping[str, Mapping[str, Facts]]

    def of(self, one: Registered, release: str) -> Facts:
        """Return the facts of a patch in a release.

        Raises:
            RecordError: the record was made for another declaration of the patch, or lacks the patch.
        """
        name = one.full_name
        if self.declared.get(name) != fingerprint(one.patch):
            raise RecordError(
                f"the record of {self.distribution}: made for another declaration of {name} — run make record-upstreams"
            )
        return self.facts[name][release]

    def save(self, path: Path) -> None:
        """Write the record. Consecutive releases with equal facts share one entry."""
        patches = {
            name: {"declared": self.declared[name], "facts": _runs(self.releases, self.facts[name])}
            for name in sorted(self.facts)
        }
        data = {"distribution": self.distribution, "releases": self.releases, "patches": patches}
        path.write_text(json.dumps(data, indent=1) + "\n")


def load(path: Path) -> UpstreamRecord:
    """Read a record.

    Raises:
        RecordError: the file is not a record.
    """
    try:
        data = json.loads(path.read_text())
        releases = tuple(data["releases"])
        patches = data["patches"]
        facts = {name: _unfolded(releases, entry["facts"]) for name, entry in patches.items()}
        return UpstreamRecord(
            data["distribution"], releases, {name: entry["declared"] for name, entry in patches.items()}, facts
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RecordError(
            f"{path}: is not a record of upstream facts ({error!r}) — run make record-upstreams"
        ) from error


def record(distribution: str, registered: Sequence[Registered], trees: Mapping[str, SourceTree]) -> UpstreamRecord:
    """Return the record of the patches' facts in ``trees``, which are given by release, oldest first."""
    facts = {one.full_name: {release: gather(one.patch, trees[release]) for release in trees} for one in registered}
    declared = {one.full_name: fingerprint(one.patch) for one in registered}
    return UpstreamRecord(distribution, tuple(trees), declared, facts)


def fingerprint(patch: Patch) -> str:
    """Return a digest of the parts of a declaration on which facts depend, in 16 hex digits."""
    return hashlib.sha256(faults.declaration(patch).encode()).hexdigest()[:16]


def _runs(releases: Sequence[str], facts: Mapping[str, Facts]) -> list[dict[str, Any]]:
    runs: list[dict[str, Any]] = []
    for release in releases:
        values = json.loads(json.dumps(asdict(facts[release])))
        if runs and {key: runs[-1][key] for key in values} == values:
            runs[-1]["last"] = release
        else:
            runs.append({"first": release, "last": release, **values})
    return runs


def _unfolded(releases: Sequence[str], runs: Sequence[Mapping[str, Any]]) -> dict[str, Facts]:
    facts = {}
    for run in runs:
        run_facts = Facts(tuple(run["signatures"]), tuple(run["digests"]), run["fault"], run["reason"])
        for release in releases[releases.index(run["first"]) : releases.index(run["last"]) + 1]:
            facts[release] = run_facts
    if list(facts) != list(releases):
        raise ValueError("a release without facts")
    return facts
