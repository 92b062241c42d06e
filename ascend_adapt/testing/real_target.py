"""Tests patches on their real, installed targets, in a fresh process per plan. Reads a JSON plan from stdin.

All installed plugins are enabled, as for users, and the outcomes must agree with the static outcomes. Prints one JSON
object: patch -> [passed, failed or not shown, text].
"""

from __future__ import annotations

import contextlib
import copy
import importlib
import json
import os
import pickle
import subprocess
import sys
import traceback
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import ascend_adapt
from ascend_adapt import probe
from ascend_adapt.errors import AdaptError
from ascend_adapt.patches.declare.spec import Patch, Registered
from ascend_adapt.patches.declare.target import MISSING, Place, locate
from ascend_adapt.testing.scene import check
from ascend_adapt.testing.stage import FAILED, NOT_SHOWN, PASSED, find
from ascend_adapt.testing.stand_in import NotShown


def installed_folder(patch: Patch) -> Path | None:
    """Return the folder that contains the installed package of a patch's target, or None."""
    return None if patch.host_script is not None else probe.root_folder(patch.target.module)


def run(names: Sequence[str], plugins: Sequence[str], device: str, environ: Mapping[str, str]) -> dict[str, list[str]]:
    """Run the patches ``names`` in a fresh process and return the results."""
    plan = {"patches": list(names), "plugins": list(plugins), "device": device}
    command = [sys.executable, "-m", __name__]
    done = subprocess.run(
        command, input=json.dumps(plan), env=dict(environ), capture_output=True, text=True, timeout=300
    )
    last = done.stdout.rpartition("\n")[2]
    if done.returncode or not last.startswith("{"):
        lines = done.stderr.strip().splitlines()[-30:]
        return dict.fromkeys(names, [FAILED, f"the process ended with {done.returncode}:\n" + "\n".join(lines)])
    results: dict[str, list[str]] = json.loads(last)
    return results


def main() -> None:
    """Run the plan ``{"patches", "plugins", "device"}`` and print the results on the last line."""
    plan = json.load(sys.stdin)
    extra = [importlib.import_module(name) for name in plan["plugins"]]
    patches = {name: find(name, plan["plugins"]) for name in plan["patches"]}
    try:
        results = _all(patches, extra, plan["device"])
    except Exception as error:  # an error of enable() or disable(), which users would see as well
        text = str(error) if isinstance(error, AdaptError) else _message(error)
        results = dict.fromkeys(patches, [FAILED, text])
    print()
    print(json.dumps(results), end="", flush=True)
    os._exit(0)  # skips waiting for threads and children that the target left


def _all(patches: Mapping[str, Registered], extra: Sequence[Any], device: str) -> dict[str, list[str]]:
    missing = {one.patch.target.root for one in patches.values()} - sys.modules.keys()
    ascend_adapt.enable(plugins=extra, device=device)
    check(not missing & sys.modules.keys(), f"enable() imported {', '.join(sorted(missing & sys.modules.keys()))}")
    results = {name: [PASSED, ""] for name in patches}
    for module in dict.fromkeys(one.patch.target.module for one in patches.values()):
        of_module = {name: one.patch for name, one in patches.items() if one.patch.target.module == module}
        if (result := _imported(module, of_module.values()))[0] != PASSED:
            results |= dict.fromkeys(of_module, result)
    patches = {name: one for name, one in patches.items() if results[name][0] == PASSED}
    if not patches:
        return results  # the process ends, so a failed import need not be undone
    states = {name: ascend_adapt.status()[name] for name in patches}
    ascend_adapt.disable()
    before = {name: _value(one.patch) for name, one in patches.items()}
    held = {name: _held(one.patch) for name, one in patches.items()}
    copies = {name: _copies(value) for name, value in before.items()}
    # An inherited method is pickled under the name of its base class, a patched method under that of its class.
    places = {name: _place(one.patch) for name, one in patches.items()}
    inherited = {name for name, place in places.items() if place is not None and place.inherited}
    ascend_adapt.enable(plugins=extra, device=device)
    for name, one in patches.items():
        try:
            _import(one.patch.target.module)
            check(states[name].state == "applied", f"is {states[name].state}: {states[name].reason}")
            again = ascend_adapt.status()[name]
            check(again.state == "applied", f"after enabling again it is {again.state}: {again.reason}")
            check(_held(one.patch) is not held[name], f"applied, but {one.patch.target} is unchanged")
            pickled = _copies(_value(one.patch))
            is_same = pickled is not None if name in inherited else copies[name] in (None, pickled)
            check(is_same, "pickles differently from the original")
        except Exception as error:
            results[name] = [FAILED, _message(error)]
    ascend_adapt.disable()
    for name, one in patches.items():
        if _value(one.patch) is not before[name] or _held(one.patch) is not held[name]:
            results[name] = [FAILED, f"disable() left a different object at {one.patch.target}"]
    return results


def _imported(module: str, patches: Iterable[Patch]) -> list[str]:
    """Import a target and return the result. Patches of a target that cannot be imported here are not shown."""
    try:
        _import(module)
    except NotShown as error:
        # A module provided for one code base, or for some code only, cannot be imported here.
        for_all = [patch for patch in patches if patch.kind == "provide" and not patch.hosts and patch.seen_by is None]
        return [FAILED, f"provided, but {error}"] if for_all else [NOT_SHOWN, str(error)]
    except (AdaptError, AssertionError) as error:  # an error of any patch of this target, which users would see as well
        return [FAILED, str(error)]
    return [PASSED, ""]


def _import(module: str) -> None:
    try:
        with contextlib.redirect_stdout(sys.stderr):
            importlib.import_module(module)
    except AdaptError:
        raise
    except Exception as error:  # upstream may raise any exception
        message = f"{module} cannot be imported here: {type(error).__name__}: {error}"
        alone = subprocess.run([sys.executable, "-c", f"import {module}"], capture_output=True, timeout=200)
        check(alone.returncode != 0, f"{message}, but can be imported without patches")
        raise NotShown(message) from error


def _place(patch: Patch) -> Place | None:
    module = sys.modules.get(patch.target.module)
    return None if patch.kind == "provide" or module is None else locate(patch.target, module)


def _value(patch: Patch) -> Any:
    place = _place(patch)
    return MISSING if place is None else place.value


def _held(patch: Patch) -> Any:
    """Return the object that the patch changes: a function's code, an entry, a provided module, or the target."""
    value = _value(patch)
    if patch.kind == "provide":
        return sys.modules.get(patch.target.module, MISSING)
    if patch.kind == "entry":
        return value.get(patch.key, MISSING)
    if patch.kind == "rewrite":
        return getattr(value, "__func__", getattr(value, "fget", value)).__code__
    return value


def _copies(value: Any) -> bytes | None:
    """Return the pickle of a plain function, or None if it cannot be pickled. Also check deepcopy."""
    if type(value).__name__ != "function":
        return None
    try:
        pickled = pickle.dumps(value)
    except (TypeError, AttributeError, pickle.PicklingError):
        return None
    check(copy.deepcopy(value) is value, "deepcopy made another function")
    return pickled


def _message(error: Exception) -> str:
    return str(error) if isinstance(error, AssertionError) else "".join(traceback.format_exception(error))


if __name__ == "__main__":
    main()
