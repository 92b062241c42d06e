"""Rewrites the launched script before it runs as ``__main__``, because no import hook covers it."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from pathlib import Path

from ascend_adapt.errors import AdaptError, PatchDrift
from ascend_adapt.patches.apply.record import PatchRecord
from ascend_adapt.patches.declare import syntax
from ascend_adapt.patches.declare.code_base import CodeBase
from ascend_adapt.patches.declare.spec import NotNeeded
from ascend_adapt.patches.judge.preconditions import rewrite_definition


def rewrite_script(record: PatchRecord, hosts: Sequence[CodeBase], path: str, tree: ast.Module) -> None:
    """Apply a patch to the syntax tree of the script at ``path``, and set the outcome in the patch record."""
    patch = record.patch
    foreign = [f"is for {host}: {reason}" for host in hosts if (reason := host.owns(Path(path).resolve().parent))]
    if hosts and len(foreign) == len(hosts):
        record.set("skipped", "; ".join(foreign))
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
