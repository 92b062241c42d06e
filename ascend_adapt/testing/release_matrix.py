"""Release matrix: judges every patch on every release, to find wrong and missing version ranges."""

from __future__ import annotations

import ast
import inspect
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from ascend_adapt.errors import PatchSpecError
from ascend_adapt.patches.declare.code_base import CodeBase
from ascend_adapt.patches.declare.outcome import Outcome
from ascend_adapt.patches.declare.spec import Patch, Registered
from ascend_adapt.patches.judge import static
from ascend_adapt.patches.judge.installation import SourceTree
from ascend_adapt.patches.judge.preconditions import refused_call
from ascend_adapt.runtime import code_bases
from ascend_adapt.testing import faults
from ascend_adapt.testing.upstream_facts import Facts


@dataclass(frozen=True)
class ReleaseRow:
    """Row for one patch on one release. ``decision`` is patch or skip, ``fault`` the fault's state in the source."""

    release: str
    patch: str
    decision: str
    fault: str
    reason: str
    problem: str = ""

    def __str__(self) -> str:
        return f"{self.release} {self.patch}: the gate: {self.decision}, the fault is {self.fault} ({self.reason})"


def concerns(one: Registered, distribution: str) -> bool:
    """Return whether a patch is judged on releases of ``distribution``, because it requires some releases."""
    return bool(requirements_on(one.patch, distribution))


def requirements_on(patch: Patch, distribution: str) -> tuple[Requirement, ...]:
    """Return the requirements of a patch on ``distribution``."""
    wanted = canonicalize_name(distribution)
    return tuple(one for one in patch.requires if canonicalize_name(one.name) == wanted)


def judge(one: Registered, distribution: str, release: str, facts: Facts) -> ReleaseRow:
    """Return the row of a patch on a release, from recorded facts alone."""
    required = requirements_on(one.patch, distribution)
    admitted = all(each.specifier.contains(Version(release), prereleases=True) for each in required)
    row = ReleaseRow(release, one.full_name, "patch" if admitted else "skip", facts.fault, facts.reason)
    if not admitted:
        problem = "the gate skips a release that has the fault" if facts.fault == faults.PRESENT else ""
        return replace(row, problem=problem)
    if facts.fault == faults.ABSENT:
        return replace(row, problem="the gate patches a release without the fault")
    return replace(row, problem=_misfit(one.patch, facts, distribution))


def _misfit(patch: Patch, facts: Facts, distribution: str) -> str:
    """Return why the target does not fit, from recorded facts, or "" (also for a target in another distribution)."""
    if patch.kind in ("add", "provide") or _is_elsewhere(patch, distribution):
        return ""
    if not facts.digests:
        return f"{patch.original or patch.target} does not exist"
    if patch.kind == "replace" and patch.function is not None:
        for text in facts.signatures:
            signature = text.removeprefix("@staticmethod ")
            bound = len(patch.target.path) > 1 and signature == text
            refused = refused_call(_signature(signature), inspect.signature(patch.function), bound)
            if refused:
                return f"the replacement does not accept {refused}"
    if patch.bodies and not set(facts.digests) <= set(patch.bodies):
        return f"its body is {', '.join(facts.digests)}, expected {' or '.join(patch.bodies)}"
    return ""


def _is_elsewhere(patch: Patch, distribution: str) -> bool:
    return patch.target.root != canonicalize_name(distribution).partition("-")[0]


def _signature(text: str) -> inspect.Signature:
    """Parse a signature. The values of defaults do not matter."""
    node = ast.parse(f"def f{text}: ...").body[0]
    if not isinstance(node, ast.FunctionDef):
        raise PatchSpecError(f"{text}: is not a signature — make record-upstreams")
    return static.signature_of(node)


def disagreements(
    rows: Sequence[ReleaseRow], registered: Sequence[Registered], distribution: str, tree: SourceTree
) -> list[str]:
    """Return one message for each row that differs from the static verdict on ``tree``."""
    messages = []
    for row, one in zip(rows, registered, strict=True):
        outcome = judge_source(one, distribution, tree)
        if outcome.reason.endswith("is not installed"):
            continue  # the target is in another distribution, which is not installed
        expected = "armed" if row.decision == "patch" else "skipped"
        if outcome.state != expected:
            messages.append(f"{row}: the engine reports {outcome.state}, expected {expected} ({outcome.reason})")
    return messages


def judge_source(one: Registered, distribution: str, tree: SourceTree) -> Outcome:
    """Return the static outcome of a patch on the source of a release of ``distribution``, without other packages."""
    alone = replace(one.patch, requires=requirements_on(one.patch, distribution))
    known = hosts_for(alone)
    if not any(alone.target.root in known[str(host)].roots for host in alone.hosts):
        # The target is in a library whose archives do not contain the code base.
        alone = replace(alone, hosts=())
    device = (alone.devices or ("cpu",))[0]
    (outcome,) = static.judge([replace(one, patch=alone)], device=device, hosts=known, tree=tree)
    return outcome


def hosts_for(patch: Patch) -> dict[str, CodeBase]:
    """Return the known code bases, and those that the patch declares, by name."""
    return {**code_bases.KNOWN, **{host.name: host for host in patch.hosts if isinstance(host, CodeBase)}}


def summary(rows: Iterable[ReleaseRow]) -> str:
    """Return the counts of rows as one sentence."""
    rows = list(rows)
    kinds = Counter((row.decision, row.fault) for row in rows)
    unjudged = sum(number for (_, fault), number in kinds.items() if fault == faults.NOT_JUDGED)
    releases, patches = {row.release for row in rows}, {row.patch for row in rows}
    return (
        f"{len(releases)} releases x {len(patches)} patches = {len(rows)} rows: "
        f"{kinds['patch', faults.PRESENT]} patched with the fault present, "
        f"{kinds['skip', faults.ABSENT]} skipped without the fault, {unjudged} which the source does not decide, "
        f"{sum(bool(row.problem) for row in rows)} wrong"
    )
