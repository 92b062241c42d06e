"""Third-party patchers: they are named, a function is never patched twice, and messages say how to choose.

The stand-ins are named as the real packages are, and put functions in place as those do: Liger assigns, MindSpeed
wraps with functools.wraps and assigns, and rebinds the copies that modules hold.
"""

from __future__ import annotations

import sys
import types

import pytest
from stand_ins import TERMS, Site, counting

import ascend_adapt
from ascend_adapt import entry, replace, rewrite, wrap
from ascend_adapt.errors import PatchDrift

FAST = {**TERMS, "without": "slower"}


@pytest.fixture
def upstream(site: Site):
    site.write(
        upstream="""
            def f():
                return 1

            class C:
                def m(self):
                    return 1

            TABLE = {"k": f}
        """,
        liger_kernel__monkey_patch="""
            def fused(self=None):
                return 10
        """,
        mindspeed__patch_utils="""
            import functools

            def make(f):
                @functools.wraps(f)
                def wrapper(*args):
                    return 100 + f(*args)
                return wrapper

            def replaced():
                return 100
        """,
    )
    import upstream

    return upstream


def liger(upstream) -> None:
    from liger_kernel.monkey_patch import fused

    upstream.f = upstream.C.m = upstream.TABLE["k"] = fused


def mindspeed(upstream) -> None:
    from mindspeed.patch_utils import make

    upstream.f = make(upstream.f)
    upstream.C.m = make(upstream.C.m)


def test_what_is_for_speed_gives_way(upstream, enable) -> None:
    liger(upstream)

    @wrap("upstream:f", name="wrapped", **FAST)
    def wrapped(function, instance, args, kwargs):
        return 2 * function()

    @replace("upstream:C.m", name="replaced", **FAST)
    def replaced(self):
        return 5

    status = enable(wrapped, replaced, entry("upstream:TABLE", "k", 3, present=True, name="entered", **FAST))
    assert {one.state for one in status if one.plugin == "stand_in"} == {"not_needed"}
    assert status["wrapped"].reason == (
        "upstream:f is Liger's liger_kernel.monkey_patch.fused, and a function is never patched twice — remove "
        "apply_liger_kernel_to_...(), or use_liger_kernel of the Trainer to use this patch"
    )
    assert (upstream.f(), upstream.C().m(), upstream.TABLE["k"]()) == (10, 10, 10)
    assert status.beside == ("Liger",)


@pytest.mark.parametrize("other", [liger, mindspeed])
def test_a_wrap_that_is_needed_lies_on_top(upstream, enable, other) -> None:
    other(upstream)
    theirs, calls = upstream.f, []
    status = enable(counting("upstream:f", calls))
    name = {liger: "Liger's liger_kernel.monkey_patch.fused", mindspeed: "MindSpeed's mindspeed.patch_utils.f"}[other]
    assert (status["counting"].state, status["counting"].reason) == ("applied", f"on top of {name}")
    assert (upstream.f(), len(calls)) == ({liger: 10, mindspeed: 101}[other], 1)
    ascend_adapt.disable()
    assert upstream.f is theirs


def test_a_patch_that_would_replace_another_patcher_says_which_to_remove(upstream, enable) -> None:
    liger(upstream)

    @replace("upstream:f", name="replaced", **{**TERMS, "without": "crash"})
    def replaced():
        return 5

    status = enable(replaced)
    assert (status["replaced"].state, upstream.f()) == ("drifted", 10)
    assert (
        "Liger's liger_kernel.monkey_patch.fused, expected upstream's function — remove apply"
        in status["replaced"].reason
    )
    ascend_adapt.disable()
    with pytest.raises(PatchDrift, match="Liger's"):
        enable(entry("upstream:TABLE", "k", 3, present=True, name="entered", **{**TERMS, "without": "wrong numbers"}))


def test_a_rewrite_reaches_upstreams_code_below_a_wrapper(upstream, enable) -> None:
    mindspeed(upstream)
    status = enable(rewrite("upstream:f", old="return 1", new="return 2", name="rewritten", **TERMS))
    assert (status["rewritten"].state, upstream.f()) == ("applied", 102)


@pytest.mark.parametrize("target", ["upstream:f", "upstream:C.m"])
def test_a_wrapper_on_top_of_ours_is_not_a_loss(upstream, enable, target) -> None:
    calls: list[object] = []
    enable(counting(target, calls))
    mindspeed(upstream)
    ascend_adapt.enable()  # a script's own call after the launcher's: nothing is applied a second time
    assert ascend_adapt.status()["counting"].state == "applied"
    assert (upstream.f(), upstream.C().m()) == (101, 101)
    assert len(calls) == 1
    on_top = upstream.f, upstream.C.m
    outcome = ascend_adapt.disable()["counting"]
    assert outcome.state == "lost"
    assert "left alone: it stays applied inside mindspeed.patch_utils." in outcome.reason
    assert (upstream.f, upstream.C.m) == on_top


def test_a_subclass_in_the_place_of_its_class_inherits_the_patch(upstream, enable) -> None:
    """As deepspeed_npu puts its own below DeepSpeed's ZeRO optimizers."""
    calls: list[object] = []
    enable(counting("upstream:C.m", calls))
    upstream.C = type("CNpu", (upstream.C,), {})
    assert ascend_adapt.status()["counting"].state == "applied"
    upstream.C().m()
    assert ascend_adapt.enable()["counting"].state == "applied"
    upstream.C().m()
    assert len(calls) == 2  # nothing is applied a second time
    upstream.C.m = lambda self: 1
    assert ascend_adapt.status()["counting"].state == "lost"


def test_who_replaced_ours_is_named(upstream, enable, caplog) -> None:
    enable(counting("upstream:f", []), entry("upstream:TABLE", "k", lambda: 3, present=True, name="entered", **TERMS))
    liger(upstream)
    status = ascend_adapt.status()
    ascend_adapt.status()
    for name in ("counting", "entered"):
        assert status[name].state == "lost"
        messages = [message for message in caplog.messages if f"'{name}' (plugin 'stand_in'" in message]
        assert [message.partition(" lost: ")[2] for message in messages] == [
            f"{status[name].reason} — without it: crash (it breaks)"
        ]
        assert "it is now liger_kernel.monkey_patch.fused — leave that out, or disable stand_in." in status[name].reason


@pytest.mark.parametrize("stands", [None, types.ModuleType("upstream")])
def test_a_module_that_left_sys_modules_names_nobody(upstream, enable, stands) -> None:
    """Or that a lazy one stands for: what is still in the old one is ours."""
    enable(counting("upstream:f", []), counting("upstream:C.m", [], name="of_a_method"))
    sys.modules["upstream"] = stands  # the fixture restores it
    for name in ("counting", "of_a_method"):
        outcome = ascend_adapt.status()[name]
        assert (outcome.state, outcome.reason) == ("lost", f"{outcome.target} was reloaded or replaced after apply")


def test_code_of_others_that_patches_nothing_is_no_patcher(site: Site, enable) -> None:
    """Decorators of other packages are everywhere."""
    site.write(
        decorators="""
            import functools

            def cached(f):
                return functools.lru_cache(f)

            def logged(f):
                @functools.wraps(f)
                def call():
                    return f()
                return call
        """,
        upstream="""
            from decorators import cached, logged

            @cached
            def f():
                return 1

            @logged
            def g():
                return 1
        """,
    )
    import upstream

    status = enable(counting("upstream:f", [], name="one"), counting("upstream:g", [], name="two"))
    for name in ("one", "two"):
        assert status[name].state == "applied"
        assert "on top of" not in status[name].reason
    assert (upstream.f(), upstream.g(), status.beside) == (1, 1, ())


def test_what_upstream_itself_holds_is_upstreams(site: Site, enable) -> None:
    """A function of its own may hold one of another patcher, such as a redirected torch function."""
    site.write(
        liger_kernel="def empty(): return 1\n",
        upstream="""
            import liger_kernel

            def make(empty):
                def f():
                    return empty()
                return f

            f = make(liger_kernel.empty)
        """,
    )
    import upstream

    @wrap("upstream:f", name="wrapped", **FAST)
    def wrapped(function, instance, args, kwargs):
        return 2 * function()

    assert enable(wrapped)["wrapped"].state == "applied"
    assert upstream.f() == 2
