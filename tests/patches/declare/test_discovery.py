"""patches_in: what a module or package declares, in which order, and what is not imported for it."""

from __future__ import annotations

import importlib

import pytest
from stand_ins import Site

from ascend_adapt import hookimpl, patches_in
from ascend_adapt.runtime.plugin_manager import PluginManager

DECLARING = """
    from ascend_adapt import add
    TERMS = dict(why="w", until="u", without="crash")
    {lines}
"""


@pytest.fixture
def package(site: Site) -> str:
    made = [f"add('m:{name}', value=1, **TERMS)" for name in "abcde"]
    site.package("declaring", DECLARING.format(lines=f"own = {made[0]}"))
    site.package("declaring.inner", "")
    site.write(
        declaring__second=DECLARING.format(lines=f"z = {made[1]}\n    both = [{made[2]}, z]"),
        declaring__first=DECLARING.format(lines=f"some = ({made[3]},)\n    from .second import z"),
        declaring__inner__deep=DECLARING.format(lines=f"deep = {made[4]}"),
    )
    (site.folder / "declaring" / "_lazy.py").write_text("raise RuntimeError('is not imported')")
    return "declaring"


def test_every_module_of_a_package_in_a_stable_order_and_each_patch_once(package: str) -> None:
    found = patches_in(package)
    assert [str(patch.target) for patch in found] == ["m:a", "m:d", "m:b", "m:e", "m:c"]
    assert patches_in(importlib.import_module(package)) == found
    assert [str(patch.target) for patch in patches_in("declaring.second")] == ["m:b", "m:c"]


def test_a_patch_without_a_name_is_named_as_its_module_names_it(package: str) -> None:
    plugin = importlib.import_module(package)
    plugin.register_patches = hookimpl(lambda: patches_in(package))  # type: ignore[attr-defined]
    assert [one.name for one in PluginManager([plugin], allowed=[]).patches()] == ["own", "add_d", "z", "deep", "add_c"]


def test_no_plugin_that_ships_imports_torch(site: Site) -> None:
    # Plugins are loaded by the launcher, and in a rank before the script: torch would be imported in both.
    site.run(
        """
        import importlib.metadata, sys

        class Forbidding:
            def find_spec(name, path=None, target=None):
                assert name != "torch", "a module that is loaded before the script imports torch, see the traceback"

        sys.meta_path.insert(0, Forbidding)
        from ascend_adapt import patches_in
        for point in importlib.metadata.distribution("ascend_adapt").entry_points.select(group="ascend_adapt"):
            assert patches_in(point.value) or point.name == "problems"
        """
    )


def test_the_plugins_that_ship_register_every_patch_they_declare(site: Site) -> None:
    site.run(
        """
        import gc, sys
        from ascend_adapt import Patch
        from ascend_adapt.runtime.plugin_manager import PluginManager
        manager = PluginManager()
        registered = {id(one.patch) for one in manager.patches()}
        declared = {id(one) for one in gc.get_objects() if isinstance(one, Patch)}
        assert registered == declared and len(registered) > 170
        assert not manager.left_out()
        lazy = [name for name in sys.modules if name.startswith("ascend_adapt_plugins.") and "._" in name]
        assert not lazy
        """
    )
