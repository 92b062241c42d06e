"""Which version counts, and what is said of it."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from stand_ins import GRAVE, TERMS, Site, counting

import ascend_adapt
from ascend_adapt import CodeBase, add
from ascend_adapt.patches.declare.spec import Registered
from ascend_adapt.patches.judge import static
from ascend_adapt.runtime import agreement

Enable = Callable[..., ascend_adapt.Status]


@pytest.mark.parametrize(
    ("recorded", "said", "requires", "state", "words"),
    [
        ("2.1", None, ">=2", "applied", ""),
        ("0.6.0", None, ">=0.9", "skipped", "requires upstream>=0.9, found upstream 0.6.0"),
        (None, "0.9.2", ">=0.9", "applied", ""),
        (None, "0.6.0", ">=0.9", "skipped", "requires upstream>=0.9, found upstream 0.6.0"),
        ("2.1", "2.1", ">=2", "applied", ""),
        (None, "0.9.2 ", ">=0.9", "applied", ""),
        ("1.0", "2.1", ">=2", "applied", "upstream.__version__ is 2.1, its distribution records 1.0"),
        ("2.1", "1.0", ">=2", "skipped", "upstream.__version__ is 1.0, its distribution records 2.1"),
        (None, None, ">=2", "skipped", "no distribution owns it, no __version__"),
        (None, None, "", "skipped", "no distribution owns it, no __version__"),
        ("2.0rc1", None, ">=2.0rc1", "applied", ""),
        ("2.1.dev3", None, ">=2", "applied", ""),
        ("2.0rc1", None, ">=2", "applied", "2.0rc1 is treated as 2.0"),
        ("2.0rc1", None, "<2", "skipped", "requires upstream<2, found upstream 2.0rc1"),
        ("2.0rc1", None, ">2", "skipped", "found upstream 2.0rc1"),
        (None, "2.6.0a0+ecf3bae40a.nv25.01", ">=2.6", "applied", "is treated as 2.6.0"),
        (None, "2.6.0a0+ecf3bae40a.nv25.01", ">=2.5,<2.6", "skipped", "found upstream 2.6.0a0+ecf3bae40a.nv25.01"),
        (None, "2.13.0+cpu", ">=2.13", "applied", ""),
        (None, "2.13.0+cpu", "==2.13.0", "applied", ""),
        (None, "0.9.2+unknown", "<0.9.2", "skipped", "found upstream 0.9.2+unknown"),
        (None, "0.9.2+unknown", ">=0.9.2,<0.9.3", "applied", ""),
        (None, "HEAD-dirty", ">=1", "skipped", "upstream HEAD-dirty, which is not a version"),
        ("2.1", "HEAD-dirty", ">=1", "skipped", "its distribution records 2.1"),
    ],
)
@pytest.mark.parametrize("late", [False, True])
def test_the_version_that_counts(
    site: Site,
    enable: Enable,
    recorded: str | None,
    said: str | None,
    requires: str,
    state: str,
    words: str,
    late: bool,
) -> None:
    """Case patch-2: unchanged and ``skipped`` with both versions in the reason, or applied."""
    site.write(upstream=f"__version__ = {said!r}\ndef f(): return 1\nKEPT = (f,)\n")
    if recorded:
        site.install("upstream", recorded)
    if late:
        import upstream
    enable(counting("upstream:f", [], requires=f"upstream{requires}"))
    import upstream

    outcome = ascend_adapt.status()["counting"]
    assert outcome.state == state
    assert words in outcome.reason
    assert (upstream.f is upstream.KEPT[0]) is (state != "applied")
    assert outcome.requires == str(Requirement(f"upstream{requires}"))
    assert outcome.found == f"upstream {(said or recorded or 'of unknown version').strip()}"


def test_a_version_out_of_range_is_known_without_importing(site: Site, enable: Enable) -> None:
    site.write(upstream="raise AssertionError('imported')")
    site.install("upstream", "0.6.0")
    outcome = enable(counting("upstream:f", [], requires="upstream>=0.9", **GRAVE))["counting"]
    assert (outcome.state, outcome.found) == ("skipped", "upstream 0.6.0")


def test_a_checkout_shadows_the_installed_distribution(site: Site, enable: Enable, monkeypatch: Any) -> None:
    checkout = Site(site.folder / "checkout")
    checkout.write(upstream__engine="def f(): return 1\n")
    site.write(upstream__engine="def f(): return 1\n")
    site.install("upstream", "2.0")
    monkeypatch.syspath_prepend(checkout.folder)
    enable(counting("upstream.engine:f", [], requires="upstream>=1"))
    import upstream.engine

    assert upstream.engine.__file__.startswith(str(checkout.folder))
    outcome = ascend_adapt.status()["counting"]
    assert (outcome.state, outcome.found) == ("skipped", "upstream of unknown version")


def test_a_version_set_late_in_the_init_of_a_package(site: Site, enable: Enable) -> None:
    site.package(
        "upstream",
        "from upstream import engine\nKEPT = (engine.f,)\n__version__ = '2.0'\nfrom upstream import engine2\n",
    )
    site.write(upstream__engine="def f(): return 1\n", upstream__engine2="def f(): return 1\n")
    calls: list[Any] = []
    enable(
        counting("upstream.engine:f", calls, requires="upstream>=2", name="in"),
        counting("upstream.engine2:f", calls, requires="upstream>=2", name="after"),
        counting("upstream.engine:f", calls, requires="upstream<2", name="out"),
        counting("upstream.engine:gone", calls, requires="upstream<2", **{**GRAVE, "name": "gone"}),
    )
    import upstream

    status = ascend_adapt.status()
    assert [status[name].state for name in ("in", "after", "out", "gone")] == [
        "applied",
        "applied",
        "skipped",
        "skipped",
    ]
    upstream.engine.f()
    assert len(calls) == 1


def test_a_late_version_overrules_the_distribution(site: Site, enable: Enable) -> None:
    site.package("upstream", "from upstream import engine\nKEPT = (engine.f,)\n__version__ = '1.0'\n")
    site.write(upstream__engine="def f(): return 1\nKEPT = (f,)\n")
    site.install("upstream", "2.0")
    enable(counting("upstream.engine:f", [], requires="upstream>=2"))
    import upstream

    outcome = ascend_adapt.status()["counting"]
    assert outcome.state == "skipped"
    assert "upstream.__version__ is 1.0, its distribution records 2.0" in outcome.reason
    assert upstream.engine.f is upstream.engine.KEPT[0]


def test_a_submodule_of_a_package_imported_already(site: Site, enable: Enable) -> None:
    site.package("upstream", "__version__ = '2.0'\n")
    site.write(upstream__deep__engine="def f(): return 1\n")
    import upstream  # noqa: F401

    enable(counting("upstream.deep.engine:f", [], requires="upstream>=2"))
    importlib.import_module("upstream.deep.engine")
    assert ascend_adapt.status()["counting"].state == "applied"


def test_a_distribution_named_like_a_dotted_package(site: Site, enable: Enable) -> None:
    """megatron-core is megatron.core, with a version of its own."""
    site.package("megaton", "")
    site.package("megaton.core", "__version__ = '0.9.0'\n")
    site.write(megaton__core__layer="def f(): return 1\n")
    enable(
        counting("megaton.core.layer:f", [], requires="megaton-core>=0.9", name="core"),
        counting("megaton.core.layer:f", [], requires="Megaton_Core<0.9", name="old"),
    )
    import megaton.core.layer  # noqa: F401

    status = ascend_adapt.status()
    assert (status["core"].state, status["old"].state) == ("applied", "skipped")


@pytest.mark.parametrize("installed", [None, "1.5"])
def test_the_version_of_a_dotted_code_base_decides_for_a_target_elsewhere(
    site: Site, enable: Enable, tmp_path_factory, monkeypatch, installed: str | None
) -> None:
    """Megatron-core's checkpoints are written by torch: what counts is what runs, not what is installed."""
    if installed:
        monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path_factory.mktemp("installed"))])
        Site(Path(sys.path[-1])).install("megaton-core", installed)
    site.write(upstream="def f(): return 1\n", megaton__core__layer="")
    site.package("megaton.core", "__version__ = '0.9.0'\n")
    host = CodeBase("megaton", present=("megaton/core/__init__.py",))
    enable(
        counting("upstream:f", [], requires="megaton-core<1", host=host, name="of_the_checkout"),
        counting("upstream:f", [], requires="megaton-core>=1", host=host, name="of_the_installed"),
    )
    import upstream  # noqa: F401

    before = ascend_adapt.status()
    for name in ("of_the_checkout", "of_the_installed"):
        assert before[name].state == "armed"
        assert "the version is checked when megaton.core is imported" in before[name].reason
    import megaton.core  # noqa: F401

    status = ascend_adapt.status()
    assert (status["of_the_checkout"].state, status["of_the_installed"].state) == ("applied", "skipped")


def test_what_is_installed_does_not_decide_before_the_host_is_imported(site: Site, enable: Enable, tmp_path) -> None:
    """A script may put a checkout first on its path after enable(), and even after it has imported the target."""
    site.write(upstream="def f(): return 1\n")
    site.package("megaton.core", "")
    site.install("megaton-core", "1.5")
    host = CodeBase("megaton", present=("megaton/core/__init__.py",))
    enable(
        counting("upstream:f", [], requires="megaton-core<1", host=host, name="of_the_checkout"),
        counting("upstream:f", [], requires="megaton-core>=1", host=host, name="of_the_installed"),
    )
    import upstream  # noqa: F401

    names = ("of_the_checkout", "of_the_installed")
    assert [ascend_adapt.status()[name].state for name in names] == ["armed", "armed"]
    checkout = Site(tmp_path / "checkout")
    checkout.package("megaton.core", "__version__ = '0.9.0'\n")
    sys.path.insert(0, str(checkout.folder))  # the fixture restores it
    import megaton.core  # noqa: F401

    assert [ascend_adapt.status()[name].state for name in names] == ["applied", "skipped"]


def test_requirements_on_other_packages(site: Site, enable: Enable) -> None:
    site.write(upstream="def f(): return 1\n", helper="__version__ = '3.0'\n")
    site.install("installed", "1.5")
    import helper  # noqa: F401

    enable(
        counting("upstream:f", [], requires=("installed>=1", "helper>=3"), name="both"),
        counting("upstream:f", [], requires=("installed>=1", "helper>=4"), name="one"),
        counting("upstream:f", [], requires="absent>=1", name="absent"),
    )
    import upstream  # noqa: F401

    status = ascend_adapt.status()
    assert (status["both"].state, status["both"].found) == ("applied", "installed 1.5, helper 3.0")
    assert (status["one"].state, status["one"].reason) == ("skipped", "requires helper>=4, found helper 3.0")
    assert (status["absent"].state, status["absent"].reason) == (
        "skipped",
        "requires absent>=1, absent is not installed",
    )


def test_code_bases_are_identified_by_marker_files(site: Site, enable: Enable) -> None:
    site.write(shared__model="def f(): return 1\n", mark="")
    ours = CodeBase("ours", present=("mark.py",), absent=("other.py",))
    theirs = CodeBase("theirs", present=("elsewhere.py",))
    unwanted = CodeBase("unwanted", present=("mark.py",), absent=("shared/model.py",))
    status = enable(
        *(counting("shared.model:f", [], host=host, name=host.name) for host in (ours, theirs, unwanted)),
        counting("absent.model:f", [], host=ours, name="absent"),
    )
    assert {name: status[name].state for name in ("ours", "theirs", "unwanted", "absent")} == {
        "ours": "armed",
        "theirs": "skipped",
        "unwanted": "skipped",
        "absent": "armed",
    }
    assert f"is for theirs: elsewhere.py is not in {site.folder}" in status["theirs"].reason
    assert f"shared/model.py is in {site.folder}" in status["unwanted"].reason
    assert status["ours"].requires == "host ours"
    import shared.model  # noqa: F401

    assert ascend_adapt.status()["ours"].state == "applied"


def test_one_of_several_hosts_is_enough(site: Site, enable: Enable) -> None:
    site.write(shared__model="def f(): return 1\n", mark="")
    theirs, ours = CodeBase("theirs", present=("elsewhere.py",)), CodeBase("ours", present=("mark.py",))
    other = CodeBase("other", present=("nowhere.py",))
    status = enable(
        counting("shared.model:f", [], host=(theirs, ours), name="one"),
        counting("shared.model:f", [], host=[theirs, other], name="none"),
    )
    assert (status["one"].state, status["one"].requires) == ("armed", "host theirs or ours")
    assert status["none"].state == "skipped"
    assert "is for theirs: elsewhere.py" in status["none"].reason
    assert "is for other: nowhere.py" in status["none"].reason
    import shared.model  # noqa: F401

    assert ascend_adapt.status()["one"].state == "applied"


def test_a_library_is_patched_for_a_host_only_where_that_host_is_found(site: Site, enable: Enable) -> None:
    """As numpy is for a code base that uses names numpy no longer has."""
    library = Site(site.folder / "library")
    library.write(lib="def f(): return 1\n")
    code = Site(site.folder / "code")
    code.package("megabase", "")
    code.write(megabase__arguments="", own="def f(): return 1\n")
    stranger = Site(site.folder / "stranger")
    stranger.write(own="def f(): return 1\n")
    host = CodeBase("base", present=("megabase/arguments.py",))
    sys.path[:0] = [str(library.folder)]
    try:
        status = enable(
            counting("lib:f", [], host=host, name="lib"), counting("own:f", [], host=host, name="own_module")
        )
        assert (status["lib"].state, status["own_module"].state) == ("skipped", "armed")
        assert f"is for base: megabase/arguments.py is not in {library.folder}" in status["lib"].reason
        sys.path[:0] = [str(stranger.folder), str(code.folder)]
        import lib  # noqa: F401
        import own  # noqa: F401

        states = {name: ascend_adapt.status()[name].state for name in ("lib", "own_module")}
        assert states == {"lib": "armed", "own_module": "skipped"}  # another own.py hides the host's
        assert f"own is imported from {stranger.folder}" in ascend_adapt.status()["own_module"].reason
        import megabase.arguments  # noqa: F401

        assert ascend_adapt.status()["lib"].state == "applied"
    finally:
        for site_ in (library, code, stranger):
            while str(site_.folder) in sys.path:
                sys.path.remove(str(site_.folder))


@pytest.mark.parametrize("is_namespace", [False, True])
def test_a_library_is_patched_when_its_code_base_is_imported(site: Site, enable: Enable, is_namespace: bool) -> None:
    """As typing.override is for Megatron-core: an installed one that nothing uses leaves typing and numpy alone."""
    site.write(lib="", user="import importlib.util\nFOUND = importlib.util.find_spec('megabase.core')")
    site.install("lib", "1.0")  # both lie in one folder, as in site-packages
    site.package("megabase.core", "from . import types")
    site.write(megabase__core__types="from lib import needed\n")
    (site.folder / "megabase" / "__init__.py").unlink(missing_ok=True)
    if not is_namespace:
        site.package("megabase", "from .core import types")
    host = CodeBase("base", present=("megabase/core/__init__.py",))
    enable(add("lib:needed", value=3, name="needed", host=host, **TERMS))
    import lib

    assert ascend_adapt.status()["needed"].reason == "is for base, checked when megabase is imported"
    if is_namespace:
        import user

        assert user.FOUND
        assert not hasattr(lib, "needed")  # an availability check is no import
    import megabase.core

    assert megabase.core.types.needed == 3
    assert ascend_adapt.status()["needed"].state == "applied"


def test_a_library_is_patched_when_its_host_is_found_late(site: Site, enable: Enable) -> None:
    """As by a tool that adds its code base to sys.path after it imported the library."""
    site.write(lib="def f(): return 1\n")
    code = Site(site.folder / "code")
    code.package("megabase", "")
    enable(counting("lib:f", [], host=CodeBase("base", present=("megabase/__init__.py",)), name="late"))
    import lib  # noqa: F401

    assert ascend_adapt.status()["late"].state == "skipped"
    sys.path.insert(0, str(code.folder))
    try:
        import megabase  # noqa: F401

        assert ascend_adapt.status()["late"].state == "applied"
    finally:
        sys.path.remove(str(code.folder))


def test_a_library_installed_anywhere_waits_for_its_code_base(site: Site, enable: Enable) -> None:
    """As ``pip install --target`` and ``--editable`` lay it: a rank that has its host already differs from none yet."""
    site.write(lib="def f(): return 1\n")
    site.install("lib", "1.0")
    outcome = enable(counting("lib:f", [], host=CodeBase("base", present=("megabase/__init__.py",)), name="late"))[
        "late"
    ]
    assert (outcome.state, outcome.reason) == ("armed", "is for base, checked when megabase is imported")
    (armed,) = agreement.states([outcome]).values()
    assert not agreement.differences(
        {rank: {"first apply": {"patch": state}} for rank, state in enumerate((armed, "applied", "skipped"))}
    )


def test_a_namespace_package_is_judged_when_something_in_it_is_imported(site: Site, enable: Enable, tmp_path) -> None:
    """As Megatron-LM's megatron is one since 0.9: it runs no code whose end would reveal its import."""
    checkout = tmp_path / "checkout"
    (checkout / "shared" / "core").mkdir(parents=True)
    (checkout / "shared" / "core" / "__init__.py").touch()
    other = CodeBase("other", present=("shared/other/__init__.py",))
    status = enable(counting("shared.data:f", [], host=other))
    assert status["counting"].reason == "is for other, checked when shared is imported"
    sys.path.insert(0, str(checkout))  # the fixture restores it
    import shared.core  # noqa: F401

    outcome = ascend_adapt.status()["counting"]
    assert (outcome.state, outcome.reason) == (
        "skipped",
        f"is for other: shared/other/__init__.py is not in {checkout}",
    )


def test_a_folder_named_like_a_namespace_package_hides_no_code_base(site: Site, enable: Enable, tmp_path) -> None:
    """As a ``megatron`` with checkpoints beside the script does before Megatron-LM, whose megatron has no __init__."""
    (tmp_path / "beside" / "shared" / "checkpoints").mkdir(parents=True)
    site.package("shared.core", "def f(): return 1\n")
    site.install("shared-core", "2.1")
    sys.path.insert(0, str(tmp_path / "beside"))  # the fixture restores it
    patch = counting(
        "shared.core:f", [], requires="shared-core>=2", host=CodeBase("ours", ("shared/core/__init__.py",))
    )
    (judged,) = static.judge([Registered(patch, "p", "stand_in")], device="cpu", hosts={"ours": patch.hosts[0]})
    outcome = enable(patch)["counting"]
    assert (judged.state, outcome.state, outcome.found) == ("armed", "armed", "shared-core 2.1")
    import shared.core  # noqa: F401

    assert ascend_adapt.status()["counting"].state == "applied"
