"""Whether a fault is in a source tree, from the patch's data alone."""

from __future__ import annotations

from pathlib import Path

import pytest
from packaging.requirements import Requirement
from stand_ins import TERMS, Site

from ascend_adapt import Patch, Symptom, add, entry, provide, rewrite, wrap
from ascend_adapt.errors import PatchSpecError
from ascend_adapt.patches.judge.installation import SourceTree
from ascend_adapt.testing import faults, versions


def wrapping(target: str, **terms: object) -> Patch:
    return wrap(target, **{**TERMS, **terms})(lambda wrapped, instance, args, kwargs: None)  # type: ignore[arg-type]


def takes_y(function: object) -> str:
    import inspect

    return "takes y" if "y" in inspect.signature(function).parameters else ""  # type: ignore[arg-type]


SOURCE = """
from elsewhere import gone
def f(x): return x + 1
def g(x, y): return x
class Cls:
    def there(self): ...
TABLE = {"k": 1}
"""
EXPECTED = {
    "the old expression": (rewrite("up:f", old="x + 1", new="x", **TERMS), "present"),
    "another expression": (rewrite("up:f", old="x + 2", new="x", **TERMS), "absent"),
    "no function": (rewrite("up:h", old="x + 1", new="x", **TERMS), "absent"),
    "a missing method": (add("up:Cls.new", value=1, **TERMS), "present"),
    "a method that is there": (add("up:Cls.there", value=1, **TERMS), "absent"),
    "a class that is missing": (add("up:Other.new", value=1, **TERMS), "absent"),
    "a used name of another package": (add("elsewhere:gone", value=1, **TERMS), "present"),
    "an unused name of another package": (add("elsewhere:unused", value=1, **TERMS), "absent"),
    "a used module": (provide("elsewhere", **TERMS)(lambda module: None), "present"),
    "a module that nothing uses": (provide("nowhere", **TERMS)(lambda module: None), "absent"),
    "unless finds nothing": (wrapping("up:f", unless=takes_y), "present"),
    "unless finds something": (wrapping("up:g", unless=takes_y), "absent"),
    "a symptom": (wrapping("up:g", symptom=Symptom("x + 1", "x + 3", at="up:f")), "present"),
    "a symptom elsewhere": (wrapping("up:f", symptom=Symptom("x + 1", at="up:g")), "absent"),
    "a symptom in a module": (wrapping("up:g", symptom=Symptom("x + 1", at="up")), "present"),
    "a symptom where nothing is": (wrapping("up:f", symptom=Symptom("x", at="up.gone:f")), "absent"),
    "nothing declared": (wrapping("up:f"), "not judged"),
    "a reason": (wrapping("up:f", symptom=Symptom(reason="it is in the callers")), "not judged"),
    "a key": (entry("up:TABLE", "k", 2, present=True, **TERMS), "present"),
    "a key to add": (entry("up:TABLE", "k", 2, present=False, **TERMS), "absent"),
}


@pytest.mark.parametrize("name", EXPECTED)
def test_faults(name: str, site: Site) -> None:
    site.package("up", SOURCE)
    patch, expected = EXPECTED[name]
    assert faults.look_for(patch, SourceTree(site.folder)).state == expected


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("try:\n    from elsewhere import gone\nexcept ImportError:\n    gone = None\n", "absent"),
        ("try:\n    from elsewhere import gone\nexcept (ModuleNotFoundError, OSError):\n    gone = None\n", "absent"),
        ("try:\n    from elsewhere import gone\nexcept ValueError:\n    gone = None\n", "present"),
        ("try:\n    pass\nexcept ImportError:\n    from elsewhere import gone\n", "present"),
        ("import elsewhere\ndef f(): return elsewhere.gone\n", "present"),
        ("import elsewhere\ndef f(): return elsewhere.other.gone\n", "absent"),
        ("from .elsewhere import gone\n", "absent"),
    ],
)
def test_a_guarded_use_is_no_fault(source: str, expected: str, site: Site) -> None:
    site.package("up", source)
    patch = add("elsewhere:gone", value=1, **TERMS)
    assert faults.look_for(patch, SourceTree(site.folder)).state == expected


@pytest.mark.parametrize("arguments", [{}, {"reason": " "}, {"at": "up:f"}])
def test_a_symptom_says_something(arguments: dict[str, str]) -> None:
    with pytest.raises(PatchSpecError, match="neither or both given, expected one — give code that shows the fault"):
        Symptom(**arguments)
    with pytest.raises(PatchSpecError, match="is not Python"):
        Symptom("x +")
    with pytest.raises(PatchSpecError, match=r"symptom= is 'x' — pass a Symptom"):
        wrapping("up:f", symptom="x")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("d>=0.6,<0.11.2", ("0.6", "0.5.9999", "0.11.2.dev0")),
        ("d<0.14.4", ("0.14.3.9999", None, "0.14.4.dev0")),
        ("d>=2", ("2", "1.9999", None)),
        ("d", ("1", None, None)),
        ("d==1.2.*", ("1.2", "1.1.9999", "1.3")),
    ],
)
def test_versions_around_a_requirement(text: str, expected: tuple[str | None, ...], tmp_path: Path) -> None:
    near = versions.around(Requirement(text))
    assert (near.inside, near.below, near.above) == expected
    assert Requirement(text).specifier.contains(near.inside, prereleases=True)
