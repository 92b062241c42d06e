"""Tests patches on their real, installed target, in a fresh process per target module; reads a JSON plan from stdin.

Enables all installed plugins, as for users; the static outcome must be confirmed. Prints one JSON object: patch ->
[passed, failed or not shown, text].
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
from collections.abc import Mapping, Sequence
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
    """Run the patches ``names``, all of one target module, in a fresh process and return the results."""
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
    except NotShown as reason:
        results = dict.fromkeys(patches, [NOT_SHOWN, str(reason)])
    except (AdaptError, AssertionError) as error:  # from any patch on this target: users would see it as well
        results = dict.fromkeys(patches, [FAILED, str(error)])
    print()
    print(json.dumps(results), end="", flush=True)
    os._exit(0)  # threads and children left by the target do not matter


def _all(patches: Mapping[str, Registered], extra: Sequence[Any], device: str) -> dict[str, list[str]]:
    (module,) = {one.patch.target.module for one in patches.values()}
    root = module.partition(".")[0]
    was_loaded = root in sys.modules
    ascend_adapt.enable(plugins=extra, device=device)
    check(was_loaded or root not in sys.modules, f"enable() imported {root}")
    try:
        _import(module)
    except NotShown as error:
        # A module provided for one code base, or for some code only, cannot be imported here.
        provided = [one.patch for one in patches.values() if one.patch.kind == "provide"]
        for_all = [patch for patch in provided if not patch.hosts and patch.seen_by is None]
        check(not for_all, f"provided, but {error}")
        raise
    states = {name: ascend_adapt.status()[name] for name in patches}
    ascend_adapt.disable()
    results = {name: [PASSED, ""] for name in patches}
    before = {name: _value(one.patch) for name, one in patches.items()}
    held = {name: _held(one.patch) for name, one in patches.items()}
    copies = {name: _copies(value) for name, value in before.items()}
    # An inherited method is pickled under the name of its base class; patched, under its own.
    places = {name: _place(one.patch) for name, one in patches.items()}
    inherited = {name for name, place in places.items() if place is not None and place.inherited}
    ascend_adapt.enable(plugins=extra, device=device)
    for name, one in patches.items():
        try:
            _import(module)
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
            results[name] = [FAILED, f"disable() left another object at {one.patch.target} than before"]
    return results


def _import(module: str) -> None:
    try:
        with contextlib.redirect_stdout(sys.stderr):
            importlib.import_module(module)
    except AdaptError:
        raise
    except Exception as error:  # upstream may raise anything
        message = f"{module} cannot be imported here: {type(error).__name__}: {error}"
        alone = subprocess.run([sys.executable, "-c", f"import {module}"], capture_output=True, timeout=200)
        check(alone.returncode != 0, f"{message}; without patches it can")
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
    """Return the pickle of a plain function, or None if it has none; also check deepcopy."""
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
