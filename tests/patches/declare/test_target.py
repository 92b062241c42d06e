"""What stands at a target: read from namespaces, descriptors and laziness untouched."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest

from ascend_adapt.errors import PatchDrift
from ascend_adapt.patches.declare.target import MISSING, Target, locate, locate_present, look_up


class Base:
    def inherited(self) -> None: ...

    @property
    def value(self) -> int:
        raise AssertionError("a property ran")


class Engine(Base):
    table: dict[str, int] = {}  # noqa: RUF012

    def own(self) -> None: ...

    def __private(self) -> None: ...


class _Hidden:
    def __private(self) -> None: ...


@pytest.fixture
def module() -> ModuleType:
    made = ModuleType("module")
    made.Engine, made._Hidden, made.number = Engine, _Hidden, 3  # type: ignore[attr-defined]

    def refuse(name: str) -> Any:
        assert name in ("gone", "Gone"), f"somebody asked for {name}"
        raise AttributeError(name)

    made.__getattr__ = refuse  # type: ignore[method-assign]
    return made


@pytest.mark.parametrize(
    ("path", "owner", "inherited"),
    [
        ("Engine.own", Engine, False),
        ("Engine.inherited", Engine, True),
        ("Engine.value", Engine, True),
        ("Engine.__private", Engine, False),
        ("Engine._Engine__private", Engine, False),
        ("_Hidden.__private", _Hidden, False),
        ("Engine.__init__", Engine, True),
    ],
)
def test_where_a_target_stands(module: ModuleType, path: str, owner: type, inherited: bool) -> None:
    place = locate_present(Target.parse(f"module:{path}"), module)
    assert (place.owner, place.inherited) == (owner, inherited)
    assert place.value is look_up(owner, place.name)[0]


def test_the_spelling_of_the_source() -> None:
    assert Target.parse("m:_Hidden._Hidden__f").source_path == ("_Hidden", "__f")
    assert Target.parse("m:Engine._Engine__f").source_path == ("Engine", "__f")
    assert Target.parse("m:Engine._Other__f").source_path == ("Engine", "_Other__f")
    assert Target.parse("m:_Engine__f").source_path == ("_Engine__f",)
    assert Target.parse("m:Engine.__init__").source_path == ("Engine", "__init__")


def test_a_missing_last_step_is_missing(module: ModuleType) -> None:
    assert locate(Target.parse("module:gone"), module).value is MISSING
    with pytest.raises(PatchDrift, match="module:gone: 'gone' is not in module module"):
        locate_present(Target.parse("module:gone"), module)
    with pytest.raises(PatchDrift, match="'gone' is not in class Engine"):
        locate_present(Target.parse("module:Engine.gone"), module)


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("Gone.f", "'Gone' is not in module module"),
        ("number.f", "'number' is a int, expected a class"),
        ("Engine.own.f", "'own' is a function, expected a class"),
        ("Engine.table.f", "'table' is a dict, expected a class"),
    ],
)
def test_an_earlier_step_must_be_a_class_or_module(module: ModuleType, path: str, words: str) -> None:
    with pytest.raises(PatchDrift, match=words):
        locate(Target.parse(f"module:{path}"), module)
