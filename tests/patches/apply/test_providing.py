"""Modules that exist only because a patch makes them."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
from stand_ins import GRAVE, TERMS, Site

import ascend_adapt
from ascend_adapt import CodeBase, provide
from ascend_adapt.errors import PatchFailed, PatchSpecError

Enable = Callable[..., ascend_adapt.Status]


def provided(name: str, **terms: Any) -> ascend_adapt.Patch:
    @provide(name, **{**TERMS, "name": name, **terms})
    def fill(module: Any) -> None:
        module.forward = lambda x: ("provided", x)

    return fill


def test_a_missing_module_is_provided_with_a_full_spec(site: Site, enable: Enable) -> None:
    assert enable(provided("softmax_cuda"))["softmax_cuda"].state == "armed"
    assert "softmax_cuda" not in sys.modules
    spec = importlib.util.find_spec("softmax_cuda")
    assert spec is not None
    assert (spec.name, spec.origin) == ("softmax_cuda", "provided by patch 'softmax_cuda' (plugin 'stand_in')")
    import softmax_cuda

    assert softmax_cuda.forward(1) == ("provided", 1)
    assert softmax_cuda.__spec__.loader is not None
    assert softmax_cuda.__name__ == softmax_cuda.__spec__.name == "softmax_cuda"
    assert ascend_adapt.status()["softmax_cuda"].state == "applied"
    assert ascend_adapt.disable()["softmax_cuda"].state == "reverted"
    assert "softmax_cuda" not in sys.modules
    assert importlib.util.find_spec("softmax_cuda") is None
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("softmax_cuda")
    assert not [finder for finder in sys.meta_path if type(finder).__module__ == "ascend_adapt.patches.apply.providing"]


def test_a_real_module_always_wins(site: Site, enable: Enable) -> None:
    site.write(real="WHO = 'real'\n", package__real="WHO = 'real'\n")
    status = enable(provided("real"), provided("package.real"), provided("later"))
    assert status["real"].state == "not_needed"
    assert "a real real exists" in status["real"].reason
    site.write(later="WHO = 'real'\n")
    for name in ("real", "package.real", "later"):
        assert importlib.import_module(name).WHO == "real"
    assert ascend_adapt.status()["package.real"].state != "applied"
    ascend_adapt.disable()
    assert sys.modules["later"].WHO == "real"


def test_submodules_come_and_go(site: Site, enable: Enable) -> None:
    site.package("package", "")
    enable(provided("fused"), provided("fused.kernels"), provided("package.ext"))
    import fused.kernels
    import package
    import package.ext

    assert fused.kernels.forward(1) == package.ext.forward(1) == ("provided", 1)
    ascend_adapt.disable()
    assert not {"fused", "fused.kernels", "package.ext"} & set(sys.modules)
    assert not hasattr(package, "ext")
    assert "package" in sys.modules


def test_a_module_that_a_provided_package_lacks_names_the_patch(site: Site, enable: Enable) -> None:
    enable(provided("fused"), provided("fused.kernels"))
    message = r"No module named 'fused\.profiler' \(provided by patch 'fused'"
    with pytest.raises(ModuleNotFoundError, match=message) as error:
        importlib.import_module("fused.profiler")
    assert error.value.name == "fused.profiler"
    assert importlib.util.find_spec("fused.profiler") is None  # as for a module that any other package lacks
    with pytest.raises(ImportError, match="cannot import name 'profiler' from 'fused'"):
        exec("from fused import profiler")


def test_a_module_for_importers_is_gone_when_they_are_imported(site: Site, enable: Enable) -> None:
    site.write(
        ours__kernels="import fused\nimport fused.language as language\nHELD = fused.forward, language.forward\n",
        ours__guarded="try:\n    import fused\nexcept ImportError:\n    fused = None\n",
        ours__broken="import fused\nraise ValueError('later')\n",
        ours____init__="",
    )
    only = {"importers": ("ours.kernels", "ours.broken")}
    enable(provided("fused", **only), provided("fused.language", **only))
    kernels = importlib.import_module("ours.kernels")
    assert [one(1) for one in kernels.HELD] == [("provided", 1), ("provided", 1)]
    assert not {"fused", "fused.language"} & set(sys.modules)
    assert importlib.util.find_spec("fused") is None
    assert importlib.import_module("ours.guarded").fused is None
    with pytest.raises(ValueError, match="later"):
        importlib.import_module("ours.broken")
    assert "fused" not in sys.modules
    assert {ascend_adapt.status()[name].state for name in ("fused", "fused.language")} == {"applied"}


def test_a_module_instead_of_a_real_one_is_seen_by_its_importers_alone(site: Site, enable: Enable) -> None:
    site.write(
        ours__training="from harness import WHO as HELD\n",
        ours__evaluate="from harness import WHO as HELD\n",
        harness="WHO = 'real'\n",
    )

    @provide("harness", importers=("ours.training",), instead=True, **{**TERMS, "name": "harness"})
    def fill(module: Any) -> None:
        module.WHO = "provided"

    assert enable(fill)["harness"].state == "armed"
    assert importlib.import_module("ours.training").HELD == "provided"
    assert "harness" not in sys.modules
    assert importlib.import_module("ours.evaluate").HELD == "real"
    assert ascend_adapt.status()["harness"].state == "applied"
    ascend_adapt.disable()
    assert importlib.reload(sys.modules["ours.training"]).HELD == "real"


def test_nobody_hides_a_real_module_from_all() -> None:
    with pytest.raises(PatchSpecError, match="harness: instead= would hide a real module"):
        provide("harness", instead=True, **TERMS)


def test_only_the_host_sees_what_is_provided_for_it(site: Site, enable: Enable) -> None:
    site.write(
        ours__model="def use():\n    import fused_for_ours\n    return fused_for_ours.forward(1)\n",
        ours__lazy="import importlib\ndef use():\n    return importlib.import_module('fused_for_ours')\n",
        marker="",
    )
    others = Site(site.folder / "others")
    others.write(
        stranger="""
        import importlib.util
        def available(): return importlib.util.find_spec("fused_for_ours") is not None
        def use():
            import fused_for_ours
        """
    )
    sys.path.insert(0, str(others.folder))
    try:
        host = CodeBase("ours", present=("marker.py",))
        enable(provided("fused_for_ours", host=host))
        import ours.lazy
        import ours.model
        import stranger

        assert not stranger.available()
        with pytest.raises(ModuleNotFoundError):
            stranger.use()
        assert ours.model.use() == ("provided", 1)
        assert ours.lazy.use().forward(1) == ("provided", 1)
    finally:
        sys.path.remove(str(others.folder))


def test_filling_that_raises_leaves_the_module_missing(site: Site, enable: Enable) -> None:
    """As missing as without the patch, so that upstream's own fallback works."""

    def broken(module: ModuleType) -> None:
        raise KeyError("inside")

    enable(provide("broken_ext", name="broken", **TERMS)(broken))
    for _ in range(2):
        with pytest.raises(ModuleNotFoundError, match="broken_ext") as caught:
            importlib.import_module("broken_ext")
        assert caught.value.name == "broken_ext"
        outcome = ascend_adapt.status()["broken"]
        assert (outcome.state, outcome.reason) == ("failed", "KeyError: 'inside'")
    assert "broken_ext" not in sys.modules


def test_an_error_while_filling_is_reported_if_it_matters(site: Site, enable: Enable) -> None:
    def broken(module: ModuleType) -> None:
        raise KeyError("inside")

    enable(provide("broken_ext", name="broken", **GRAVE)(broken))
    with pytest.raises(PatchFailed, match="KeyError: 'inside'"):
        importlib.import_module("broken_ext")
    assert "broken_ext" not in sys.modules


def test_imported_anew_it_is_filled_anew(site: Site, enable: Enable) -> None:
    enable(provided("fused"))
    first = importlib.import_module("fused")
    del sys.modules["fused"]
    second = importlib.import_module("fused")
    assert second is not first
    assert second.forward(2) == ("provided", 2)
    assert importlib.reload(second) is second


def test_a_version_may_decide(site: Site, enable: Enable) -> None:
    site.install("needed", "1.0")
    status = enable(provided("one", requires="needed>=1"), provided("two", requires="needed>=2"))
    assert (status["one"].state, status["two"].state) == ("armed", "skipped")
    assert importlib.util.find_spec("two") is None


def test_disabling_one_keeps_the_others(site: Site, enable: Enable) -> None:
    enable(provided("one"), provided("two"))
    import one  # noqa: F401

    assert ascend_adapt.enable(disable=["one"])["one"].state == "disabled"
    assert "one" not in sys.modules
    assert importlib.import_module("two").forward(1) == ("provided", 1)


@pytest.mark.parametrize(
    ("script", "sees"),
    [("train.py", True), ("tools/data/tokenize.py", True), (".venv/lib/site-packages/library/tool.py", False)],
)
def test_a_script_in_a_folder_of_the_host_is_the_hosts(site: Site, script: str, sees: bool) -> None:
    path = site.folder / script
    path.parent.mkdir(parents=True, exist_ok=True)
    (site.folder / "marker.py").touch()
    path.write_text("import fused_for_ours\nprint(fused_for_ours.__spec__.origin)\n")
    output = site.run(
        f"""
import runpy
from ascend_adapt import CodeBase, provide
from ascend_adapt.patches.apply.providing import Provided, ProvidingFinder
from ascend_adapt.patches.declare.spec import Registered

terms = dict(why="w", until="u", without="crash", name="fused")
patch = provide("fused_for_ours", **terms)(lambda module: None)
fill = Provided(Registered(patch, "fused", "p"), (CodeBase("ours", present=("marker.py",)),), patch.function)
ProvidingFinder().offer("fused_for_ours", fill)
try:
    runpy.run_path({str(path)!r}, run_name="__main__")
except ModuleNotFoundError as error:
    print(error)
"""
    )
    assert ("provided by" in output) is sees
    assert ("No module named" in output) is not sees


def test_each_host_gets_its_own_module_of_one_name(site: Site, enable: Enable) -> None:
    """As the softmax extensions, which have one name and other numbers in each Megatron."""
    second = Site(site.folder / "second")
    site.write(one__model="def use():\n    import ext\n    return ext.WHO\n", first="")
    second.write(two__model="def use():\n    import ext\n    return ext.WHO\n", other="")

    def who(name: str, host: CodeBase) -> ascend_adapt.Patch:
        @provide("ext", **{**TERMS, "name": name, "host": host})
        def fill(module: Any) -> None:
            module.WHO = name

        return fill

    sys.path.insert(0, str(second.folder))
    try:
        enable(who("for_one", CodeBase("one", ("first.py",))), who("for_two", CodeBase("two", ("other.py",))))
        import one.model
        import two.model

        assert two.model.use() == "for_two"
        assert {name: ascend_adapt.status()[name].state for name in ("for_one", "for_two")} == {
            "for_one": "armed",
            "for_two": "applied",
        }
        del sys.modules["ext"]
        assert one.model.use() == "for_one"
        assert ascend_adapt.disable()["for_one"].state == "reverted"
        assert "ext" not in sys.modules
    finally:
        sys.path.remove(str(second.folder))
