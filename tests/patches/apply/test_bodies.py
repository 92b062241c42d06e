"""bodies=: a patch that computes all of a function stands only for the functions that it was read off, alone."""

from __future__ import annotations

import ast
import functools
import warnings
from collections import ChainMap

import pytest
from stand_ins import TERMS, Site

import ascend_adapt
from ascend_adapt import entry, wrap
from ascend_adapt.errors import PatchSpecError
from ascend_adapt.patches.declare import syntax
from ascend_adapt.patches.declare.spec import Registered
from ascend_adapt.patches.judge import static
from ascend_adapt.patches.judge.installation import SourceTree

# A comment in the first column and a text over several lines: the source of a method alone does not parse as it stands.
UPSTREAM = '''
import functools

def twice(function):
    @functools.wraps(function)
    def call(*args):
        return 2 * function(*args)
    return call

class Engine:
    def plain(self, x):
        text = """
        as it
stands"""
#       commented = "out"
        return x + len(text)

    @twice
    def decorated(self, x):
        return x

    @staticmethod
    def static(x):
        return x

    @classmethod
    def of_class(cls, x):
        return x

    @property
    def prop(self):
        return 1
'''


def known(site: Site, name: str, target: str = "upstream:Engine", **terms):
    """A wrap that answers for all of a method, declared with the digest that the source has."""
    site.write(upstream=UPSTREAM)
    declared = wrap(f"{target}.{name}", name=name, **{**TERMS, "without": "slower", **terms})
    (found,) = static.definitions(declared(answer), SourceTree(site.folder))
    return wrap(
        f"{target}.{name}", name=name, bodies=syntax.digest(found.node), **{**TERMS, "without": "slower", **terms}
    )(answer)


def answer(wrapped, instance, args, kwargs):
    return "ours"


@pytest.mark.parametrize("name", ["plain", "decorated", "static", "of_class", "prop"])
@pytest.mark.parametrize("late", [False, True])
def test_what_the_source_says_is_what_runs(site: Site, enable, name: str, late: bool) -> None:
    patch = known(site, name)
    if late:
        import upstream
    enable(patch)
    import upstream

    assert ascend_adapt.status()[name].state == "applied", ascend_adapt.status()[name].reason
    found = getattr(upstream.Engine(), name)
    assert (found if name == "prop" else found(1)) == "ours"


@pytest.mark.parametrize("name", ["plain", "decorated"])
def test_a_wrapper_of_somebody_is_not_left_out(site: Site, enable, name: str) -> None:
    """It looks like upstream's own: functools.wraps gives it the name, and inspect goes through it."""
    patch = known(site, name)
    import upstream

    own = vars(upstream.Engine)[name]

    @functools.wraps(own)
    def of_somebody(self, x):
        return own(self, x) + 1000

    upstream.Engine.plain = upstream.Engine.decorated = of_somebody
    before = upstream.Engine().plain(1)
    enable(patch)
    outcome = ascend_adapt.status()[name]
    assert outcome.state == "drifted"
    assert f"upstream:Engine.{name} is wrapped by {__name__}." in outcome.reason
    assert upstream.Engine().plain(1) == before


def test_a_wrapper_that_comes_later_is_called(site: Site, enable) -> None:
    enable(known(site, "plain"))
    import upstream

    ours = upstream.Engine.plain
    upstream.Engine.plain = functools.wraps(ours)(lambda self, x: f"around {ours(self, x)}")
    ascend_adapt.enable()
    assert upstream.Engine().plain(1) == "around ours"


def test_a_file_that_changed_after_its_import_is_not_what_runs(site: Site, enable) -> None:
    patch = known(site, "static")
    site.write(upstream=UPSTREAM.replace("def static(x):\n        return x", "def static(x):\n        return 3 * x"))
    import upstream

    site.write(upstream=UPSTREAM)
    enable(patch)
    assert upstream.Engine.static(1) == 3
    assert "does not compile to the code that runs" in ascend_adapt.status()["static"].reason


def test_an_invalid_escape_in_upstreams_source_is_not_ours(site: Site, enable) -> None:
    """Under -W error it would be drift, and Python 3.12 says it once more."""
    patch = known(site, "static")
    site.write(upstream=UPSTREAM + "PATTERN = '\\s'\n")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import upstream  # noqa: F401
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        enable(patch)
    assert ascend_adapt.status()["static"].state == "applied", ascend_adapt.status()["static"].reason


TABLE = """
def fast(x): return x
def of_somebody(x): return 2 * x
TABLE = {"first": 1, "fast": fast, "last": 3}
"""


def of_table(site: Site, source: str = TABLE):
    site.write(upstream=source)
    body = syntax.digest(ast.parse("def fast(x): return x").body[0])
    terms = {**TERMS, "without": "slower", "name": "fast"}
    return entry("upstream:TABLE", "fast", ours, present=True, original="upstream:fast", bodies=body, **terms)


def ours(x):
    return "ours"


def foretold(patch, site: Site) -> tuple[str, str]:
    (outcome,) = static.judge([Registered(patch, "fast", "test")], device="cpu", hosts={}, tree=SourceTree(site.folder))
    return outcome.state, outcome.reason


def test_an_entry_that_is_upstreams_own_is_replaced(site: Site, enable) -> None:
    patch = of_table(site)
    assert foretold(patch, site) == ("armed", "")
    enable(patch)
    import upstream

    assert (upstream.TABLE["fast"](1), list(upstream.TABLE)) == ("ours", ["first", "fast", "last"])
    ascend_adapt.disable()
    assert list(upstream.TABLE.items()) == [("first", 1), ("fast", upstream.fast), ("last", 3)]


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ("TABLE['fast'] = of_somebody", "upstream:TABLE['fast'] is upstream.of_somebody, expected upstream's own"),
        ("TABLE['fast'] = 1", "upstream:TABLE['fast'] is "),
        ("import functools\nTABLE['fast'] = functools.wraps(fast)(lambda x: 3)", "is wrapped by upstream."),
        ("TABLE['fast'] = functools.partial(fast, 1)", "upstream:TABLE['fast'] is "),
    ],
)
@pytest.mark.parametrize("late", [False, True])
def test_an_entry_of_other_code_is_left_alone(site: Site, enable, change: str, expected: str, late: bool) -> None:
    """A script that has set it before enable() wants its own to be called."""
    patch = of_table(site, f"import functools\n{TABLE}\n{change}\n")
    if not late:
        enable(patch)
    import upstream

    before = upstream.TABLE["fast"]
    if late:
        enable(patch)
    outcome = ascend_adapt.status()["fast"]
    assert (outcome.state, upstream.TABLE["fast"]) == ("drifted", before)
    assert expected in outcome.reason


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        (TABLE.replace("return x\n", "return x + 0\n", 1), "upstream:fast: its body is "),
        (TABLE.replace("def fast", "def slow").replace('": fast', '": slow'), "upstream:fast is missing"),
    ],
)
def test_an_entry_of_another_body_is_drift(site: Site, enable, source: str, expected: str) -> None:
    patch = of_table(site, source)
    state, reason = foretold(patch, site)
    assert state == "drifted"
    assert expected in reason
    enable(patch)
    import upstream

    assert ascend_adapt.status()["fast"].state == "drifted"
    assert upstream.TABLE["fast"](1) == 1


@pytest.mark.parametrize("when", ["while enabled", "after disable"])
def test_a_layer_that_an_entry_has_put_over_another_goes_with_it(site: Site, enable, when: str) -> None:
    """transformers' interfaces are such: what is registered below for all models must be found."""
    patch = of_table(site, TABLE + "from collections import ChainMap\nTABLE = ChainMap({}, TABLE)\n")
    enable(patch)
    import upstream

    assert isinstance(upstream.TABLE, ChainMap)
    assert upstream.TABLE["fast"] is ours
    if when == "while enabled":
        upstream.TABLE.maps[1]["fast"] = upstream.of_somebody
    ascend_adapt.disable()
    upstream.TABLE.maps[1]["fast"] = upstream.of_somebody
    assert upstream.TABLE["fast"] is upstream.of_somebody


def test_an_entry_in_the_upper_layer_is_given_back_there(site: Site, enable) -> None:
    enable(of_table(site, TABLE + "from collections import ChainMap\nTABLE = ChainMap(TABLE, {'fast': of_somebody})\n"))
    import upstream

    assert upstream.TABLE["fast"] is ours
    ascend_adapt.disable()
    assert upstream.TABLE.maps[0]["fast"] is upstream.fast


@pytest.mark.parametrize(
    "terms",
    [
        {"present": True, "original": "upstream:fast"},
        {"present": True, "bodies": "0" * 16},
        {"present": False, "original": "upstream:fast", "bodies": "0" * 16},
    ],
)
def test_an_original_without_its_bodies_is_refused(terms) -> None:
    with pytest.raises(PatchSpecError, match="entry upstream:TABLE: original= and bodies= describe a present key"):
        entry("upstream:TABLE", "fast", ours, **terms, **TERMS)
