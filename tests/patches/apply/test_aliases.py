"""Copies of a target in other modules follow it, and nothing else does."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
from stand_ins import TERMS, Site, counting

import ascend_adapt
from ascend_adapt import add, entry, replace, rewrite
from ascend_adapt.patches.apply import aliases

Enable = Callable[..., ascend_adapt.Status]


def test_a_replaced_value_leaves_equal_values_elsewhere_alone(site: Site, enable: Enable) -> None:
    site.write(
        upstream="LIMIT = 3\nFLAG = True\nNAME = 'name'\nNOTHING = None\n",
        other="A = 3\nB = True\nC = 'name'\nD = None\n",
    )
    import other
    import upstream

    before, here = dict(vars(other)), dict(vars(upstream))
    values = {"LIMIT": 9, "FLAG": False, "NAME": "changed", "NOTHING": 0}
    enable(*(replace(f"upstream:{name}", value=value, name=name, **TERMS) for name, value in values.items()))
    assert {name: vars(upstream)[name] for name in values} == values
    assert vars(other) == before
    zeros = {name: value for name, value in vars(sys).items() if value is False}
    ascend_adapt.disable()
    assert vars(other) == before
    assert vars(upstream) == here
    assert zeros == {name: value for name, value in vars(sys).items() if value is False}


def test_a_replaced_object_is_followed(site: Site, enable: Enable) -> None:
    site.write(
        upstream="class Accelerator: pass\nACCELERATOR = Accelerator()\n", other="from upstream import ACCELERATOR"
    )
    import other
    import upstream

    original, mine = upstream.ACCELERATOR, object()
    enable(replace("upstream:ACCELERATOR", value=mine, name="mine", **TERMS))
    assert other.ACCELERATOR is upstream.ACCELERATOR is mine
    ascend_adapt.disable()
    assert other.ACCELERATOR is upstream.ACCELERATOR is original


def test_a_borrowed_function_is_patched_for_its_borrower_only(site: Site, enable: Enable) -> None:
    """``megatron.x:softmax`` taken from torch must not change torch for everybody."""
    site.write(
        library="def softmax(x): return x\n",
        upstream__model="from library import softmax\n",
        upstream__user="from upstream.model import softmax\n",
        stranger="from library import softmax\n",
    )
    import library
    import stranger

    calls: list[Any] = []
    enable(counting("upstream.model:softmax", calls))
    import pickle

    import upstream.model
    import upstream.user

    assert library.softmax(1) == stranger.softmax(1) == 1
    assert not calls
    assert upstream.model.softmax(1) == upstream.user.softmax(1) == 1
    assert len(calls) == 2
    assert pickle.loads(pickle.dumps(upstream.user.softmax)) is upstream.model.softmax
    ascend_adapt.disable()
    assert library.softmax is stranger.softmax is upstream.model.softmax is upstream.user.softmax


@pytest.mark.parametrize("first", ["enable", "home", "package"])
def test_a_function_named_by_two_modules_of_a_package_is_one(site: Site, enable: Enable, first: str) -> None:
    """``package:f`` re-exports ``package.home:f``: patched by either name, both are, in any order of imports."""
    site.write(package__home="def f(): return 1\n")
    site.package("package", "")
    site.write(package__api="from package.home import f\n")
    calls: list[Any] = []
    if first == "home":
        import package.home
    if first == "package":
        import package.api
    enable(counting("package.api:f", calls))
    import package.api
    import package.home

    assert package.api.f is package.home.f
    assert package.home.f() == 1
    assert len(calls) == 1
    ascend_adapt.disable()
    assert package.api.f is package.home.f
    assert package.home.f() == 1
    assert len(calls) == 1


@pytest.mark.parametrize("gone", ["api", "home", "both"])
def test_two_patches_on_one_function_through_two_names(site: Site, enable: Enable, gone: str) -> None:
    site.write(package__home="def f(): return 1\nKEPT = (f,)\n", package__api="from package.home import f\n")
    api: list[Any] = []
    home: list[Any] = []
    import package.api
    import package.home

    enable(counting("package.api:f", api, name="api"), counting("package.home:f", home, name="home"))
    assert package.api.f is package.home.f
    assert package.api.f() == 1
    assert (len(api), len(home)) == (1, 1)
    assert {one.state for one in ascend_adapt.status().outcomes if one.plugin == "stand_in"} == {"applied"}
    if gone != "both":
        ascend_adapt.enable(disable=[gone])
        assert package.api.f is package.home.f
        assert package.home.f() == 1
        assert (len(api), len(home)) == ((1, 2) if gone == "api" else (2, 1))
    ascend_adapt.disable()
    assert package.api.f is package.home.f is package.home.KEPT[0]


def test_a_borrowed_function_follows_a_patch_of_its_home(site: Site, enable: Enable) -> None:
    site.write(library="def f(): return 1\n", upstream="from library import f\n")
    import library
    import upstream

    original = library.f
    home: list[Any] = []
    borrower: list[Any] = []
    enable(counting("upstream:f", borrower, name="borrower"), counting("library:f", home, name="home"))
    assert upstream.f() == 1
    assert (len(borrower), len(home)) == (1, 1)
    assert library.f() == 1
    assert (len(borrower), len(home)) == (1, 2)
    ascend_adapt.enable(disable=["home"])
    assert upstream.f() == 1
    assert (len(borrower), len(home)) == (2, 2)
    ascend_adapt.disable()
    assert upstream.f is library.f is original


def test_another_name_in_the_targets_class_follows(site: Site, enable: Enable) -> None:
    """As in torch: ``class Module: __call__ = _wrapped_call_impl``."""
    site.write(
        upstream="""
        class Engine:
            def _step(self): return 1
            __call__ = _step
            step = _step
        class Sub(Engine):
            forward = Engine._step
        """
    )
    calls: list[Any] = []
    enable(counting("upstream:Engine._step", calls))
    import upstream

    assert upstream.Engine()() == upstream.Engine().step() == upstream.Sub().forward() == 1
    assert len(calls) == 3
    ascend_adapt.disable()
    assert upstream.Engine.__call__ is upstream.Engine.step is upstream.Sub.forward is upstream.Engine._step
    assert not hasattr(upstream.Engine._step, "__wrapped__")


def test_an_inherited_target_leaves_copies_of_the_bases_method_alone(site: Site, enable: Enable) -> None:
    site.write(
        upstream="""
        class Base:
            def step(self): return 1
        class Sub(Base): pass
        step, TABLE = Base.step, {1: Base.step}
        """
    )
    import upstream

    calls: list[Any] = []
    enable(counting("upstream:Sub.step", calls))
    assert upstream.step(upstream.Base()) == upstream.TABLE[1](upstream.Base()) == 1
    assert upstream.step is upstream.Base.step is upstream.TABLE[1]
    assert not calls
    upstream.taken = upstream.Sub.step
    assert upstream.taken(upstream.Sub()) == 1
    assert len(calls) == 1
    ascend_adapt.disable()
    assert upstream.taken is upstream.Base.step


def test_a_version_known_late_still_rebinds_the_aliases_made_meanwhile(site: Site, enable: Enable) -> None:
    """The package's __init__ and the target's siblings took copies before __version__ was set."""
    site.package(
        "package",
        """
        from package.target import f
        from package.sibling import f as again
        __version__ = "2.0"
        """,
    )
    site.write(
        package__target="def f(): return 1\nfrom package import circular\n",
        package__circular="from package.target import f as early\n",
        package__sibling="from package.target import f\n",
    )
    calls: list[Any] = []
    enable(counting("package.target:f", calls, requires="package>=2"))
    import package

    assert ascend_adapt.status()["counting"].state == "applied"
    assert package.target.f is package.f is package.again is package.sibling.f is package.circular.early
    package.circular.early()
    assert len(calls) == 1


def test_a_circular_import_takes_the_patched_function(site: Site, enable: Enable) -> None:
    site.write(
        upstream="def f(): return 1\nimport partner\n",
        partner="from upstream import f\ndef use(): return f()\n",
    )
    calls: list[Any] = []
    enable(counting("upstream:f", calls))
    import partner
    import upstream

    assert partner.use() == 1
    assert partner.f is upstream.f
    assert len(calls) == 1


def test_a_late_apply_names_what_it_cannot_reach(site: Site, enable: Enable) -> None:
    site.write(
        upstream="def f(): return 1\n",
        client="""
        import functools
        from upstream import f
        class Trainer:
            def __init__(self): self.step = f
        TRAINER = Trainer()
        PARTIAL = functools.partial(f)
        def outer(g):
            def inner(): return g()
            return inner
        INNER = outer(f)
        """,
    )
    import client
    import upstream

    calls: list[Any] = []
    reason = enable(counting("upstream:f", calls))["counting"].reason
    assert "3 references keep the original" in reason
    assert "a closure cell" in reason
    assert "functools.partial" in reason
    assert client.f is upstream.f


def test_a_late_apply_with_nothing_out_of_reach_says_nothing(site: Site, enable: Enable) -> None:
    site.write(
        upstream="""
        def f(): return 1
        class Base:
            def m(self): return 1
        class Engine(Base):
            def g(self): return 1
            @staticmethod
            def s(): return 1
            @classmethod
            def c(cls): return 1
            @property
            def p(self): return 1
            TABLE = {"g": g}
        TABLE = {"f": f}
        """
    )
    import upstream  # noqa: F401

    names = ("f", "Engine.g", "Engine.m", "Engine.s", "Engine.c", "Engine.p")
    status = enable(*(counting(f"upstream:{name}", [], name=name) for name in names))
    assert {status[name].reason for name in names} == {""}


def test_several_late_wraps_of_one_function_say_nothing_of_each_other(site: Site, enable: Enable) -> None:
    site.write(upstream="def f(): return 1\nclass Engine:\n    def g(self): return 1\nTABLE = (f,)\nAGAIN = (f,)\n")
    import upstream  # noqa: F401

    status = enable(*(counting(f"upstream:{path}", [], name=f"{path}{n}") for path in ("f", "Engine.g") for n in "ab"))
    reason = "applied after the import of its target; 2 references keep the original: a tuple (2 times)"
    assert (status["fa"].reason, status["Engine.ga"].reason, status["Engine.gb"].reason) == (reason, "", "")


def test_lazy_modules_stay_lazy(site: Site, enable: Enable) -> None:
    site.write(
        upstream="def f(): return 1\n",
        lazy="""
        def __getattr__(name):
            if name.startswith("__"):
                raise AttributeError(name)
            raise AssertionError(f"somebody asked for {name}")
        """,
    )
    import lazy  # noqa: F401
    import upstream

    class Touchy(ModuleType):
        def __getattribute__(self, name: str) -> Any:
            if name not in ("__dict__", "__class__", "__spec__", "__file__"):
                raise AssertionError(f"somebody asked for {name}")
            return super().__getattribute__(name)

    sys.modules["touchy"] = Touchy("touchy")
    try:
        enable(counting("upstream:f", []))
        assert upstream.f() == 1
        ascend_adapt.disable()
    finally:
        del sys.modules["touchy"]


def test_strange_things_in_sys_modules_do_no_harm(site: Site, enable: Enable) -> None:
    site.write(upstream="def f(): return 1\n")
    sys.modules["stranger"] = object()  # type: ignore[assignment]
    sys.modules["nothing"] = None  # type: ignore[assignment]
    try:
        import upstream  # noqa: F401

        assert enable(counting("upstream:f", []))["counting"].state == "applied"
    finally:
        del sys.modules["stranger"], sys.modules["nothing"]


def test_rebind_counts_what_it_changed() -> None:
    old, new = object(), object()
    module = ModuleType("module")
    module.a, module.b, module.table = old, old, {"k": old, "l": 1}  # type: ignore[attr-defined]
    assert aliases.rebind({id(old): (old, new)}, [module]) == 2
    assert module.table["k"] is old  # type: ignore[attr-defined]
    assert aliases.rebind({id(old): (old, new)}, [], [module]) == 1
    assert module.table == {"k": new, "l": 1}  # type: ignore[attr-defined]


def test_modules_after_are_those_that_could_have_copied(site: Site) -> None:
    site.write(early="", upstream="", late="")
    import early
    import late
    import upstream  # noqa: I001

    assert early not in aliases.modules_after("upstream") or list(sys.modules).index("early") > list(sys.modules).index(
        "upstream"
    )
    assert upstream in aliases.modules_after("early") or late in aliases.modules_after("early")
    assert set(map(id, aliases.modules_after("no such module"))) == set(map(id, aliases.all_modules()))


def test_function_tables_of_kinds_that_keep_functions_follow_each_kind(site: Site, enable: Enable) -> None:
    site.write(upstream="def f(): return 1\nTABLE = {'f': f}\n")
    import upstream

    original = upstream.f
    enable(
        rewrite("upstream:f", old="1", new="2", name="rewritten", **TERMS),
        add("upstream:g", value=3, name="added", **TERMS),
        entry("upstream:TABLE", "g", original, present=False, name="entered", **TERMS),
    )
    assert upstream.TABLE["f"]() == upstream.TABLE["g"]() == 2
    assert upstream.f is original
    ascend_adapt.disable()
    assert {"f": original} == upstream.TABLE
    assert not hasattr(upstream, "g")
    assert upstream.f() == 1
