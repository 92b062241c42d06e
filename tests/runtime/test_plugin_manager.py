"""Plugins: found and checked; broken ones are reported and the others continue."""

from __future__ import annotations

import gc
import importlib.metadata
import inspect
import os
import re
import sys
import weakref
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from stand_ins import TERMS, Site, counting, plugin

import ascend_adapt
from ascend_adapt import CodeBase, add, hookimpl
from ascend_adapt.errors import PluginError, SettingsError
from ascend_adapt.runtime import hookspecs
from ascend_adapt.runtime.code_bases import KNOWN
from ascend_adapt.runtime.plugin_manager import PluginManager

OURS = {
    point.name
    for point in importlib.metadata.distribution("ascend_adapt").entry_points
    if point.group == "ascend_adapt"
}
"""The plugins that ship."""

PLUGIN = """
    from ascend_adapt import hookimpl
    from stand_ins import counting

    count = counting("upstream:f", [], name="counted")

    @hookimpl
    def register_patches():
        return [count]
"""
BROKEN = {
    "raises": ("raise RuntimeError('two\\nlines')", "importing {module} raised RuntimeError: two lines"),
    "no_module": (None, "importing {module} raised ModuleNotFoundError"),
    "misspelt": (
        "from ascend_adapt import hookimpl\n@hookimpl\ndef register_patchs(): return []",
        "register_patches, register_kernels, launch_env",
    ),
    "wrong_argument": (
        "from ascend_adapt import hookimpl\n@hookimpl\ndef launch_env(gadget): return {}",
        "gadget",
    ),
    "no_list": (
        "from ascend_adapt import hookimpl\n@hookimpl\ndef register_patches(): return None",
        "register_patches returned a NoneType, expected a list of patches",
    ),
    "no_patch": (
        "from ascend_adapt import hookimpl\n@hookimpl\ndef register_patches(): return [3]",
        "register_patches returned 3 among the patches",
    ),
    "late_raise": (
        "from ascend_adapt import hookimpl\n@hookimpl\ndef register_patches(): raise OSError('no')",
        "register_patches raised OSError: no",
    ),
    "twice": (
        """
        from ascend_adapt import hookimpl
        from stand_ins import counting
        @hookimpl
        def register_patches(): return [counting("m:f", []), counting("m:g", [])]
        """,
        "two patches are named 'counting'",
    ),
    "spec_error": (
        """
        from ascend_adapt import hookimpl, wrap
        @hookimpl
        def register_patches(): return [wrap("m", why="w", until="u", without="crash")(lambda *a: None)]
        """,
        "expected 'module:attribute'",
    ),
}


def installed(site: Site, name: str, source: str | None) -> None:
    if source is not None:
        site.write(**{f"{name}_module": source})
    site.install(f"dist_{name}", "1.0", f"{name} = {name}_module")
    os.environ["ASCEND_ADAPT_PLUGINS"] += f",{name}"  # the fixture site restores it


@pytest.mark.parametrize("kind", BROKEN)
def test_a_broken_plugin_is_reported_and_the_others_continue(site: Site, kind: str) -> None:
    source, words = BROKEN[kind]
    installed(site, "aaa", source)
    installed(site, "good", PLUGIN)
    status = ascend_adapt.enable()
    (problem,) = status.problems
    assert problem.startswith("plugin 'aaa' of dist_aaa: ")
    assert words.format(module="aaa_module") in problem
    assert "--disable aaa" in problem
    assert "\n" not in problem
    assert status["good.counted"].state == "armed"
    assert not [one for one in status.outcomes if one.plugin == "aaa"]
    assert ascend_adapt.enable().problems == status.problems
    ascend_adapt.disable()
    assert not ascend_adapt.enable(disable=["aaa"]).problems
    ascend_adapt.disable()
    with pytest.raises(PluginError, match="plugin 'aaa'"):
        ascend_adapt.enable(strict=True)
    assert ascend_adapt.enable()["counted"].state == "armed"


@pytest.mark.parametrize("joining", [False, True])
@pytest.mark.parametrize("kind", ["misspelt", "no_list", "late_raise", "twice"])
def test_a_broken_plugin_that_was_given_raises_and_leaves_nothing(site: Site, kind: str, joining: bool) -> None:
    import textwrap

    broken = ModuleType("given")
    exec(textwrap.dedent(str(BROKEN[kind][0])), vars(broken))
    good = plugin(counting("upstream:f", [], name="good"), name="good")
    if joining:
        ascend_adapt.enable()
    before = ascend_adapt.status()
    for _ in range(2):
        with pytest.raises(PluginError, match="plugin 'given'"):
            ascend_adapt.enable(plugins=[good, broken])
        assert ascend_adapt.status() == before
    assert ascend_adapt.enable(plugins=[good])["good"].state == "armed"


def test_plugins_are_ordered_by_name_and_patches_as_declared(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    installed(site, "bbb", PLUGIN)
    monkeypatch.delenv("ASCEND_ADAPT_PLUGINS")  # beside all that ship
    last = plugin(*(counting("m:f", [], name=name) for name in ("z", "a")), name="zzz")
    first = plugin(counting("m:f", [], name="only"), name="aaa")
    outcomes = ascend_adapt.enable(plugins=[last, first]).outcomes
    names = [f"{one.plugin}.{one.patch}" for one in outcomes if one.plugin not in OURS]
    assert names == ["aaa.only", "bbb.counted", "zzz.z", "zzz.a"]


def test_only_allowed_plugins_are_loaded(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    installed(site, "good", PLUGIN)
    installed(site, "bad", "raise SystemExit('loaded')")
    monkeypatch.setenv("ASCEND_ADAPT_PLUGINS", "good")
    assert {one.plugin for one in ascend_adapt.enable().outcomes} == {"good"}


def test_a_disabled_plugin_is_not_loaded(site: Site) -> None:
    installed(site, "bad", "raise SystemExit('loaded')")
    assert not [one for one in ascend_adapt.enable(disable=["bad"]).outcomes if one.plugin == "bad"]


def test_a_taken_name_is_refused(site: Site) -> None:
    installed(site, "good", PLUGIN)
    site.write(second_module=PLUGIN)
    site.install("second", "1.0", "good = second_module")
    (problem,) = ascend_adapt.enable().problems
    assert "the name is taken by plugin 'good'" in problem
    ascend_adapt.disable()
    with pytest.raises(PluginError, match="the name is taken by plugin 'one'"):
        ascend_adapt.enable(plugins=[plugin(name="one"), plugin(name="one")], disable=["good"])


def test_the_same_plugin_twice_is_once(site: Site) -> None:
    ours = plugin(counting("m:f", []))
    status = ascend_adapt.enable(plugins=[ours, ours])
    assert len([one for one in status.outcomes if one.plugin == "stand_in"]) == 1


def test_objects_are_plugins_too(site: Site) -> None:
    class Extra:
        added = add("m:f", value=1, **TERMS)

        @hookimpl
        def register_patches(self) -> list[Any]:
            return [self.added]

    outcome = ascend_adapt.enable(plugins=[Extra()])["added"]
    assert (outcome.plugin, outcome.patch) == ("Extra", "added")
    namespace = SimpleNamespace(register_patches=hookimpl(lambda: [add("m:g", value=1, **TERMS)]))
    assert ascend_adapt.enable(plugins=[namespace])["add_g"].plugin == "SimpleNamespace"


def test_register_patches_is_asked_once(site: Site) -> None:
    """It may make its patches anew each time."""
    asked: list[int] = []
    module = ModuleType("fresh")

    @hookimpl
    def register_patches() -> list[Any]:
        asked.append(1)
        return [counting("m:f", [])]

    module.register_patches = register_patches  # type: ignore[attr-defined]
    for _ in range(3):
        status = ascend_adapt.enable(plugins=[module])
    ascend_adapt.enable(plugins=[plugin(name="another")])
    assert len(asked) == 1
    assert len([one for one in status.outcomes if one.plugin == "fresh"]) == 1


@pytest.mark.parametrize("joining", [False, True])
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("countig", "did you mean 'counting'?"),
        ("stand_in.countin", "did you mean 'stand_in.counting'?"),
        ("nothing_like_it_at_all", "`ascend-adapt status` lists the names"),
    ],
)
def test_an_unknown_name_to_disable_is_an_error(site: Site, name: str, words: str, joining: bool) -> None:
    ours = plugin(counting("upstream:f", []))
    if joining:
        ascend_adapt.enable(plugins=[ours])
    with pytest.raises(SettingsError) as caught:
        ascend_adapt.enable(plugins=[ours], disable=[name])
    assert f"{name!r}: no plugin or patch has this name — {words}" in str(caught.value)
    if joining:
        assert ascend_adapt.status()["counting"].state == "armed"


@pytest.mark.parametrize("name", ["counting", "stand_in.counting", "stand_in"])
def test_what_is_disabled_by_name_is_never_applied(site: Site, name: str) -> None:
    site.write(upstream="def f(): return 1\nKEPT = (f,)\n")
    ours = plugin(counting("upstream:f", []))
    outcomes = [one for one in ascend_adapt.enable(plugins=[ours], disable=[name]).outcomes if one.plugin == "stand_in"]
    import upstream

    assert upstream.f is upstream.KEPT[0]
    assert [(one.state, one.reason) for one in outcomes] in ([("disabled", "by the user")], [])


def test_hosts_declared_twice_alike_are_one_and_otherwise_contested(site: Site) -> None:
    host, other = CodeBase("mine", present=("a",)), CodeBase("mine", present=("b",))
    one = plugin(counting("m:f", [], host=host, name="a"), counting("m:f", [], host="mine", name="b"), name="one")
    two = plugin(counting("m:f", [], host=host, name="c"), name="three")
    contested = plugin(counting("m:f", [], host=other, name="d"), name="two")
    manager = PluginManager([one, two, contested])
    hosts, usable = manager.hosts(manager.patches(), KNOWN)
    assert hosts["mine"] == host
    kept = [str(one) for one in usable if one.plugin not in OURS]
    assert [text.split("'")[1] for text in kept] == ["a", "b", "c"]
    (problem,) = manager.problems
    assert "code base 'mine'" in problem
    assert "patch 'd' (plugin 'two')" in problem
    assert "patch 'a' (plugin 'one')" in problem


def test_an_unknown_code_base_is_reported_and_other_patches_continue(site: Site) -> None:
    installed(
        site,
        "lost",
        """
        from ascend_adapt import hookimpl
        from stand_ins import counting
        patches = [counting("m:f", [], host="nowhere", name="a"), counting("m:f", [], name="b")]
        @hookimpl
        def register_patches(): return patches
        """,
    )
    status = ascend_adapt.enable()
    (problem,) = status.problems
    assert "code base 'nowhere' is unknown — pass CodeBase(...) or one of " in problem
    assert "gpt-neox" in problem
    assert [one.patch for one in status.outcomes if one.plugin == "lost"] == ["b"]


def test_launch_env_yields_to_the_environment_and_later_plugins_win(site: Site) -> None:
    def made(name: str, variables: dict[str, str]) -> ModuleType:
        module = ModuleType(name)

        @hookimpl
        def launch_env(device: str, environ: Any) -> dict[str, str]:
            return {**variables, "SEEN": f"{device} {environ['HOME']}"}

        module.launch_env = launch_env  # type: ignore[attr-defined]
        return module

    manager = PluginManager([made("one", {"A": "1", "B": "1", "C": "1"}), made("two", {"B": "2"})], ["deepspeed"])
    assert manager.launch_env("npu", {"HOME": "/h", "C": "user"}) == {"A": "1", "B": "2", "SEEN": "npu /h"}


def test_what_adapts_programs_is_described_and_undone(site: Site) -> None:
    undone = []

    class Adapted:
        def __init__(self, device: str, cuda_code: str) -> None:
            self.described = f"adapted for {device}, {cuda_code}"

        def describe(self) -> str:
            return self.described

        def undo(self) -> None:
            undone.append(self.described)

    module = ModuleType("adapting")

    @hookimpl
    def adapt_programs(device: str, cuda_code: str) -> Adapted:
        return Adapted(device, cuda_code)

    module.adapt_programs = adapt_programs  # type: ignore[attr-defined]
    status = ascend_adapt.enable(plugins=[module], device="cpu", cuda_code="script")
    assert "adapted for cpu, script" in status.programs
    ascend_adapt.disable()
    assert undone == ["adapted for cpu, script"]


HOOKS = {
    name: tuple(inspect.signature(hook).parameters)
    for name, hook in vars(hookspecs).items()
    if hasattr(hook, "ascend_adapt_spec")
}


@pytest.mark.parametrize("hook", HOOKS)
def test_every_hook_is_documented_with_its_arguments(hook: str) -> None:
    text = (Path(__file__).parents[2] / "docs" / "plugins.md").read_text()
    assert f"{hook}({', '.join(HOOKS[hook])})" in text


@pytest.mark.parametrize("hook", HOOKS)
def test_every_hook_has_a_docstring_and_a_test(hook: str) -> None:
    assert (inspect.getdoc(getattr(hookspecs, hook)) or "").startswith("Return ")
    tests = Path(__file__).read_text() + "".join(
        path.read_text() for path in Path(__file__).parents[1].rglob("test_*.py")
    )
    assert len(re.findall(rf"\bdef {hook}\b", tests)) > 0


@pytest.mark.parametrize(
    ("returned", "words"),
    [
        ("'abc'", "launch_env returned 'abc', expected a mapping of strings"),
        ("{'A': 1}", "expected a mapping of strings"),
        ("{'A=B': 'x'}", "expected a mapping of strings"),
        ("{'A': 'x\\0y'}", "expected a mapping of strings"),
        ("1 / 0", "launch_env raised ZeroDivisionError: division by zero"),
    ],
)
def test_a_plugin_that_wants_no_variables_is_named(returned: str, words: str) -> None:
    class Bad:
        @ascend_adapt.hookimpl
        def launch_env(self, device: str) -> Any:
            return eval(returned)

    manager = PluginManager([Bad()])
    with pytest.raises(PluginError, match=f"plugin 'Bad': .*{words}"):
        manager.launch_env("cpu", {})


def test_a_plugin_that_exits_at_import_is_a_problem_and_no_exit(site: Site) -> None:
    site.write(leaver="import sys; sys.exit(3)\n")
    site.install("leaver", "1.0", "leaver = leaver")
    (problem,) = PluginManager(allowed=["leaver"]).problems
    assert problem.startswith("plugin 'leaver' of leaver: importing leaver raised SystemExit: 3")


def test_a_garbage_collection_that_imports_does_not_reject_a_plugin() -> None:
    """Reading a dict item by item allocates, and the collections that this may start run finalizers."""
    # More modules than the 2000 pairs that Python keeps to be used again without an allocation.
    imported = [f"imported_before_{number}" for number in range(3000)]
    sys.modules.update(dict.fromkeys(imported, ModuleType("imported_before")))

    def import_at_the_next_collection() -> None:
        cycle = plugin()
        cycle.itself = cycle  # type: ignore[attr-defined]
        weakref.finalize(cycle, import_one)

    def import_one() -> None:
        if gc.get_threshold() == thresholds:
            return  # the test is over
        imported.append(f"imported_by_a_finalizer_{len(imported)}")
        sys.modules[imported[-1]] = ModuleType(imported[-1])
        import_at_the_next_collection()

    manager = PluginManager([plugin(counting("upstream:f", [], name="counted"))], [], [])
    thresholds = gc.get_threshold()
    import_at_the_next_collection()
    try:
        gc.set_threshold(50)
        names = [one.name for one in manager.patches()]
    finally:
        gc.set_threshold(*thresholds)
        for name in imported:
            del sys.modules[name]
    assert (names, manager.problems) == (["counted"], [])
