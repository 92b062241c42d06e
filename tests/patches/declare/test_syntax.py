"""Finding definitions and expressions in source text."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from ascend_adapt.errors import PatchDrift, PatchSpecError
from ascend_adapt.patches.declare import syntax

SOURCE = """
import os.path, sys as system
from m import a as b
x = y = 1
z: int = 2
(p, q) = 1, 2
if x:
    def f(): return 1
else:
    def f(): return 2
try:
    import fast
except ImportError:
    fast = None
for _ in ():
    def looped(): ...
with open("x") as g:
    def inside(): ...
class A:
    def f(self): ...
    class B:
        async def f(self): ...
    TABLE = {"f": f}
def outer():
    def hidden(): ...
looped.attribute = False
A["key"] = x
"""


@pytest.mark.parametrize(
    ("path", "count"),
    [
        ("os", 1), ("system", 1), ("b", 1), ("a", 0), ("x", 1), ("y", 1), ("z", 1), ("q", 1), ("f", 2), ("fast", 2),
        ("looped", 1), ("inside", 1), ("A", 1), ("A.f", 1), ("A.B", 1), ("A.B.f", 1), ("A.TABLE", 1), ("hidden", 0),
        ("outer.hidden", 0), ("A.gone", 0), ("x.y", 0),
    ],
)  # fmt: skip
def test_find(path: str, count: int) -> None:
    assert len(syntax.find(ast.parse(SOURCE), tuple(path.split(".")))) == count


def test_find_by_the_line_of_def_or_first_decorator() -> None:
    tree = ast.parse("@d\n@e\ndef f(): ...\ndef f(): ...\n")
    assert [len(syntax.find(tree, ("f",), line)) for line in (1, 2, 3, 4, 5)] == [1, 1, 1, 1, 0]


def test_occurrences_ignore_layout_and_see_only_whole_trees() -> None:
    node = ast.parse("def f():\n    y = (x\n         + 1)\n    return x+1, x + 10, 'x + 1'\n")
    assert len(syntax.occurrences(node, ast.parse("x + 1", mode="eval").body)) == 2
    assert len(syntax.occurrences(node, ast.parse("y = x + 1").body[0])) == 1
    assert syntax.occurrences(node, ast.parse("x + 2", mode="eval").body) == []


def test_digest_ignores_docstrings_comments_and_layout_only() -> None:
    def digest(text: str) -> str:
        return syntax.digest(ast.parse(text).body[0])

    one = digest("def f(x):\n    'Doc.'\n    return x+1  # comment\n")
    assert one == digest("def f(x):\n    'Another.'\n\n    return (x +\n 1)\n")
    assert one != digest("def f(x):\n    'Doc.'\n    return x + 2\n")
    assert one != digest("def f(x, y=1):\n    'Doc.'\n    return x + 1\n")
    assert len(one) == 16


WRITTEN = r"""
def f(x, w=3, *, y: "int" = 1.0, **k) -> None:
    'Doc.'
    class C:
        "Doc."
    (a, b), c = x[(1, 2)], x[1, 2:3, ...]
    for i in (1, 2): yield (i, -1j)
    if y:
        return f"a" "b" f"{x}" "" f"" f"{{}}{x!r:>{w}}" 'c' f"{x=}" f"{x = !s}" f"{x:%Y}" "\N{BULLET}\U0001FAE8"
    match x:
        case {"a": [1, *r], **k} | None: return f"{x:{w}{'>'}}", u"u", 1e999, lambda *a, b=(1, 2): (a, b)
"""


def test_a_digest_is_the_same_on_every_python() -> None:
    """What is recorded on one Python is compared on another; 3.10 to 3.13 write and parse some of this otherwise."""
    assert syntax.digest(ast.parse(WRITTEN).body[0]) == "63417f88b0c8640e"


@pytest.mark.parametrize(
    ("text", "words"), [("x +", "is not Python"), ("a; b", "has 2 statements"), ("", "pass one expression")]
)
def test_a_fragment_is_one_expression_or_statement(text: str, words: str) -> None:
    with pytest.raises(PatchSpecError, match=words):
        syntax.parse_fragment(text, "subject")


def test_python_2_is_drift(tmp_path: Path) -> None:
    (tmp_path / "old.py").write_text("print 'x'\n")
    with pytest.raises(PatchDrift, match=r"old\.py: does not parse: .* line 1"):
        syntax.parse_file(tmp_path / "old.py")


def test_a_file_of_another_encoding_is_read_as_python_reads_it(tmp_path: Path) -> None:
    (tmp_path / "latin.py").write_bytes("# coding: latin-1\nx = 'é'\n".encode("latin-1"))
    (found,) = syntax.find(syntax.parse_file(tmp_path / "latin.py"), ("x",))
    assert ast.literal_eval(found.node.value) == "é"  # type: ignore[attr-defined]


def test_code_of_takes_the_last_definition() -> None:
    code = compile("def f(): return 1\ndef f(): return 2\nclass A:\n    def f(self): return 3\n", "x", "exec")
    last = syntax.code_of(code, ("f",))
    assert last is not None
    assert 2 in last.co_consts
    assert syntax.code_of(code, ("A", "f")) is not None
    assert syntax.code_of(code, ("A", "gone")) is None


def test_a_source_that_only_warns_parses(tmp_path) -> None:
    """Warnings are errors in this suite, and may be in a user's process."""
    path = tmp_path / "escapes.py"
    path.write_text("TEXT = '\\d'\n")
    assert ast.unparse(syntax.parse_file(path)) == "TEXT = '\\\\d'"
