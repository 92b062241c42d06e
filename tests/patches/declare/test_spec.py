"""Declaring a patch: what is refused, and with which words."""

from __future__ import annotations

from typing import Any

import pytest
from stand_ins import TERMS

import ascend_adapt
from ascend_adapt import CodeBase, add, entry, provide, replace, rewrite, wrap
from ascend_adapt.errors import PatchSpecError
from ascend_adapt.patches.declare.target import MISSING


def wrapped(target: str = "m:f", **terms: Any) -> ascend_adapt.Patch:
    @wrap(target, **{**TERMS, **terms})
    def function(w: Any, i: Any, a: Any, k: Any) -> None: ...

    return function


@pytest.mark.parametrize(
    ("terms", "words"),
    [
        ({"why": ""}, "wrap m:f: why= is '', expected a sentence"),
        ({"until": None}, "wrap m:f: until= is None, expected a sentence"),
        ({"without": "boom"}, "without= is 'boom', expected one of 'crash', 'wrong numbers', 'slower'"),
        ({"devices": "tpu"}, "devices= is 'tpu', expected some of npu, cuda, cpu"),
        ({"requires": "deepspeed>>1"}, "requires='deepspeed>>1', "),
        ({"requires": "deepspeed>=1; python_version<'3'"}, "has a marker, URL or extra"),
        ({"requires": "deepspeed[extra]"}, "has a marker, URL or extra"),
        ({"requires": 3}, "got 3 — pass a string or a list of strings"),
        ({"devices": None}, "got None — pass a string or a list of strings"),
        ({"why": "   "}, "why= is '   ', expected a sentence"),
        ({"until": 3}, "until= is 3, expected a sentence"),
        ({"host": 3}, "host= is 3 — pass a CodeBase, its name, or several"),
        ({"name": "a,b"}, "name= is 'a,b' — pass a name without commas"),
        ({"target": "builtins:sum"}, "is never patched"),
        ({"target": "importlib.util:find_spec"}, "is never patched"),
        ({"target": "torch:Tensor.add"}, "is never patched"),
        ({"requires": ["deepspeed>=1", ">=2"]}, "requires='>=2', "),
        ({"when": "now"}, "when= is not an argument of wrap"),
        ({"target": "m"}, "expected 'module:attribute'"),
        ({"target": "m:"}, "expected 'package.module:Class.attribute'"),
        ({"target": "m:a..b"}, "expected 'package.module:Class.attribute'"),
        ({"target": "m f"}, "expected 'package.module:Class.attribute'"),
        ({"target": 3}, "target 3: expected"),
    ],
)
def test_a_wrong_declaration_is_refused_at_once(terms: dict[str, Any], words: str) -> None:
    with pytest.raises(PatchSpecError) as caught:
        wrapped(**terms)
    assert words in str(caught.value)


@pytest.mark.parametrize("missing", ["why", "until", "without"])
def test_every_patch_says_why_until_and_without(missing: str) -> None:
    terms = {key: value for key, value in TERMS.items() if key != missing}
    with pytest.raises(PatchSpecError, match=f"{missing}="):
        wrap("m:f", **terms)(lambda *a: None)


@pytest.mark.parametrize("markers", [{"present": "own.py"}, {"present": (), "absent": "own.py"}])
def test_markers_of_a_code_base_must_be_a_tuple(markers: dict[str, Any]) -> None:
    """One text would be taken for a marker a letter, and each patch of the host be skipped for want of them."""
    with pytest.raises(PatchSpecError, match=r"^code base mine: (present|absent)='own.py' is one string"):
        CodeBase("mine", **markers)


def test_a_module_is_provided_and_nothing_else() -> None:
    with pytest.raises(PatchSpecError, match="expected a module name"):
        provide("m:f", **TERMS)(lambda module: None)
    assert str(provide("m.sub", **TERMS)(lambda module: None)) == "provide m.sub"


def test_host_script_is_for_main() -> None:
    with pytest.raises(PatchSpecError, match="__main__:function"):
        rewrite("m:f", old="1", new="2", host_script="train.py", **TERMS)
    assert rewrite("__main__:f", old="1", new="2", host_script="train.py", **TERMS).host_script == "train.py"


def test_what_a_declaration_holds() -> None:
    patch = wrapped("pkg.mod:Cls.attr", requires="a>=1", devices="npu", host="gpt-neox")
    assert (patch.kind, str(patch.target), patch.name) == ("wrap", "pkg.mod:Cls.attr", "function")
    assert (patch.devices, patch.hosts, [str(one) for one in patch.requires]) == (("npu",), ("gpt-neox",), ["a>=1"])
    assert (patch.target.root, patch.target.packages) == ("pkg", ("pkg.mod", "pkg"))
    assert wrapped(name="named").name == "named"
    assert wrapped(requires=["a>=1", "b<2"]).requires[1].name == "b"


def test_values_may_be_anything_also_none() -> None:
    assert replace("m:f", value=None, **TERMS).value is None
    assert add("m:f", value=0, **TERMS).value == 0
    assert entry("m:t", None, None, present=False, **TERMS).key is None
    assert add("m:f", **TERMS)(lambda: 1).value is MISSING
    assert repr(MISSING) == "MISSING"


def test_declaring_touches_no_module() -> None:
    import sys

    before = set(sys.modules)
    wrapped("never_imported.anywhere:f")
    assert not {name for name in set(sys.modules) - before if name.startswith("never_imported")}
