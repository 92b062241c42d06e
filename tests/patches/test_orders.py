"""Every order of importing, enabling and disabling ends where it should, each order in a fresh process."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from stand_ins import Site

TARGET = """
    def function(): return "function"

    def in_table(): return "in_table"

    TABLE = {"key": in_table, "other": 1}
    LISTED = [in_table]

    class Base:
        def inherited(self): return "inherited"

    class Engine(Base):
        def own(self): return "own"

        @classmethod
        def of_class(cls): return cls.__name__

        @staticmethod
        def static(): return "static"

        @property
        def value(self): return "value"

        def step(self): return "step"

        INSTRUCTIONS = {"step": step}
        SEQUENCE = [step]

    class Sub(Engine):
        pass

    ORIGINALS = (dict(globals()), dict(vars(Engine)))  # in a tuple, where nothing rebinds them
"""
ALIASES = """
    from target import Engine, function, in_table
    step, static = Engine.step, Engine.static
"""
SCENARIO = """
    import importlib, sys
    import ascend_adapt
    from stand_ins import counting, plugin

    calls = []
    NAMES = ("function", "in_table", "Engine.inherited", "Engine.own", "Engine.of_class", "Engine.static",
             "Engine.value", "Engine.step")
    ours = plugin(*(counting(f"target:{name}", calls, name=name) for name in NAMES))
    aliases = []

    def take_alias(number):
        aliases.append(importlib.import_module(f"alias{number}"))

    def check_once():
        import target
        engine = target.Engine()
        uses = {
            target.function: "function", target.in_table: "in_table", target.TABLE["key"]: "in_table",
            target.LISTED[0]: "in_table", engine.inherited: "inherited", engine.own: "own",
            target.Engine.of_class: "Engine", target.Sub.of_class: "Sub", target.Engine.static: "static",
            engine.static: "static", (lambda: engine.value): "value", engine.step: "step",
            (lambda: target.Engine.INSTRUCTIONS["step"](engine)): "step",
            (lambda: target.Engine.SEQUENCE[0](engine)): "step",
        }
        for alias in aliases:
            uses |= {alias.function: "function", alias.in_table: "in_table", alias.static: "static",
                     (lambda alias=alias: alias.step(engine)): "step"}
        for use, result in uses.items():
            calls.clear()
            assert use() == result, (use, result)
            assert len(calls) == 1, (use, result, calls)
        assert {one.state for one in ascend_adapt.status().outcomes if one.plugin == "stand_in"} == {"applied"}

    on = False
    for number, step in enumerate(sys.argv[1]):
        if step == "i":
            import target
            take_alias(number)
        if step == "e":
            ascend_adapt.enable(plugins=[ours])
            on = True
        if step == "d":
            ascend_adapt.disable()
            on = False
        if "target" in sys.modules:
            take_alias(f"{number}_after")
    if on:
        check_once()
    ascend_adapt.disable()

    of_module, of_engine = target.ORIGINALS
    assert {name: vars(target)[name] for name in of_module} == of_module
    assert dict(vars(target.Engine)) == of_engine  # and "inherited" is not among them
    assert target.in_table is of_module["in_table"]
    assert target.TABLE["key"] is target.LISTED[0] is target.in_table
    assert vars(target.Engine)["step"] is target.Engine.INSTRUCTIONS["step"] is target.Engine.SEQUENCE[0]
    assert all(alias.function is target.function for alias in aliases)
    assert all(alias.in_table is target.in_table and alias.step is target.Engine.step for alias in aliases)
    print("as it was")
"""
ORDERS = sorted({"".join(order) for steps in ("ieede", "iedd") for order in itertools.permutations(steps)})


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Site:
    folder: Path = tmp_path_factory.mktemp("orders")
    site = Site(folder)
    site.write(target=TARGET)
    for number in range(6):
        site.write(**{f"alias{number}": ALIASES})
        (folder / f"alias{number}_after.py").write_text((folder / f"alias{number}.py").read_text())
    return site


@pytest.mark.parametrize("order", ORDERS)
def test_every_order_leaves_the_originals_and_patches_once(stage: Site, order: str) -> None:
    assert stage.run(SCENARIO, order) == "as it was\n"


def test_the_originals_are_the_very_objects_of_before(stage: Site) -> None:
    code = """
    import target, alias0
    import ascend_adapt
    from stand_ins import counting, plugin

    def snapshot():
        return [dict(vars(one)) for one in (target, target.Engine, target.Sub, alias0, )] + [
            dict(target.TABLE), dict(enumerate(target.LISTED)), dict(target.Engine.INSTRUCTIONS)]

    before = snapshot()
    names = ("function", "in_table", "Engine.inherited", "Engine.own", "Engine.of_class", "Engine.static",
             "Engine.value", "Engine.step", "Sub.own")
    ascend_adapt.enable(plugins=[plugin(*(counting(f"target:{name}", [], name=name) for name in names))])
    assert sum(a[k] is not b[k] for a, b in zip(before, snapshot()) for k in a) >= 13
    ascend_adapt.disable()
    for old, new in zip(before, snapshot()):
        assert list(old) == list(new)
        assert all(old[key] is new[key] for key in old)
    """
    stage.run(code)
