"""What becomes of patches and what raises; several on one target; reload, threads, fork."""

from __future__ import annotations

import gc
import importlib
import itertools
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest
from stand_ins import GRAVE, TERMS, Site, counting, plugin

import ascend_adapt
from ascend_adapt import add, entry, replace, rewrite, wrap
from ascend_adapt.errors import AdaptError, PatchConflict, PatchDrift, PatchFailed, PatchLost

Enable = Callable[..., ascend_adapt.Status]


def noted(target: str, notes: list[str], name: str, **terms: Any) -> ascend_adapt.Patch:
    @wrap(target, name=name, **{**TERMS, **terms})
    def note(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
        notes.append(name)
        return wrapped(*args, **kwargs)

    return note


def test_a_patch_is_armed_then_applied_then_reverted(site: Site, enable: Enable) -> None:
    """Case patch-1: applied once however often it is enabled, and one revert restores the very original."""
    site.write(upstream="def f(): return 1\nKEPT = (f,)\n")
    calls: list[Any] = []
    ours = plugin(counting("upstream:f", calls))
    outcome = ascend_adapt.enable(plugins=[ours])["counting"]
    assert (outcome.state, outcome.plugin, outcome.target) == ("armed", "stand_in", "upstream:f")
    assert "upstream" not in sys.modules
    import upstream

    for _ in range(3):
        assert ascend_adapt.enable(plugins=[ours])["counting"].state == "applied"
    assert upstream.f() == 1
    assert len(calls) == 1
    assert ascend_adapt.disable()["counting"].state == "reverted"
    assert upstream.f is upstream.KEPT[0]


def test_a_patch_whose_target_was_never_imported_says_so_at_the_end(site: Site, enable: Enable) -> None:
    enable(counting("upstream:f", []))
    outcome = ascend_adapt.disable()["counting"]
    assert (outcome.state, outcome.reason) == ("reverted", "was armed, but its target was never imported")


def test_an_undo_that_raises_leaves_no_patch_in_force(site: Site, enable: Enable) -> None:
    site.write(upstream="def f(): return 1\ndef g(): return 1\n")
    enable(noted("upstream:f", [], "other"), noted("upstream:g", [], "undoing", undo=lambda: {}["gone"]))
    import upstream

    kept = upstream.f.__wrapped__, upstream.g.__wrapped__
    status = ascend_adapt.disable()
    assert (upstream.f, upstream.g) == kept
    assert (status["other"].state, status["undoing"].state) == ("reverted", "failed")
    assert "KeyError: 'gone'" in status["undoing"].reason


@pytest.mark.parametrize("target", ["upstream:gone", "upstream:Engine.gone", "upstream:Gone.f", "upstream:f.inner"])
@pytest.mark.parametrize("kind", ["wrap", "replace", "rewrite", "entry"])
def test_a_missing_target_is_drift_and_stays_missing(site: Site, enable: Enable, target: str, kind: str) -> None:
    """Case patch-2: never created, never guessed; the import continues."""
    site.write(upstream="def f(): return 1\nclass Engine: pass\n")

    def call(*args: Any, **kwargs: Any) -> None: ...

    patch = {
        "wrap": lambda: wrap(target, name="p", **TERMS)(call),
        "replace": lambda: replace(target, name="p", **TERMS)(call),
        "rewrite": lambda: rewrite(target, old="1", new="2", name="p", **TERMS),
        "entry": lambda: entry(target, "k", 1, present=True, name="p", **TERMS),
    }[kind]()
    enable(patch)
    import upstream

    before = {name for name in vars(upstream) if not name.startswith("__")}
    outcome = ascend_adapt.status()["p"]
    assert outcome.state == "drifted"
    assert target.split(":")[1].split(".")[-1] in outcome.reason or "f" in outcome.reason
    assert before == {"f", "Engine"}
    assert not hasattr(upstream.Engine, "gone")


def test_a_grave_drift_raises_out_of_every_import(site: Site, enable: Enable) -> None:
    site.write(
        upstream="def f(): return 1\n",
        careful="try:\n    import upstream\nexcept ImportError:\n    upstream = None\n",
    )
    enable(counting("upstream:gone", [], **GRAVE))
    for _ in range(3):
        with pytest.raises(PatchDrift, match="'gone' is not in module upstream") as caught:
            import careful  # noqa: F401
        assert not isinstance(caught.value, ImportError)
        assert "upstream" not in sys.modules
    assert "wrong numbers" in str(caught.value)
    assert "--allow-drift counting" in str(caught.value)
    assert "stand_in" in str(caught.value)


def test_a_grave_drift_raises_at_a_late_enable_and_leaves_nothing_in_force(site: Site, enable: Enable) -> None:
    site.write(upstream="def f(): return 1\n")
    import upstream

    original = upstream.f
    with pytest.raises(PatchDrift):
        enable(counting("upstream:f", [], name="good"), counting("upstream:gone", [], **GRAVE))
    assert upstream.f is original
    assert not [one for one in ascend_adapt.status().outcomes if one.state == "applied"]
    assert enable(counting("upstream:f", [], name="good"))["good"].state == "applied"


def test_allow_drift_continues_without_the_patch(site: Site, enable: Enable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ASCEND_ADAPT_ALLOW_DRIFT", "counting")
    site.write(upstream="def f(): return 1\n")
    enable(counting("upstream:gone", [], **GRAVE), strict=True)
    import upstream

    assert upstream.f() == 1
    assert ascend_adapt.status()["counting"].state == "drifted"


@pytest.mark.parametrize("late", [False, True])
def test_strict_raises_on_every_drift(site: Site, enable: Enable, late: bool) -> None:
    site.write(upstream="def f(): return 1\n")
    if late:
        import upstream
    with pytest.raises(PatchDrift):  # noqa: PT012
        enable(counting("upstream:gone", []), strict=True)
        import upstream  # noqa: F401


def test_a_patch_that_raises_is_failed_and_the_import_continues(site: Site, enable: Enable) -> None:
    site.write(upstream="def f(): return 1\n")

    def broken(original: Any) -> str:
        raise KeyError("whatever")

    bad = wrap("upstream:f", unless=broken, name="bad", **TERMS)(lambda *a: None)
    enable(bad, counting("upstream:f", []))
    import upstream

    assert upstream.f() == 1
    outcome = ascend_adapt.status()["bad"]
    assert (outcome.state, outcome.reason) == ("failed", "KeyError: 'whatever'")
    assert ascend_adapt.status()["counting"].state == "applied"


@pytest.mark.parametrize("error", [ImportError("no"), SystemExit(3)])
def test_a_grave_failure_raises_patch_failed(site: Site, enable: Enable, error: BaseException) -> None:
    site.write(upstream="def f(): return 1\n")

    def broken(original: Any) -> str:
        raise error

    enable(wrap("upstream:f", unless=broken, name="bad", **GRAVE)(lambda *a: None))
    with pytest.raises(PatchFailed if isinstance(error, Exception) else SystemExit):
        import upstream  # noqa: F401


def test_a_target_that_already_behaves_is_not_needed(site: Site, enable: Enable) -> None:
    site.write(upstream="def f(return_logits=False): return 1\ndef there(): return 2\nTABLE = {'k': 1}\n")
    import upstream

    before = dict(vars(upstream))

    def accepts(original: Any) -> str:
        return "it takes return_logits" if "return_logits" in original.__code__.co_varnames else ""

    status = enable(
        wrap("upstream:f", unless=accepts, name="wrapped", **TERMS)(lambda *a: None),
        replace("upstream:f", unless=accepts, name="replaced", **TERMS)(lambda *a, **k: None),
        add("upstream:there", value=3, name="added", **TERMS),
        entry("upstream:TABLE", "k", 2, present=False, name="entered", **TERMS),
        rewrite("upstream:there", old="1", new="2", name="rewritten", **TERMS),
    )
    for name in ("wrapped", "replaced", "added", "entered", "rewritten"):
        assert status[name].state == "not_needed"
    assert status["wrapped"].reason == "it takes return_logits"
    assert dict(vars(upstream)) == before


def test_what_cannot_be_undone_says_so(site: Site, enable: Enable) -> None:
    site.write(upstream="def f(): return 1\n")
    import upstream  # noqa: F401

    once = wrap("upstream:f", reversible=False, name="once", **TERMS)(lambda w, i, a, k: w(*a, **k))
    assert enable(once)["once"].reversible is False
    outcome = ascend_adapt.disable()["once"]
    assert (outcome.state, outcome.reason) == ("reverted", "its effects cannot be undone")


@pytest.mark.parametrize("order", list(itertools.permutations("abc")))
@pytest.mark.parametrize("target", ["f", "Engine.m", "Engine.c", "Sub.m"])
def test_wraps_on_one_target_are_reverted_in_any_order(
    site: Site, enable: Enable, order: tuple[str, ...], target: str
) -> None:
    site.write(
        upstream="""
        def f(): return 1
        class Engine:
            def m(self): return 1
            @classmethod
            def c(cls): return 1
        class Sub(Engine): pass
        """,
        client="from upstream import f, Engine\nm = Engine.m\n",
    )
    import client
    import upstream

    before = [dict(vars(one)) for one in (upstream, upstream.Engine, upstream.Sub, client)]
    use = {
        "f": lambda: client.f(),
        "Engine.m": lambda: client.m(upstream.Engine()),
        "Engine.c": lambda: upstream.Engine.c(),
        "Sub.m": lambda: upstream.Sub().m(),
    }[target]
    notes: list[str] = []
    enable(*(noted(f"upstream:{target}", notes, name) for name in "abc"))
    assert use() == 1
    assert notes == ["c", "b", "a"]
    left = "cba"
    for name in order:
        ascend_adapt.enable(disable=[name])
        left = left.replace(name, "")
        notes.clear()
        assert use() == 1
        assert "".join(notes) == left
        assert ascend_adapt.status()[name].state == "disabled"
    assert before == [dict(vars(one)) for one in (upstream, upstream.Engine, upstream.Sub, client)]


@pytest.mark.parametrize("replaced_first", [True, False])
def test_a_wrap_goes_around_a_replacement_whichever_came_first(
    site: Site, enable: Enable, replaced_first: bool
) -> None:
    site.write(upstream="def f(): return 1\n", client="from upstream import f\n")
    import client
    import upstream

    original = upstream.f
    notes: list[str] = []
    patches = [replace("upstream:f", name="other", **TERMS)(lambda: 2), noted("upstream:f", notes, "around")]
    enable(*(patches if replaced_first else reversed(patches)))
    assert upstream.f is client.f
    assert client.f() == 2
    assert notes == ["around"]
    ascend_adapt.enable(disable=["other"])
    assert client.f() == 1
    assert notes == ["around"] * 2
    ascend_adapt.disable()
    assert upstream.f is client.f is original


def test_a_wrap_and_a_rewrite_of_one_function(site: Site, enable: Enable) -> None:
    source = "class Engine:\n    def call(self): return 1\n    def f(self): return 1\n"
    site.write(upstream=source)
    import upstream

    for name in ("call", "f"):
        for order in itertools.permutations(("wrapped", "rewritten")):
            notes: list[str] = []
            target = f"upstream:Engine.{name}"
            patches = {
                "wrapped": noted(target, notes, "wrapped"),
                "rewritten": rewrite(target, old="1", new="2", name="rewritten", **TERMS),
            }
            original, code = vars(upstream.Engine)[name], vars(upstream.Engine)[name].__code__
            for undone in order:
                enable(*(patches[one] for one in order))
                assert getattr(upstream.Engine(), name)() == 2
                assert notes.pop() == "wrapped"
                assert {ascend_adapt.status()[one].state for one in order} == {"applied"}
                ascend_adapt.enable(disable=[undone])
                assert getattr(upstream.Engine(), name)() == (1 if undone == "rewritten" else 2)
                assert len(notes) == (1 if undone == "rewritten" else 0)
                ascend_adapt.disable()
                notes.clear()
                assert vars(upstream.Engine)[name] is original
                assert original.__code__ is code


def exclusive(kind: str, name: str, **terms: Any) -> Any:
    terms = {**TERMS, "name": name, **terms}
    if kind == "replace":
        return replace("upstream:f", **terms)(lambda: 2)
    if kind == "entry":
        return entry("upstream:TABLE", "k", name, present=True, **terms)
    return rewrite("upstream:f", old="1", new="2", **terms)


@pytest.mark.parametrize(
    "kinds", [("replace", "replace"), ("rewrite", "rewrite"), ("replace", "rewrite"), ("entry",) * 2]
)
@pytest.mark.parametrize("late", [False, True])
def test_two_that_exclude_each_other_are_a_conflict(site: Site, kinds: tuple[str, str], late: bool) -> None:
    site.write(upstream="def f(): return 1\nTABLE = {'k': 0}\n")
    if late:
        import upstream
    with pytest.raises(PatchConflict) as caught:
        ascend_adapt.enable(
            plugins=[plugin(exclusive(kinds[0], "a"), name="one"), plugin(exclusive(kinds[1], "b"), name="two")]
        )
    for word in ("patch 'a'", "'one'", "patch 'b'", "'two'", "disable"):
        assert word in str(caught.value)
    import upstream

    assert upstream.f() == 1
    assert upstream.TABLE == {"k": 0}


def test_a_conflict_is_resolved_by_disabling_one_patch(site: Site) -> None:
    site.write(upstream="def f(): return 1\n")
    one, two = plugin(exclusive("replace", "a"), name="one"), plugin(exclusive("replace", "b"), name="two")
    assert ascend_adapt.enable(plugins=[one, two], disable=["two"])["a"].state == "armed"


def test_replacements_for_disjoint_versions_are_no_conflict(site: Site) -> None:
    site.write(upstream="__version__ = '2.0'\ndef f(): return 1\n")
    old = plugin(exclusive("replace", "a", requires="upstream<2"), name="one")
    new = plugin(exclusive("replace", "b", requires="upstream>=2"), name="two")
    ascend_adapt.enable(plugins=[old, new])
    import upstream

    assert upstream.f() == 2
    status = ascend_adapt.status()
    assert (status["a"].state, status["b"].state) == ("skipped", "applied")


def test_a_conflict_seen_only_at_import_names_both_plugins(site: Site) -> None:
    site.write(upstream="__version__ = '2.0'\ndef f(): return 1\n")
    one = plugin(exclusive("replace", "a", requires="upstream>=1"), name="one")
    two = plugin(exclusive("replace", "b", requires="upstream>=2"), name="two")
    ascend_adapt.enable(plugins=[one, two])
    with pytest.raises(PatchConflict, match="disable one.a or two.b") as reported:
        import upstream  # noqa: F401
    outcome = ascend_adapt.status()["b"]
    assert (outcome.state, outcome.reason) == ("failed", str(reported.value))
    for word in ("patch 'a'", "'one'", "patch 'b'", "'two'"):
        assert word in outcome.reason


@pytest.mark.parametrize(
    ("target", "reason"),
    [
        ("package.missing:f", "package.missing is not in package package"),
        ("package.inner.missing:f", "package.inner.missing is not in package package.inner"),
        ("package.module.missing:f", "package.module.missing is not in package package.module"),
    ],
)
def test_a_module_that_is_not_in_its_package_is_drift(site: Site, enable: Enable, target: str, reason: str) -> None:
    site.write(package__module="", package__inner__real="f = len")
    enable(counting(target, [], name="wrong"), counting("package.inner.real:f", [], name="right"))
    import package.inner
    import package.module  # noqa: F401

    status = ascend_adapt.status()
    assert (status["wrong"].state, status["wrong"].reason) == ("drifted", f"{target}: {reason}")
    assert status["right"].state == "armed"
    assert "package.inner.real" not in sys.modules


def test_a_missing_module_raises_where_its_absence_gives_wrong_numbers(site: Site, enable: Enable) -> None:
    site.write(package__module="")
    enable(counting("package.missing:f", [], without="wrong numbers"))
    with pytest.raises(PatchDrift, match=r"package\.missing is not in package package"):
        import package  # noqa: F401


def test_a_conflict_on_joining_changes_nothing(site: Site) -> None:
    site.write(upstream="def f(): return 1\n")
    import upstream

    ascend_adapt.enable(plugins=[plugin(exclusive("replace", "a"), name="one")])
    before = ascend_adapt.status()
    for _ in range(2):
        with pytest.raises(PatchConflict):
            ascend_adapt.enable(
                plugins=[plugin(exclusive("replace", "b"), counting("upstream:f", [], name="c"), name="two")]
            )
        assert ascend_adapt.status() == before
    assert ascend_adapt.enable() == before
    notes: list[str] = []
    ascend_adapt.enable(plugins=[plugin(noted("upstream:f", notes, "around"), name="two")])
    assert upstream.f() == 2
    assert notes == ["around"]


def test_a_grave_drift_on_joining_leaves_the_others_as_they_were(site: Site) -> None:
    site.write(upstream="def f(): return 1\n")
    import upstream

    notes: list[str] = []
    before = ascend_adapt.enable(plugins=[plugin(noted("upstream:f", notes, "first"), name="one")])
    with pytest.raises(PatchDrift):
        ascend_adapt.enable(
            plugins=[plugin(noted("upstream:f", notes, "b"), counting("upstream:gone", [], **GRAVE), name="two")]
        )
    assert ascend_adapt.status() == before
    upstream.f()
    assert notes == ["first"]


def test_a_patch_disabled_on_joining_is_never_tried(site: Site) -> None:
    site.write(upstream="def f(): return 1\n")
    import upstream  # noqa: F401

    ascend_adapt.enable()
    ours = plugin(counting("upstream:gone", [], **GRAVE), name="two")
    assert ascend_adapt.enable(plugins=[ours], disable=["counting"])["counting"].state == "disabled"


SOURCES = {
    "function": "def f(): return 1\n",
    "method": "class Engine:\n    def f(self): return 1\nf = lambda: Engine().f()\n",
}


@pytest.mark.parametrize("what", SOURCES)
@pytest.mark.parametrize("kind", ["wrap", "rewrite", "replace"])
def test_a_reloaded_target_is_lost_until_enabled_again(site: Site, enable: Enable, what: str, kind: str) -> None:
    """Case patch-5."""
    site.write(upstream=SOURCES[what])
    target = "upstream:f" if what == "function" else "upstream:Engine.f"
    patch = {
        "wrap": lambda: wrap(target, name="p", **TERMS)(lambda w, i, a, k: 2),
        "rewrite": lambda: rewrite(target, old="1", new="2", name="p", **TERMS),
        "replace": lambda: replace(target, name="p", **TERMS)(lambda *engine: 2),
    }[kind]()
    enable(patch)
    import upstream

    assert upstream.f() == 2
    old = getattr(upstream, "Engine", None)
    importlib.reload(upstream)
    state = ascend_adapt.status()["p"].state
    assert (state, upstream.f()) in [("lost", 1), ("applied", 2)]
    assert ascend_adapt.enable()["p"].state == "applied"
    assert upstream.f() == 2
    assert ascend_adapt.disable()["p"].state == "reverted"
    assert upstream.f() == 1
    assert old is None or old().f() == 1


def test_a_target_imported_anew_is_patched_anew(site: Site, enable: Enable) -> None:
    """Case patch-5."""
    site.write(upstream="def f(): return 1\nKEPT = (f,)\n", client="from upstream import f\n")
    calls: list[Any] = []
    enable(counting("upstream:f", calls))
    import upstream as first

    for count in range(1, 4):
        del sys.modules["upstream"]
        assert ascend_adapt.status()["counting"].state == "lost"
        second = importlib.import_module("upstream")
        assert second is not first
        sys.modules.pop("client", None)
        assert importlib.import_module("client").f() == 1
        assert len(calls) == count
        assert ascend_adapt.status()["counting"].state == "applied"
    assert ascend_adapt.disable()["counting"].state == "reverted"
    assert first.f is first.KEPT[0]
    assert second.f is second.KEPT[0]


def test_a_target_imported_anew_while_off_is_left_alone(site: Site, enable: Enable) -> None:
    site.write(upstream="def f(): return 1\nKEPT = (f,)\n")
    enable(counting("upstream:f", []))
    import upstream  # noqa: F401

    ascend_adapt.disable()
    del sys.modules["upstream"]
    again = importlib.import_module("upstream")
    assert again.f is again.KEPT[0]


def test_strict_raises_on_lost(site: Site, enable: Enable) -> None:
    site.write(upstream="def f(): return 1\n")
    enable(counting("upstream:f", []), strict=True)
    import upstream

    def somebody_else() -> None: ...

    upstream.f = somebody_else
    assert ascend_adapt.status()["counting"].state == "lost"
    ascend_adapt.enable()  # applied again, around what stands there now
    assert ascend_adapt.status()["counting"].state == "applied"
    del upstream.f
    with pytest.raises((PatchLost, PatchDrift)):
        ascend_adapt.enable()


def test_what_somebody_else_changed_afterwards_is_left_alone(site: Site, enable: Enable) -> None:
    site.write(upstream="def f(): return 1\nTABLE = {'k': 1}\n")
    import upstream

    enable(
        counting("upstream:f", []),
        add("upstream:g", value=object(), name="added", **TERMS),
        entry("upstream:TABLE", "k", 2, present=True, name="entered", **TERMS),
    )
    ours = upstream.f

    def theirs() -> Any:
        return ours()

    upstream.f, upstream.g, upstream.TABLE["k"] = theirs, 3, 4
    status = ascend_adapt.disable()
    assert {status[name].state for name in ("counting", "added", "entered")} == {"lost"}
    assert "left alone" in status["counting"].reason
    assert (upstream.f, upstream.g, upstream.TABLE) == (theirs, 3, {"k": 4})


def test_enable_from_within_the_targets_own_import(site: Site) -> None:
    site.write(
        upstream="""
        def f(): return 1
        import ascend_adapt
        from stand_ins import counting, plugin
        CALLS = []
        STATE = ascend_adapt.enable(plugins=[plugin(counting("upstream:late", CALLS))])["counting"].state
        def late(): return 2
        """
    )
    site.run(
        """
        import upstream
        assert upstream.STATE == "armed"
        assert upstream.late() == 2
        assert len(upstream.CALLS) == 1, "used before any other import"
        """
    )


def test_enable_from_within_an_import_that_fails(site: Site, enable: Enable) -> None:
    site.write(
        upstream="""
        import sys
        import ascend_adapt, ours
        ascend_adapt.enable(plugins=[ours.PLUGIN])
        def f(): return 1
        if not hasattr(sys, "second_try"):
            sys.second_try = True
            raise OSError("the first import fails")
        """,
        ours="from stand_ins import counting, plugin\nPLUGIN = plugin(counting('upstream:f', []))\n",
    )
    try:
        with pytest.raises(OSError, match="first import"):
            import upstream
        import upstream

        assert ascend_adapt.status()["counting"].state == "applied"
        assert hasattr(upstream.f, "__wrapped__")
    finally:
        del sys.second_try  # type: ignore[attr-defined]


def test_a_submodule_target_when_the_package_enables(site: Site, enable: Enable) -> None:
    site.package("upstream", "import upstream.engine\nimport ascend_adapt\nascend_adapt.enable()\n")
    site.write(upstream__engine="def f(): return 1\n")
    calls: list[Any] = []
    enable(counting("upstream.engine:f", calls), counting("upstream:engine.f", calls, name="via"))
    import upstream

    upstream.engine.f()
    assert len(calls) == 2
    ascend_adapt.disable()
    assert not hasattr(upstream.engine.f, "__wrapped__")


def test_a_module_that_stands_in_for_itself(site: Site, enable: Enable) -> None:
    """As transformers does with its lazy module."""
    site.write(
        upstream="""
        import sys, types
        class Lazy(types.ModuleType):
            def __getattr__(self, name): raise AttributeError(name)
        lazy = Lazy(__name__)
        lazy.__spec__ = __spec__
        lazy.f = lambda: 1
        sys.modules[__name__] = lazy
        """,
        objected="""
        import sys
        class Namespace:
            def __init__(self): self.f = lambda: 1
        sys.modules[__name__] = Namespace()
        """,
    )
    calls: list[Any] = []
    enable(*(counting(f"{name}:f", calls, name=name) for name in ("upstream", "objected")))
    import objected
    import upstream

    assert upstream.f() == objected.f() == 1
    assert len(calls) == 1
    status = ascend_adapt.disable()
    assert upstream.f() == 1
    assert len(calls) == 1
    assert status["upstream"].state == "reverted"
    assert status["objected"].state == "drifted"
    assert "is a Namespace in sys.modules, expected a module" in status["objected"].reason


def test_threads_that_import_at_once_see_the_patched_target(site: Site, enable: Enable) -> None:
    names = [f"target{number}" for number in range(8)]
    for name in names:
        site.write(**{name: "def f(): return 1\n", f"client_{name}": f"from {name} import f\n"})
    calls: list[Any] = []
    ours = plugin(*(counting(f"{name}:f", calls, name=name) for name in names))
    start = threading.Barrier(12)
    failures: list[BaseException] = []

    def work(number: int) -> None:
        try:
            start.wait(30)
            if number % 3 == 0:
                ascend_adapt.enable(plugins=[ours])
                ascend_adapt.status()
            for name in names[number % 8 :] + names[: number % 8]:
                importlib.import_module(f"client_{name}")
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,), daemon=True) for number in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert not [thread for thread in threads if thread.is_alive()]
    assert not failures
    for name in names:
        assert importlib.import_module(f"client_{name}").f is sys.modules[name].f
        sys.modules[name].f()
    assert len(calls) == len(names)


def test_a_process_forked_during_the_work_of_another_thread_continues(site: Site) -> None:
    site.write(
        upstream="""
        import threading
        inside, proceed = threading.Event(), threading.Event()
        def f(): return 1
        """
    )
    site.run(
        """
        import os, signal, sys, threading, warnings
        warnings.simplefilter("ignore")
        import upstream, ascend_adapt
        from stand_ins import TERMS, plugin

        def slow(original):
            upstream.inside.set()
            upstream.proceed.wait()
            return ""

        ours = plugin(ascend_adapt.wrap("upstream:f", unless=slow, name="slow", **TERMS)(lambda w, i, a, k: 2))
        worker = threading.Thread(target=ascend_adapt.enable, kwargs={"plugins": [ours]})
        worker.start()
        upstream.inside.wait()
        os.register_at_fork(before=upstream.proceed.set)
        pid = os.fork()
        if pid == 0:
            signal.alarm(20)
            os._exit(0 if ascend_adapt.status() and ascend_adapt.disable() else 1)
        worker.join()
        assert os.waitpid(pid, 0)[1] == 0
        assert upstream.f() == 2
        """
    )


def test_first_apply_calls_back_once(site: Site, enable: Enable, monkeypatch: pytest.MonkeyPatch) -> None:
    from ascend_adapt.runtime import enabling

    site.write(upstream="def f(): return 1\n", second="def f(): return 1\n")
    # The installed plugins may find their targets imported by another test.
    monkeypatch.setenv("ASCEND_ADAPT_PLUGINS", "stand_in")
    enable(counting("upstream:f", [], name="a"), counting("second:f", [], name="b"))
    reported: list[int] = []
    enabling.at_first_apply(lambda: reported.append(1))
    assert not reported
    import upstream  # noqa: F401

    assert reported == [1]
    import second  # noqa: F401

    assert reported == [1]
    enabling.at_first_apply(lambda: reported.append(2))
    assert reported == [1, 2]


def test_what_a_callback_at_the_first_apply_raised_is_raised_again(site: Site, enable: Enable, monkeypatch) -> None:
    """As that ranks differ, where a script passes over everything that an import may raise."""
    from ascend_adapt.runtime import enabling

    site.write(upstream="def f(): return 1\n", second="def f(): return 1\n")
    monkeypatch.setenv("ASCEND_ADAPT_PLUGINS", "stand_in")
    enable(counting("upstream:f", [], name="a"), counting("second:f", [], name="b"))

    def refuse() -> None:
        raise AdaptError("ranks differ")

    enabling.check()
    enabling.at_first_apply(refuse)
    for name in ("upstream", "second"):
        with pytest.raises(AdaptError, match="ranks differ"):
            importlib.import_module(name)
    with pytest.raises(AdaptError, match="ranks differ"):
        enabling.check()


def test_a_patch_for_another_device_is_skipped(site: Site, enable: Enable) -> None:
    site.write(upstream="def f(): return 1\n")
    import upstream

    original = upstream.f
    outcome = enable(counting("upstream:f", [], devices=("npu", "cuda")), device="cpu")["counting"]
    assert (outcome.state, outcome.reason) == ("skipped", "is for npu or cuda, this process runs on cpu")
    assert upstream.f is original


def test_entry_is_restored_exactly_with_the_order_of_keys(site: Site, enable: Enable) -> None:
    site.write(
        upstream="""
        import collections
        class Registry(collections.UserDict): pass
        TABLE = {"a": 1, "b": 2, "c": 3}
        REGISTRY = Registry(a=1)
        DEFAULTS = collections.defaultdict(list)
        class Engine:
            TABLE = {"x": None}
        FROZEN = (1, 2)
        """
    )
    import upstream

    status = enable(
        entry("upstream:TABLE", "b", 20, present=True, name="changed", **TERMS),
        entry("upstream:TABLE", "d", 4, present=False, name="new", **TERMS),
        entry("upstream:REGISTRY", "z", 26, present=False, name="registry", **TERMS),
        entry("upstream:DEFAULTS", "k", 1, present=False, name="defaults", **TERMS),
        entry("upstream:DEFAULTS", "missing", 1, present=True, name="absent", **TERMS),
        entry("upstream:Engine.TABLE", "x", 1, present=True, name="in_class", **TERMS),
        entry("upstream:FROZEN", 0, 1, present=True, name="frozen", **TERMS),
    )
    assert list(upstream.TABLE.items()) == [("a", 1), ("b", 20), ("c", 3), ("d", 4)]
    assert dict(upstream.REGISTRY) == {"a": 1, "z": 26}
    assert dict(upstream.DEFAULTS) == {"k": 1}
    assert upstream.Engine.TABLE == {"x": 1}
    assert (status["absent"].state, status["frozen"].state) == ("drifted", "drifted")
    ascend_adapt.disable()
    assert list(upstream.TABLE.items()) == [("a", 1), ("b", 2), ("c", 3)]
    assert dict(upstream.REGISTRY) == {"a": 1}
    assert dict(upstream.DEFAULTS) == {}
    assert upstream.Engine.TABLE == {"x": None}


@pytest.mark.parametrize("undone", ["wrapped", "entered"])
def test_an_entry_over_a_wrapped_function_in_any_order(site: Site, enable: Enable, undone: str) -> None:
    site.write(upstream="def f(): return 1\nTABLE = {'f': f}\n")
    import upstream

    original = upstream.f
    notes: list[str] = []
    enable(
        noted("upstream:f", notes, "wrapped"),
        entry("upstream:TABLE", "f", original, present=True, name="entered", **TERMS),
    )
    ascend_adapt.enable(disable=[undone])
    ascend_adapt.disable()
    assert upstream.f is upstream.TABLE["f"] is original


def test_add_puts_a_function_at_home(site: Site, enable: Enable) -> None:
    import pickle

    site.write(
        upstream="""
        class Engine: pass
        class Sub(Engine): pass
        def __getattr__(name):
            if name == "lazy": return 1
            raise AttributeError(name)
        def __dir__(): return [*globals(), "lazy"]
        """
    )
    import upstream

    @add("upstream:Engine.method", **TERMS)
    def method(self: Any, x: int = 1, *, y: int = 2) -> Any:
        """Added."""
        return type(self).__name__, x, y

    @add("upstream:Engine.static", **TERMS)
    @staticmethod
    def static() -> str:
        return "static"

    @add("upstream:Engine.made", **TERMS)
    @classmethod
    def made(cls: Any) -> str:
        return str(cls.__name__)

    value = add("upstream:Engine.value", value=property(lambda self: 7), name="value", **TERMS)
    function = add("upstream:function", name="function", **TERMS)(lambda: 3)
    lazy = add("upstream:lazy", value=2, name="lazy", **TERMS)
    status = enable(method, static, made, value, function, lazy)
    engine = upstream.Sub()
    assert (engine.method(), engine.static(), engine.made(), engine.value) == (("Sub", 1, 2), "static", "Sub", 7)
    assert (upstream.Engine.method.__qualname__, upstream.Engine.method.__module__) == ("Engine.method", "upstream")
    for one in (upstream.Engine.method, upstream.function, upstream.Engine.static):
        assert pickle.loads(pickle.dumps(one)) is one
    assert (status["lazy"].state, upstream.lazy) == ("not_needed", 1)
    ascend_adapt.disable()
    of_the_statement = {"__firstlineno__", "__static_attributes__"}  # set by a class statement from Python 3.13 on
    assert set(vars(upstream.Engine)) - of_the_statement == set(vars(type("Plain", (), {})))
    assert not hasattr(upstream, "function")


def test_every_kind_on_one_module_comes_and_goes_together(site: Site, enable: Enable) -> None:
    site.write(upstream="def f(): return 1\ndef g(): return 1\nTABLE = {}\n")
    import upstream

    before, code = dict(vars(upstream)), upstream.g.__code__
    for _ in range(3):
        enable(
            counting("upstream:f", []),
            rewrite("upstream:g", old="1", new="2", name="g", **TERMS),
            add("upstream:h", value=1, name="h", **TERMS),
            entry("upstream:TABLE", 1, 1, present=False, name="e", **TERMS),
        )
        assert upstream.g() == 2
        ascend_adapt.disable()
        assert dict(vars(upstream)) == before
        assert upstream.g.__code__ is code
        assert upstream.TABLE == {}


@pytest.mark.parametrize("lasting", [None, "wrap", "add"])
def test_a_loop_of_enabled_blocks_keeps_nothing_of_its_past(site: Site, lasting: str | None) -> None:
    """Each turn brings patches of its own: over nothing, over a wrap that stays, over an attribute that was added."""
    site.write(upstream="def f(): return 1\n")
    import upstream

    def added() -> int:
        return 1

    stays = {"wrap": counting("upstream:f", [], name="stays"), "add": add("upstream:g", name="stays", **TERMS)(added)}
    target = "upstream:g" if lasting == "add" else "upstream:f"
    with ascend_adapt.enabled(plugins=[plugin(stays[lasting], name="lasting")] if lasting else [], device="cpu"):
        counts = []
        for turn in range(16):
            with ascend_adapt.enabled(plugins=[plugin(counting(target, [], name="passing"))], device="cpu"):
                assert ascend_adapt.status()["passing"].state == "applied"
            if turn in (7, 15):
                gc.collect()
                counts.append(len(gc.get_objects()))
        assert upstream.f() == 1
    assert counts[1] - counts[0] < 14  # two functions a turn would be 16


def test_a_loop_of_enable_and_disable_leaves_no_import_hooks(site: Site) -> None:
    counts = []
    for turn in range(8):
        with ascend_adapt.enabled(device="cpu"):
            pass
        if turn in (3, 7):
            gc.collect()
            counts.append(len(gc.get_objects()))
    assert counts[1] - counts[0] < 40


@pytest.mark.parametrize("keeps", [False, True])
def test_what_a_module_gives_by_getattr_is_patched(site: Site, enable: Enable, keeps: bool) -> None:
    """PEP 562, as packages serve their names lazily: those who ask, early or late, and by either name, get the wrap."""
    site.package(
        "upstream",
        f"""
        def __getattr__(name):
            if name not in ("f", "Engine"):
                raise AttributeError(name)
            import importlib
            value = getattr(importlib.import_module("upstream.home"), name)
            if {keeps}:
                globals()[name] = value
            return value
        """,
    )
    site.write(upstream__home="def f(): return 1\nclass Engine:\n    def run(self): return 2\n")
    calls: list[Any] = []
    enable(counting("upstream:f", calls, name="f"), counting("upstream:Engine.run", calls, name="run"))
    import upstream

    assert {ascend_adapt.status()[name].state for name in ("f", "run")} == {"applied"}
    from upstream.home import f

    assert (upstream.f(), f(), upstream.Engine().run(), len(calls)) == (1, 1, 2, 3)
    for _ in range(2):
        ascend_adapt.enable()
        assert ascend_adapt.status()["f"].state == "applied"
    assert ascend_adapt.disable()["f"].state == "reverted"
    assert ("f" in vars(upstream)) is keeps
    assert upstream.f is upstream.home.f
    assert (upstream.f(), upstream.Engine().run(), len(calls)) == (1, 2, 3)


def test_a_getattr_that_fails_is_drift_and_a_name_it_lacks_too(site: Site, enable: Enable) -> None:
    site.write(
        upstream="""
        def __getattr__(name):
            raise ImportError("no library") if name == "f" else AttributeError(name)
        """
    )
    import upstream  # noqa: F401

    status = enable(counting("upstream:f", [], name="f"), counting("upstream:g", [], name="g"))
    assert (status["f"].state, status["g"].state) == ("drifted", "drifted")
    assert "upstream:f: reading it raised ImportError: no library" in status["f"].reason
    assert "'g' is not in module upstream" in status["g"].reason
