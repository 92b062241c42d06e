"""Runs scenarios of patches in a fresh process: ``python -m ascend_adapt.testing.stage`` reads a JSON plan from stdin.

Plugins are loaded once, before any target. Each scenario runs in a forked child with a new stand-in first on sys.path.
Prints one JSON object: patch -> scenario -> [passed, failed or not shown, text].
"""

from __future__ import annotations

import functools
import gc
import importlib
import importlib.metadata
import json
import os
import signal
import sys
import tempfile
import traceback
from dataclasses import replace
from pathlib import Path
from typing import Any

import wrapt  # noqa: F401  loaded by enable() otherwise, in each child again

import ascend_adapt.patches.session  # noqa: F401  likewise
from ascend_adapt.errors import AdaptError
from ascend_adapt.patches.declare.spec import Registered
from ascend_adapt.patches.judge.installation import SourceTree
from ascend_adapt.runtime import code_bases
from ascend_adapt.runtime.plugin_manager import PluginManager
from ascend_adapt.testing import scenarios
from ascend_adapt.testing.scene import Scene
from ascend_adapt.testing.stand_in import NotShown

PASSED, FAILED, NOT_SHOWN = "passed", "failed", "not shown"
_SECONDS = 100


def main() -> None:
    """Run the plan ``{"patches", "plugins", "topics"}`` and print the results.

    ``patches`` maps each patch to the source tree whose target the stand-in copies, or None.
    """
    # Stand-ins have no entry points, and reading those of all distributions takes a quarter of a scenario's time.
    importlib.metadata.entry_points = functools.cache(importlib.metadata.entry_points)  # type: ignore[assignment]
    plan = json.load(sys.stdin)
    patches = {name: find(name, plan["plugins"]) for name in plan["patches"]}
    loaded = {name for name, one in patches.items() if _is_loaded(one)}
    if "compile" in plan["topics"]:
        _warm_torch_up()
    gc.freeze()  # otherwise the first garbage collection in each child would copy every page
    results: dict[str, dict[str, list[str]]] = {name: {} for name in patches}
    with tempfile.TemporaryDirectory() as folder:
        for name, one in patches.items():
            tree = SourceTree(Path(plan["patches"][name])) if plan["patches"][name] else None
            for topic in plan["topics"]:
                for text, scenario in scenarios.of(one.patch).get(topic, {}).items():
                    own = Path(folder, name, str(len(results[name])))
                    failure = [FAILED, f"{one.patch.target.root} is imported when the plugin is loaded"]
                    results[name][f"{topic}: {text}"] = (
                        failure if name in loaded else _in_a_child(scenario, one, own, tree)
                    )
    json.dump(results, sys.stdout)


def _is_loaded(one: Registered) -> bool:
    root = one.patch.target.root
    return one.patch.host_script is None and root in sys.modules and root not in sys.stdlib_module_names


def find(name: str, plugins: list[str]) -> Registered:
    """Return the patch ``plugin.patch`` with its code bases resolved. ``plugins`` are loaded in addition."""
    manager = PluginManager([importlib.import_module(plugin) for plugin in plugins])
    for one in manager.patches():
        if one.full_name == name:
            known = tuple(code_bases.KNOWN.get(str(host), host) for host in one.patch.hosts)
            return replace(one, patch=replace(one.patch, hosts=known))
    raise AdaptError(f"{name}: no plugin registers it — {'; '.join(manager.problems) or 'see ascend-adapt status'}")


def _warm_torch_up() -> None:
    """Import torch and its compiler once, before forking. Without torch, each child reports that it is missing."""
    try:
        import torch
    except ImportError:
        return
    torch.compile(lambda: torch.ones(1), fullgraph=True, backend="eager")()


def _in_a_child(scenario: scenarios.Scenario, one: Registered, folder: Path, tree: SourceTree | None) -> list[str]:
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        signal.alarm(_SECONDS)
        os.dup2(2, 1)
        encoded = json.dumps(_run(scenario, one, folder, tree)).encode()
        with os.fdopen(writer, "wb") as pipe:
            pipe.write(encoded)
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        encoded = pipe.read()
    _, status = os.waitpid(child, 0)
    answer: list[str] = json.loads(encoded) if encoded else [FAILED, f"the process ended with status {status}"]
    return answer


def _run(scenario: scenarios.Scenario, one: Registered, folder: Path, tree: SourceTree | None) -> list[str]:
    try:
        scenario(Scene(one, folder, tree))
    except NotShown as reason:
        return [NOT_SHOWN, str(reason)]
    except AssertionError as failure:
        return [FAILED, str(failure)]
    except BaseException as error:  # any error of plugin code fails its scenario
        return [FAILED, "".join(traceback.format_exception(error))]
    return [PASSED, ""]


def run(plan: dict[str, Any], environ: dict[str, str]) -> dict[str, dict[str, list[str]]]:
    """Run the plan in a fresh process and return its results, as ``main`` prints them."""
    import subprocess

    command = [sys.executable, "-m", __name__]
    done = subprocess.run(command, input=json.dumps(plan), env=environ, capture_output=True, text=True, timeout=600)
    if done.returncode:
        raise AdaptError(f"{', '.join(plan['patches'])}: the process ended with {done.returncode}:\n{done.stderr}")
    results: dict[str, dict[str, list[str]]] = json.loads(done.stdout)
    return results


if __name__ == "__main__":
    main()
