"""The public names, and what importing and enabling cost and load."""

from __future__ import annotations

import ast
import types
from pathlib import Path

import pytest
from stand_ins import Site

import ascend_adapt


def test_all_lists_the_public_names() -> None:
    public = {
        name
        for name, value in vars(ascend_adapt).items()
        if not name.startswith("_") and not isinstance(value, types.ModuleType)
    }
    public -= {"TYPE_CHECKING", "Any", "annotations"}
    assert set(ascend_adapt.__all__) == public | {"hookimpl"}
    assert ascend_adapt.__all__ == sorted(ascend_adapt.__all__)
    for name in ascend_adapt.__all__:
        assert getattr(ascend_adapt, name) is not None


def test_the_contracts_names_are_there() -> None:
    promised = "enable disable status enabled wrap replace rewrite add provide entry hookimpl"
    assert set(promised.split()) <= set(ascend_adapt.__all__)
    assert ascend_adapt.hookimpl.project_name == "ascend_adapt"
    with pytest.raises(AttributeError, match="module 'ascend_adapt' has no attribute 'enabel'"):
        ascend_adapt.enabel  # noqa: B018


def test_the_old_name_of_a_code_base_warns() -> None:
    with pytest.warns(DeprecationWarning, match="ascend_adapt.CodeBase"):
        assert ascend_adapt.Host is ascend_adapt.CodeBase


def test_importing_loads_nothing_heavy(site: Site) -> None:
    site.run(
        """
        import ascend_adapt, sys
        assert not {"torch", "wrapt", "deepspeed", "pluggy", "packaging", "numpy"} & set(sys.modules)
        """
    )


def test_importing_takes_less_than_a_tenth_of_a_second(site: Site) -> None:
    code = "import time; t = time.process_time(); import ascend_adapt; print(time.process_time() - t)"
    assert min(float(site.run(code)) for _ in range(5)) < 0.1


def test_enabling_imports_no_target(site: Site) -> None:
    site.run(
        """
        import ascend_adapt, sys
        from stand_ins import counting, plugin
        targets = ("json.tool:main", "wave:open", "upstream.engine:Engine.step", "deepspeed:init", "torch:relu")
        ours = plugin(*(counting(t, [], name=t, requires=f"{t.split(':')[0].split('.')[0]}>=1") for t in targets))
        status = ascend_adapt.enable(plugins=[ours])
        ascend_adapt.status(), ascend_adapt.disable()
        assert not {"torch", "deepspeed", "wave", "json.tool", "upstream"} & set(sys.modules)
        """
    )


def _hiding(source: str, package: str, modules: set[str]) -> set[str]:
    """Return the modules of a package whose names its ``__init__`` gives to something else."""
    bound: set[str] = set()
    for node in ast.parse(source).body:
        if isinstance(node, ast.ImportFrom) and (node.module or ".") not in (package, "."):
            bound |= {alias.asname or alias.name for alias in node.names}
        elif isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            bound.add(node.name)
        elif isinstance(node, ast.Assign):
            bound |= {target.id for target in node.targets if isinstance(target, ast.Name)}
    return bound & modules


def test_no_name_hides_a_module_of_ours() -> None:
    """Else ``import ascend_adapt.kernels.attention as m`` would give a function."""
    root = Path(__file__).parents[1]
    hidden = {}
    for file in (*root.glob("ascend_adapt/**/__init__.py"), *root.glob("plugins/**/__init__.py")):
        folder = file.parent
        modules = {path.stem for path in folder.glob("*.py")} | {
            path.parent.name for path in folder.glob("*/__init__.py")
        }
        package = ".".join(folder.relative_to(root).parts)
        if found := _hiding(file.read_text(), package, modules):
            hidden[package] = found
    assert hidden == {}
    assert _hiding("from k.attention import attention", "k", {"attention", "masks"}) == {"attention"}
