"""Scenarios: checks of a patch on its stand-in, each in a fresh process. A scenario raises an error on failure."""

from __future__ import annotations

import copy
import functools
import importlib
import inspect
import itertools
import pickle
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import ascend_adapt
from ascend_adapt.errors import PatchConflict, PatchDrift
from ascend_adapt.patches.declare.code_base import CodeBase
from ascend_adapt.patches.declare.spec import Patch
from ascend_adapt.testing import stand_in, versions
from ascend_adapt.testing.scene import Scene, check
from ascend_adapt.testing.stand_in import NotShown

Scenario = Callable[[Scene], None]

# Every distinct order of the steps i: import the target, e: enable(), d: disable().
ORDERS = sorted({"".join(order) for steps in ("ieede", "iedd") for order in itertools.permutations(steps)})
ALL_ORDERS = "all orders"


def _covering(orders: list[str]) -> list[str]:
    """Return a subset of ``orders`` that covers every two consecutive steps, and every first and last step."""

    def pairs(order: str) -> set[str]:
        marked = f"^{order}$"
        return {marked[at : at + 2] for at in range(len(marked) - 1)}

    chosen: list[str] = []
    missing = set().union(*map(pairs, orders))
    while missing:
        chosen.append(max(orders, key=lambda order: len(missing & pairs(order))))
        missing -= pairs(chosen[-1])
    return chosen


COVERING_ORDERS = _covering(ORDERS)


def of(patch: Patch) -> dict[str, dict[str, Scenario]]:
    """Return the scenarios for a patch by topic and name, from its declaration alone.

    The remaining orders are a separate topic, ``ALL_ORDERS``.
    """
    if patch.host_script is not None:
        return {"script": {"rewritten before it runs": rewritten_script}}
    topics: dict[str, dict[str, Scenario]] = {
        "orders": {order: functools.partial(in_order, order=order) for order in COVERING_ORDERS},
        ALL_ORDERS: {
            order: functools.partial(in_order, order=order) for order in ORDERS if order not in COVERING_ORDERS
        },
        "gate": _of_the_gate(patch),
        "drift": _of_drift(patch),
        "conflict": {"two plugins change it": two_plugins},
        "quiet": {"nothing is imported": enabling_imports_nothing},
    }
    if patch.kind in ("wrap", "replace", "rewrite"):
        topics["aliases"] = {"before and after": aliases_follow}
        topics["copies"] = {"pickle, deepcopy, partial": copies_work}
    if patch.kind in ("wrap", "replace"):
        topics["compile"] = {"torch.compile(fullgraph)": compiles}
    return topics


def in_order(scene: Scene, order: str) -> None:
    """Import, enable and disable in one order. The target is patched once while enabled, and restored afterwards."""
    scene.write()
    on = False
    for number, step in enumerate(order):
        if step == "i":
            scene.import_target()
        if step == "e":
            scene.enable()
            on = True
        if step == "d":
            ascend_adapt.disable()
            on = False
        if scene.patch.target.module in sys.modules and scene.patch.kind != "provide":
            scene.take_alias(f"alias_{number}")
    if on:
        if scene.patch.kind == "provide":
            scene.import_target()
        scene.expect_in_force()
    ascend_adapt.disable()
    scene.expect_untouched()
    original = scene.original() if scene.aliases() else None
    for alias in scene.aliases():
        check(alias is original or not stand_in_holds(scene), "an alias was not restored to its original")
    if scene.patch.kind == "provide":
        check(scene.patch.target.module not in sys.modules, "the provided module is still in sys.modules")


def stand_in_holds(scene: Scene) -> bool:
    """Return whether the target's class or module defines the target itself, so that aliases refer to it."""
    return not scene.shape.inherited


def aliases_follow(scene: Scene) -> None:
    """An alias made before enable() is the patched object, and the original after disable()."""
    scene.write()
    scene.import_target()
    scene.take_alias("taken_early")
    before = scene.aliases()
    scene.enable()
    scene.take_alias("taken_late")
    if scene.patch.kind != "rewrite" and stand_in_holds(scene):
        now = scene.standing()
        for alias in scene.aliases():
            check(alias is now, "an alias differs from the object at the target")
    scene.expect_in_force()
    ascend_adapt.disable()
    if stand_in_holds(scene):
        check(all(alias is before[0] for alias in scene.aliases()), "an alias was not restored to its original")


def _of_the_gate(patch: Patch) -> dict[str, Scenario]:
    made: dict[str, Scenario] = {"inside": is_applied}
    for index, requirement in enumerate(patch.requires):
        try:
            near = versions.around(requirement)
        except ValueError:
            continue  # no version is in the range, so the scenario above fails
        for side, version in (("below", near.below), ("above", near.above)):
            if version is not None:
                name = f"{requirement.name} {version}, {side}"
                made[name] = functools.partial(is_skipped, index=index, version=version)
        inside = f"{near.inside}+local"
        if requirement.specifier.contains(inside, prereleases=True):
            made[f"{requirement.name} {inside}"] = functools.partial(is_applied, name=requirement.name, version=inside)
    if patch.devices and set(patch.devices) != {"npu", "cuda", "cpu"}:
        made["another device"] = on_another_device
    if patch.hosts and patch.kind != "provide":
        made["another host"] = in_another_host
    return made


def is_applied(scene: Scene, name: str = "", version: str = "") -> None:
    """A version inside the range is patched."""
    scene.write(versions={name: version} if name else None)
    scene.enable()
    scene.import_target()
    scene.expect_in_force()


def is_skipped(scene: Scene, index: int, version: str) -> None:
    """A version outside the range is left alone, and the reason names the requirement and the version."""
    requirement = scene.patch.requires[index]
    scene.write(versions={requirement.name: version})
    scene.enable()
    scene.import_target()
    scene.expect("skipped", str(requirement), version)
    scene.expect_untouched()


def on_another_device(scene: Scene) -> None:
    """On other devices, the patch leaves the target alone."""
    scene.write()
    other = next(device for device in ("cuda", "cpu", "npu") if device not in scene.patch.devices)
    scene.enable(device=other)
    scene.import_target()
    scene.expect("skipped", other)
    scene.expect_untouched()


def in_another_host(scene: Scene) -> None:
    """In a code base without the marker files, the patch leaves the target alone."""
    scene.write()
    host = scene.patch.hosts[0]
    assert isinstance(host, CodeBase)
    for marker in host.present:
        if (scene.folder / marker).stat().st_size:
            raise NotShown(f"{marker} is a marker file, and also the target or the source of its version")
        (scene.folder / marker).unlink()
    scene.enable()
    scene.import_target()
    several = len(scene.patch.hosts) > 1
    if (
        several and scene.outcome().state == "armed"
    ):  # in an installed library, the patch waits for packages of the other code bases
        scene.expect("armed", "is for ", "checked when")
    else:
        scene.expect("skipped", host.name)
    scene.expect_untouched()


def _of_drift(patch: Patch) -> dict[str, Scenario]:
    try:
        altered = stand_in.alterations(patch, stand_in.shape_of(patch))
    except NotShown:
        return {"gone": functools.partial(drifts, alteration="gone", late=False)}  # the scene reports why it cannot run
    made: dict[str, Scenario] = {}
    for name in altered:
        for late in (False, True):
            made[f"{name}, enabled {'after' if late else 'before'} the import"] = functools.partial(
                drifts, alteration=name, late=late
            )
        if patch.without == "wrong numbers":
            made[f"{name}, not allowed"] = functools.partial(drift_raises, alteration=name)
    if patch.kind == "add":
        made["there already"] = functools.partial(is_not_needed)
    if patch.kind == "entry" and not patch.present:
        made["there already"] = functools.partial(is_not_needed)
    if patch.kind == "provide":
        made["a real one"] = functools.partial(stands_instead if patch.instead else is_not_needed)
    return made


def _write_altered(scene: Scene, alteration: str) -> None:
    shape = stand_in.alterations(scene.registered.patch, scene.shape)[alteration]
    scene.write(shape, with_module=shape is not None)


def drifts(scene: Scene, alteration: str, late: bool) -> None:
    """An altered target is reported as drifted, and left alone."""
    _write_altered(scene, alteration)
    with scene.drift_allowed():
        if late:
            scene.import_target()
        scene.enable()
        scene.import_target()
    scene.expect("drifted")
    scene.expect_untouched()


def drift_raises(scene: Scene, alteration: str) -> None:
    """Drift of a patch whose absence gives wrong numbers raises, even without strict."""
    _write_altered(scene, alteration)
    try:
        scene.enable()
        scene.import_target()
    except PatchDrift:
        scene.expect("drifted")
        return
    raise AssertionError(f"nothing was raised: {scene.outcome().state}")


def is_not_needed(scene: Scene) -> None:
    """If the object already exists, it is left alone."""
    path = scene.patch.target.path
    shape = scene.shape
    if scene.patch.kind == "add":
        shape = replace(shape, name=path[-1], value="1")
    if scene.patch.kind == "entry":
        shape = replace(shape, value=stand_in.written({scene.patch.key: 1}))
    scene.write(shape)
    if scene.patch.kind == "provide":
        scene.folder.joinpath(*scene.patch.target.module.split(".")).with_suffix(".py").write_text("real = True\n")
        importlib.invalidate_caches()
    scene.enable()
    scene.import_target()
    if scene.patch.kind == "provide":
        check(sys.modules[scene.patch.target.module].real, "the provided module hides a real one")
        check(scene.outcome().state in ("armed", "not_needed"), f"is {scene.outcome().state}")
        return
    scene.expect("not_needed")
    scene.expect_untouched()


def stands_instead(scene: Scene) -> None:
    """The importer sees the provided module, and all other code the real one."""
    scene.write()
    name = scene.patch.target.module
    scene.folder.joinpath(*name.split(".")).with_suffix(".py").write_text("real = True\n")
    importlib.invalidate_caches()
    scene.enable()
    scene.import_target()
    scene.expect_in_force()
    check(importlib.import_module(name).real, "the provided module hides a real one from all code")


def two_plugins(scene: Scene) -> None:
    """Two rewrites, replacements or entries conflict. Two wraps are nested. A second add does nothing."""
    scene.write()
    scene.import_target()
    patch = scene.patch
    if patch.kind in ("replace", "rewrite", "entry"):
        try:
            scene.enable(patch)
        except PatchConflict as error:
            check(
                "'conformance'" in str(error) and "'conformance_0'" in str(error),
                f"the error does not name both plugins: {error}",
            )
            scene.expect_untouched()
            return
        raise AssertionError("two plugins changed the same place")
    scene.enable(patch)
    if patch.kind == "provide":
        scene.import_target()
        check(scene.calls == [scene.name], f"the module was filled {len(scene.calls)} times")
    elif patch.kind == "add":
        states = {one.state for one in ascend_adapt.status().outcomes}
        check(states == {"applied", "not_needed"}, f"the two additions are {sorted(states)}")
    else:
        scene.expect("applied")
        for call in scene.uses():
            scene.calls.clear()
            call()
            check(len(scene.calls) == 2, f"one call ran the two wraps {len(scene.calls)} times")
    ascend_adapt.disable()
    scene.expect_untouched()


def enabling_imports_nothing(scene: Scene) -> None:
    """enable() imports only dependencies of this project, and not the target."""
    scene.write()
    before = {name.partition(".")[0] for name in sys.modules}
    scene.enable()
    new = {name.partition(".")[0] for name in sys.modules} - before - set(sys.stdlib_module_names)
    check(not new - {"wrapt", "packaging"}, f"enable() imported {sorted(new)}")
    check(scene.patch.target.root not in sys.modules, f"enable() imported {scene.patch.target.root}")
    check(scene.outcome().state == "armed", f"is {scene.outcome().state} before the target is imported")


def copies_work(scene: Scene) -> None:
    """A patched function pickles as before, so that an unpatched process can load it. deepcopy and partial work."""
    scene.write()
    scene.import_target()

    def copied() -> list[Any]:
        place = scene.place()
        function = getattr(place.owner, place.name)
        made: list[Any] = []
        for what in (function, functools.partial(function)):
            try:
                made.append(pickle.dumps(what))
            except (TypeError, AttributeError, pickle.PicklingError) as error:
                made.append(type(error))
        same = [pickle.loads(one) for one in made if isinstance(one, bytes)]
        back = {id(one.func if isinstance(one, functools.partial) else one) for one in same}
        is_whole = type(function).__name__ == "function"
        check(not is_whole or back <= {id(function)}, "unpickling gives another function")
        check(not is_whole or copy.deepcopy(function) is function, "deepcopy made another function")
        check(
            not is_whole or copy.deepcopy(functools.partial(function)).func is function,
            "deepcopy of a partial made another function",
        )
        return made

    if scene.shape.value or scene.shape.decorator == "@property":
        raise NotShown("the target is not a function")
    before = copied()
    scene.enable()
    scene.expect("applied")
    after = copied()
    if scene.shape.inherited:
        check(all(isinstance(one, bytes) for one in after), "the patched method does not pickle")
    else:
        check(before == after, "the patched function pickles differently from the original")


def compiles(scene: Scene) -> None:
    """torch.compile(fullgraph=True) compiles the patched function like the original."""
    try:
        import torch
    except ImportError:
        raise NotShown("torch is not installed") from None
    if scene.shape.value or scene.shape.keyword != "def" or scene.shape.decorator == "@property":
        raise NotShown("the target is not a plain function")
    scene.write(replace(scene.shape, body="import torch\nreturn torch.ones(2) + 1"))
    scene.patch = replace(scene.patch, function=_passing_on(scene.patch, lambda: torch.ones(2) + 1), bodies=())
    scene.import_target()
    scene.enable()
    scene.expect("applied")
    (call, *_) = scene.uses()
    compiled = torch.compile(call, fullgraph=True, backend="eager")
    check(torch.equal(compiled(), torch.full((2,), 2.0)), "the compiled function returns another value")


def _passing_on(patch: Patch, answer: Callable[[], Any]) -> Callable[..., Any]:
    """Return a wrapper, or a replacement with the patch's signature, without the counter, which would break a graph."""
    if patch.kind == "wrap":
        return lambda wrapped, instance, args, kwargs: wrapped(*args, **kwargs)
    if patch.function is None:
        raise NotShown("the replacement is a value")

    def instead(*args: Any, **kwargs: Any) -> Any:
        return answer()

    instead.__signature__ = inspect.signature(patch.function)  # type: ignore[attr-defined]
    return instead


def rewritten_script(scene: Scene) -> None:
    """A launched script is rewritten before it runs. Another version of the script is reported and left alone."""
    from ascend_adapt.runtime import enabling

    scene.write_script()
    scene.enable()
    path = scene.folder / str(scene.patch.host_script)
    enabling.script_code(str(path), path.read_bytes())
    scene.expect("applied")
    altered = stand_in.source(scene.patch, replace(scene.shape, body="return 'another expression'"))
    ascend_adapt.disable()
    with scene.drift_allowed():
        scene.enable()
        enabling.script_code(str(path), altered.encode())
    scene.expect("drifted")
