"""One attribute under several patches."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from stand_ins import TERMS

from ascend_adapt import replace, wrap
from ascend_adapt.patches.apply.slot import Slot
from ascend_adapt.patches.declare.target import Place


def patches() -> dict[str, Any]:
    def around(name: str) -> Any:
        return wrap("m:Engine.f", name=name, **TERMS)(lambda w, i, a, k: [name, *w(*a, **k)])

    return {
        "a": around("a"),
        "b": around("b"),
        "r": replace("m:Engine.f", name="r", **TERMS)(lambda self: ["r"]),
    }


@pytest.mark.parametrize("put", list(itertools.permutations("abr")))
@pytest.mark.parametrize("taken", list(itertools.permutations("abr")))
@pytest.mark.parametrize("is_inherited", [False, True])
def test_any_order_of_putting_and_taking(put: tuple[str, ...], taken: tuple[str, ...], is_inherited: bool) -> None:
    class Base:
        def f(self) -> list[str]:
            return ["original"]

    class Engine(Base):
        pass

    owner = Engine if is_inherited else Base
    original = vars(Base)["f"]
    slot = Slot(Place(owner, "f", original, is_inherited))
    by_name = patches()
    stack: list[str] = []
    for name in put:
        swaps = slot.put(by_name[name])
        stack.append(name)
        assert all(new is slot.head for _, new in swaps.values())
        assert owner().f() == expected(stack)
    for name in taken:
        slot.take(by_name[name])
        stack.remove(name)
        assert slot.is_ours()
        assert owner().f() == expected(stack)
    assert vars(Base)["f"] is original
    assert ("f" in vars(Engine)) is False


def expected(stack: list[str]) -> list[str]:
    wraps = [name for name in reversed(stack) if name != "r"]
    return [*wraps, "r" if "r" in stack else "original"]


def test_a_refused_patch_leaves_the_slot_as_it_was() -> None:
    class Engine:
        f = 3

    slot = Slot(Place(Engine, "f", 3, False))
    with pytest.raises(Exception, match="is a int"):
        slot.put(patches()["a"])
    assert (slot.layers, slot.heads, Engine.f) == ([], [], 3)
    assert slot.is_ours()
