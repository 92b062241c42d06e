"""What is installed is what is on disk."""

from __future__ import annotations

import ast
import configparser
import importlib
import importlib.metadata
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def config():
    parser = configparser.ConfigParser()
    parser.read(ROOT / "setup.cfg")
    return parser


def lines(text):
    return [line.strip() for line in text.splitlines() if line.strip()]


def test_the_package_list_is_what_is_on_disk(config):
    ours = [path.parent.relative_to(ROOT) for path in (ROOT / "ascend_adapt").rglob("__init__.py")]
    theirs = [path.parent.relative_to(ROOT) for path in (ROOT / "plugins").rglob("__init__.py")]
    on_disk = {".".join(path.parts) for path in ours}
    on_disk |= {".".join(("ascend_adapt_plugins", *path.parts[1:])) for path in theirs}
    assert set(lines(config["options"]["packages"])) == on_disk


def test_every_file_of_the_packages_is_code_or_declared_data(config):
    declared = config["options.package_data"]
    for top, name in (("ascend_adapt", "ascend_adapt"), ("plugins", "ascend_adapt_plugins")):
        data = {
            path
            for package, patterns in declared.items()
            if package.partition(".")[0] == name
            for pattern in patterns.split(",")
            for path in (ROOT / top).joinpath(*package.split(".")[1:]).glob(pattern.strip())
        }
        assert data
        files = {path for path in (ROOT / top).rglob("*") if path.is_file() and "__pycache__" not in path.parts}
        assert [path for path in files - data if path.suffix != ".py"] == []


@pytest.mark.usefixtures("needs_torch")
def test_the_types_of_every_public_name_are_checked():
    # nox's session types checks them, from the installed wheel.
    nodes = list(ast.walk(ast.parse((ROOT / "tests/typing/public_names.py").read_text())))
    used = {node.id for node in nodes if isinstance(node, ast.Name)}
    used |= {node.attr for node in nodes if isinstance(node, ast.Attribute)}
    for module in ("ascend_adapt", "ascend_adapt.checkpoint", "ascend_adapt.data", "ascend_adapt.kernels"):
        assert set(importlib.import_module(module).__all__) <= used, module


def test_every_entry_point_resolves(config):
    for group, text in config["options.entry_points"].items():
        for line in lines(text):
            name, _, value = (part.strip() for part in line.partition("="))
            point = importlib.metadata.EntryPoint(name, value, group)
            assert point.load() is not None


def test_every_plugin_has_an_entry_point(config):
    named = {line.rpartition(".")[2] for line in lines(config["options.entry_points"]["ascend_adapt"])}
    for path in (ROOT / "plugins").glob("[!_]*"):
        module = importlib.import_module(f"ascend_adapt_plugins.{path.stem}")
        assert (path.stem in named) == any(hasattr(value, "ascend_adapt_impl") for value in vars(module).values())


def test_no_plugin_has_the_name_of_its_target():
    # Run or collected from its own folder, it would shadow the real package.
    for path in (ROOT / "plugins").iterdir():
        assert path.stem not in {"accelerate", "deepspeed", "megatron", "transformers", "torch"}


def test_no_extra_brings_torch_npu_or_pins_torch(config):
    for name, text in config["options.extras_require"].items():
        for line in lines(text):
            assert "torch_npu" not in line.replace("-", "_"), name
            assert not line.startswith("torch=="), name


def test_the_constraints_pin_every_direct_dependency(config):
    from packaging.requirements import Requirement

    pinned = {
        Requirement(line).name.lower() for line in lines((ROOT / "constraints.txt").read_text()) if line[0] != "#"
    }
    wanted = lines(config["options"]["install_requires"])
    for text in config["options.extras_require"].values():
        wanted += lines(text)
    assert {Requirement(line).name.lower() for line in wanted} <= pinned


def test_the_version_is_in_the_changelog():
    import ascend_adapt

    assert f"## {ascend_adapt.__version__}" in (ROOT / "CHANGELOG.md").read_text()


@pytest.mark.parametrize("installs", [".demo", ".installed"])
def test_what_an_earlier_installation_left_does_not_hide_this_folder(installs, tmp_path):
    (tmp_path / "pyvenv.cfg").touch()
    left = [tmp_path / "lib/python3.11/site-packages" / name for name in ("ascend_adapt", "ascend_adapt_plugins")]
    for folder in left:
        (folder / "__pycache__").mkdir(parents=True)
    command = ["make", f"VENV={tmp_path}", "INSTALL=true", "SHOWN=", str(tmp_path / installs)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    assert [folder for folder in left if folder.exists()] == []
