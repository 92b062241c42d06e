"""Who is called when a module has been imported."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator

import pytest
from stand_ins import Site

from ascend_adapt.patches.apply.imports import ImportWatch


@pytest.fixture
def watched(site: Site) -> Iterator[tuple[list[str], ImportWatch]]:
    names: list[str] = []
    watch = ImportWatch(names.append)
    yield names, watch
    watch.stop()


def test_each_import_calls_back_once(site: Site, watched: tuple[list[str], ImportWatch]) -> None:
    names, watch = watched
    site.write(package__one="", two="import package.one\n")
    watch.watch(["package", "package.one", "two"])
    import two  # noqa: F401

    assert names == ["package", "package.one", "two"]
    importlib.import_module("two")
    assert len(names) == 3
    del sys.modules["package.one"]
    importlib.import_module("package.one")
    assert names[3:] == ["package.one"]
    watch.stop()
    del sys.modules["package.one"]
    importlib.import_module("package.one")
    assert len(names) == 4


def test_a_loaded_module_calls_back_only_when_imported_again(
    site: Site, watched: tuple[list[str], ImportWatch]
) -> None:
    names, watch = watched
    site.write(one="")
    import one  # noqa: F401

    watch.watch(["one"])
    assert names == []
    assert watch.is_complete("one")
    del sys.modules["one"]
    importlib.import_module("one")
    assert names == ["one"]


def test_searching_a_module_is_not_importing_it(site: Site, watched: tuple[list[str], ImportWatch]) -> None:
    names, watch = watched
    site.write(one="X = 1\n")
    watch.watch(["one"])
    spec = importlib.util.find_spec("one")
    assert spec is not None
    assert spec.origin == str(site.folder / "one.py")
    assert names == []
    assert importlib.util.find_spec("no_such_module_at_all") is None


def test_a_failed_import_does_not_call_back(site: Site, watched: tuple[list[str], ImportWatch]) -> None:
    names, watch = watched
    site.write(one="import sys\nif not hasattr(sys, 'again'):\n    sys.again = 1\n    raise OSError\n")
    watch.watch(["one"])
    try:
        with pytest.raises(OSError):  # noqa: PT011
            import one
        assert names == []
        import one  # noqa: F401

        assert names == ["one"]
    finally:
        del sys.again  # type: ignore[attr-defined]


@pytest.mark.parametrize("fails", [False, True])
def test_the_end_of_a_running_import(site: Site, watched: tuple[list[str], ImportWatch], fails: bool) -> None:
    names, watch = watched
    seen: list[bool] = []
    sys.watch, sys.seen = watch, seen  # type: ignore[attr-defined]
    site.write(
        one=f"""
        import sys
        sys.watch.watch(["one"])
        sys.seen.append(sys.watch.is_complete("one"))
        __spec__.mark = 1
        if {fails}:
            raise OSError
        """
    )
    try:
        if fails:
            with pytest.raises(OSError):  # noqa: PT011
                import one
            assert names == []
        else:
            import one

            assert names == ["one"]
            assert type(one.__spec__) is importlib.machinery.ModuleSpec
            assert one.__spec__._initializing is False
        assert seen == [False]
    finally:
        del sys.watch, sys.seen  # type: ignore[attr-defined]


def test_the_loader_and_source_of_a_watched_module_stay(site: Site, watched: tuple[list[str], ImportWatch]) -> None:
    import inspect

    _, watch = watched
    site.write(one="def f():\n    return 1\n")
    watch.watch(["one"])
    import one

    assert type(one.__spec__.loader) is importlib.machinery.SourceFileLoader
    assert inspect.getsource(one.f) == "def f():\n    return 1\n"
    assert one.__spec__.loader is one.__loader__
