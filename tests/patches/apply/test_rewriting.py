"""Another code for the same function: one expression or statement, found exactly once as a syntax tree."""

from __future__ import annotations

import linecache
import traceback
from collections.abc import Callable
from typing import Any

import pytest
from stand_ins import TERMS, Site

import ascend_adapt
from ascend_adapt import rewrite
from ascend_adapt.errors import PatchSpecError

Enable = Callable[..., ascend_adapt.Status]


def changed(target: str, old: str, new: str, **terms: Any) -> ascend_adapt.Patch:
    return rewrite(target, old=old, new=new, **{**TERMS, "name": "p", **terms})


THREE_LINES = """
    class PipelineEngine:
        def _exec_send_grads(self, inputs):
            inputs_grad_tail = [
                elt.grad for elt in inputs[1:] if elt.grad is not None
            ]
            return inputs_grad_tail
"""
ONE_LINE = """
    class PipelineEngine:
        def _exec_send_grads(self, inputs):
            inputs_grad_tail = [elt.grad for elt in inputs[1:] if elt.grad is not None]
            return inputs_grad_tail
"""
FIXED = """
    class PipelineEngine:
        def _exec_send_grads(self, inputs):
            inputs_grad_tail = [elt.grad for elt in inputs[1:]]
            return inputs_grad_tail
"""
OTHER = """
    class PipelineEngine:
        def _exec_send_grads(self, inputs):
            return [elt.grad for elt in inputs]
"""
OLD = "inputs_grad_tail = [elt.grad for elt in inputs[1:] if elt.grad is not None]"
NEW = "inputs_grad_tail = [elt.grad for elt in inputs[1:]]"


class Tensor:
    def __init__(self, grad: int | None) -> None:
        self.grad = grad


@pytest.mark.parametrize(
    ("source", "state", "grads"),
    [
        (THREE_LINES, "applied", [None, 3]),
        (ONE_LINE, "applied", [None, 3]),
        (FIXED, "not_needed", [None, 3]),
        (OTHER, "drifted", [1, None, 3]),
    ],
    ids=["three lines", "one line", "fixed", "absent"],
)
def test_the_spellings_of_inputs_grad_tail(
    site: Site, enable: Enable, source: str, state: str, grads: list[int | None]
) -> None:
    """Case patch-6 on stand-ins: both spellings are found, in the fixed version nothing is."""
    site.write(upstream=source)
    enable(changed("upstream:PipelineEngine._exec_send_grads", OLD, NEW))
    import upstream

    outcome = ascend_adapt.status()["p"]
    assert outcome.state == state
    assert upstream.PipelineEngine()._exec_send_grads([Tensor(1), Tensor(None), Tensor(3)]) == grads
    if state == "drifted":
        assert "exactly once, found it nowhere" in outcome.reason


def test_twice_is_drift(site: Site, enable: Enable) -> None:
    site.write(upstream="def f(x): return (x + 1) * (x + 1)\n")
    import upstream

    code = upstream.f.__code__
    outcome = enable(changed("upstream:f", "x + 1", "x + 2"))["p"]
    assert outcome.state == "drifted"
    assert "upstream:f: expected 'x + 1' exactly once, found it 2 times" in outcome.reason
    assert upstream.f.__code__ is code


def test_the_function_object_stays_the_same(site: Site, enable: Enable) -> None:
    site.write(
        upstream="""
        def f(x, *, y: int = 2) -> int:
            "Doc."
            return x + y
        f.mark = 1
        TABLE = (f,)
        """
    )
    import upstream

    function, code = upstream.f, upstream.f.__code__
    enable(changed("upstream:f", "x + y", "x * y"))
    assert upstream.f is upstream.TABLE[0] is function
    assert (function(5), function.__doc__, function.mark, function.__kwdefaults__) == (10, "Doc.", 1, {"y": 2})
    ascend_adapt.disable()
    assert function.__code__ is code


WRAPS = "import functools\ndef d(g):\n    @functools.wraps(g)\n    def w(): return g()\n    return w\n"
CLOSES = "def d(g):\n    def w(): return g()\n    return w\n"
SUPER = "class B:\n    def f(self): return 1\nclass A(B):\n    def f(self): return super().f() + 1\n"


@pytest.mark.parametrize(
    ("body", "use", "before", "after"),
    [
        (SUPER, "A().f()", 2, 3),
        ("class A:\n    __secret = 5\n    def f(self): return self.__secret + 1\n", "A().f()", 6, 7),
        ("class A:\n    def __f(self): return 1 + 1\n    def g(self): return self.__f()\n", "A().g()", 2, 3),
        ("class A:\n    @staticmethod\n    def f(): return 1 + 1\n", "A.f()", 2, 3),
        ("class A:\n    @classmethod\n    def f(cls): return 1 + 1\n", "A.f()", 2, 3),
        ("class A:\n    @property\n    def f(self): return 1 + 1\n", "A().f", 2, 3),
        ("class A:\n    class B:\n        def f(self): return 1 + 1\n", "A.B().f()", 2, 3),
        ("def f(): return 1 + 1\n", "f()", 2, 3),
        ("if True:\n    def f(): return 1 + 1\nelse:\n    def f(): return 0\n", "f()", 2, 3),
        ("try:\n    def f(): return 1 + 1\nfinally:\n    pass\n", "f()", 2, 3),
        ("def f():\n    def inner(): return 1 + 1\n    return inner()\n", "f()", 2, 3),
        ("def f(): return (lambda: 1 + 1)()\n", "f()", 2, 3),
        ("def f(): return [1 + 1 for _ in 'x'][0]\n", "f()", 2, 3),
        (f"{WRAPS}@d\ndef f(): return 1 + 1\n", "f()", 2, 3),
        (f"{CLOSES}@d\n@d\ndef f(): return 1 + 1\n", "f()", 2, 3),
        ("import functools\n@functools.lru_cache\ndef f(): return 1 + 1\n", "f()", 2, 3),
        ("import contextlib\n@contextlib.contextmanager\ndef f(): yield 1 + 1\n", "f().__enter__()", 2, 3),
        ("def f():\n    yield 1 + 1\n", "next(f())", 2, 3),
        ("async def f(): return 1 + 1\n", "f().send(None)", 2, 3),
        ("class A:\n    def f(self, a=(0, 1)): return 1 + 1 if a == (0, 1) else 0\n", "A().f()", 2, 3),
    ],
)  # fmt: skip
def test_where_a_rewrite_reaches(site: Site, enable: Enable, body: str, use: str, before: int, after: int) -> None:
    site.write(upstream=body)
    import upstream

    def used() -> Any:
        try:
            return eval(use, dict(vars(upstream)))
        except StopIteration as stop:
            return stop.value

    assert used() == before
    if hasattr(vars(upstream).get("f"), "cache_clear"):
        upstream.f.cache_clear()
    last = "A.B.f" if "class B:" in body and "A.B" in use else "A.f" if use.startswith("A") else "f"
    if "__f" in body:
        last = "A.__f"
    old, new = ("super().f() + 1", "super().f() + 2") if "super" in body else ("1 + 1", "1 + 2")
    if "secret" in body:
        old, new = "self.__secret + 1", "self.__secret + 2"
    outcome = enable(changed(f"upstream:{last}", old, new))["p"]
    assert (outcome.state, outcome.reason) == ("applied", "")
    assert used() == after
    ascend_adapt.disable()
    if hasattr(vars(upstream).get("f"), "cache_clear"):
        upstream.f.cache_clear()
    assert used() == before


@pytest.mark.parametrize("spelling", ["__f", "_Engine__f"])
def test_a_private_method_by_either_of_its_names(site: Site, enable: Enable, spelling: str) -> None:
    site.write(upstream="class Engine:\n    def __f(self): return 1\n    def g(self): return self.__f()\n")
    import upstream

    assert enable(changed(f"upstream:Engine.{spelling}", "1", "2"))["p"].state == "applied"
    assert upstream.Engine().g() == 2


def test_statements_of_many_lines_and_lines_behind_them(site: Site, enable: Enable) -> None:
    """A traceback of the rewritten function still points at upstream's own lines."""
    site.write(
        upstream="""
        # line 2

        def f(x):
            y = (
                x +
                1
            )
            if x > 1:
                raise ValueError(y)

            return helper(y)

        def helper(y):
            raise KeyError(y)
        """
    )
    import upstream

    enable(changed("upstream:f", "y = x + 1", "if x:\n    y = x + 10\nelse:\n    y = 0"))

    def lines(x: int) -> list[tuple[int | None, str, str | None]]:
        try:
            upstream.f(x)
        except Exception as error:
            linecache.checkcache()
            return [(one.lineno, one.name, one.line) for one in traceback.extract_tb(error.__traceback__)[1:]]
        raise AssertionError

    assert lines(2) == [(10, "f", "raise ValueError(y)")]
    assert lines(1) == [(12, "f", "return helper(y)"), (15, "helper", "raise KeyError(y)")]


def test_future_annotations_and_other_flags_stay(site: Site, enable: Enable) -> None:
    site.write(
        upstream="""
        from __future__ import annotations
        def f(x: NoSuchName = 1) -> AlsoNone:
            def inner(y: NoSuchName): return inner.__annotations__
            return inner(x), 1 + 1
        """
    )
    import upstream

    enable(changed("upstream:f", "1 + 1", "1 + 2"))
    assert upstream.f() == ({"y": "NoSuchName"}, 3)
    assert upstream.f.__annotations__ == {"x": "NoSuchName", "return": "AlsoNone"}


@pytest.mark.parametrize(
    ("new", "words"),
    [
        ("1 + free", ""),
        ("1 + other", "has the closure variables free, but the rewritten code needs free, other"),
    ],
)
def test_closures_stay_what_they_are(site: Site, enable: Enable, new: str, words: str) -> None:
    site.write(
        upstream="""
        def make(free, other):
            def f(): return free + 1
            return f
        f = make(5, 6)
        """
    )
    import upstream

    code = upstream.f.__code__
    outcome = enable(changed("upstream:f", "free + 1", new))["p"]
    assert outcome.state == "drifted"
    assert upstream.f.__code__ is code
    assert outcome.reason


def test_a_method_that_gains_super_is_refused_with_the_reason(site: Site, enable: Enable) -> None:
    site.write(upstream="class B:\n    def f(self): return 1\nclass A(B):\n    def f(self): return 2\n")
    outcome = enable(changed("upstream:A.f", "2", "super().f()"))["p"]
    import upstream

    outcome = ascend_adapt.status()["p"]
    assert outcome.state == "drifted"
    assert "closure variables none, but the rewritten code needs __class__ — use replace()" in outcome.reason
    assert upstream.A().f() == 2


def test_a_file_that_changed_after_its_import_is_drift(site: Site, enable: Enable) -> None:
    site.write(upstream="def f():\n    return 1\n")
    import upstream

    site.write(upstream="# one line more\n\n\ndef f():\n    return 1\n")
    linecache.checkcache()
    outcome = enable(changed("upstream:f", "1", "2"))["p"]
    assert outcome.state == "drifted"
    assert "the file changed after it was imported" in outcome.reason
    assert upstream.f() == 1


def test_a_file_whose_function_changed_in_place_is_drift(site: Site, enable: Enable) -> None:
    """Same line, another body: compiling it would put code into the process that was never imported."""
    site.write(upstream="def f():\n    return 1\n")
    import upstream

    site.write(upstream="def f():\n    print('new'); return 1\n")
    linecache.checkcache()
    outcome = enable(changed("upstream:f", "1", "2"))["p"]
    assert outcome.state == "drifted"
    assert "the file changed after it was imported" in outcome.reason
    assert upstream.f() == 1


def test_without_a_source_it_is_drift(site: Site, enable: Enable) -> None:
    import compileall

    site.write(upstream="def f():\n    return 1\n")
    compileall.compile_dir(site.folder, quiet=2, legacy=True)
    (site.folder / "upstream.py").unlink()
    linecache.clearcache()
    enable(changed("upstream:f", "1", "2"))
    import upstream

    outcome = ascend_adapt.status()["p"]
    assert upstream.f() == 1
    assert outcome.state == "drifted"
    assert "upstream.py cannot be read" in outcome.reason


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("upstream:Engine", "without a Python function of that name"),
        ("upstream:LIMIT", "without a Python function of that name"),
        ("upstream:sqrt", "without a Python function of that name"),
        ("upstream:lambda_", "without a Python function of that name"),
    ],
)
def test_what_is_no_function_is_drift(site: Site, enable: Enable, target: str, words: str) -> None:
    site.write(upstream="from math import sqrt\nLIMIT = 1\nclass Engine: pass\nlambda_ = lambda: 1\n")
    import upstream  # noqa: F401

    outcome = enable(changed(target, "1", "2"))["p"]
    assert outcome.state == "drifted"
    assert words in outcome.reason


def test_a_function_defined_twice_is_identified_by_its_line(site: Site, enable: Enable) -> None:
    site.write(upstream="import sys\nif sys:\n    def f(): return 1\nif not sys:\n    def f(): return 1\n")
    import upstream

    assert enable(changed("upstream:f", "1", "2"))["p"].state == "applied"
    assert upstream.f() == 2


def test_an_inherited_method_is_not_rewritten_for_everybody(site: Site, enable: Enable) -> None:
    site.write(upstream="class Base:\n    def f(self): return 1\nclass Sub(Base): pass\n")
    import upstream

    outcome = enable(changed("upstream:Sub.f", "1", "2"))["p"]
    assert outcome.state == "drifted"
    assert "inherited from Base" in outcome.reason
    assert upstream.Base().f() == 1


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("x + 1", "y = 1", "pass two expressions or two statements"),
        ("x = 1", "2", "pass two expressions or two statements"),
        ("x = 1", "x=1", "are the same"),
        ("x =", "x = 1", "is not Python"),
        ("", "x", "pass one expression or statement"),
        (3, "x", "pass one expression or statement"),
    ],
)
def test_what_cannot_be_rewritten_is_refused_where_it_is_declared(old: Any, new: str, words: str) -> None:
    with pytest.raises(PatchSpecError, match=words):
        changed("upstream:f", old, new)


def test_a_cache_forgets_what_the_other_code_computed(site: Site, enable: Enable) -> None:
    site.write(upstream="import functools\n@functools.lru_cache\ndef f(x): return x + 1\n")
    import upstream

    assert upstream.f(1) == 2
    enable(changed("upstream:f", "x + 1", "x + 2"))
    assert upstream.f(1) == 3
    ascend_adapt.disable()
    assert upstream.f(1) == 2
