"""Static checks across installed packages: imports that cannot succeed, and packages that are installed twice."""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Iterator
from pathlib import Path

from ascend_adapt import probe
from ascend_adapt.diagnosis.findings.machine import Finding, Machine

# Trainers by import name, and packages whose modules move between releases.
_TRAINERS = ("trl", "swift", "llamafactory", "verl", "openrlhf", "mindspeed", "mindspeed_llm", "vllm_ascend", "areal")
_MOVING = ("vllm_ascend", "vllm", "torch_npu", "mindspeed", "megatron", "trl", "peft", "accelerate", "transformers")
_DISTRIBUTIONS = {"swift": "ms-swift", "megatron": "megatron-core"}
_IMPORT = re.compile(r"^[ \t]*(?:from|import) +((?:" + "|".join(_MOVING) + r")(?:\.\w+)+)", re.MULTILINE)
_MOST_FILES = 4000


def missing_modules(machine: Machine) -> Iterator[Finding]:
    """Check for trainers that import modules which the installed version of another package does not have."""
    if not machine.reads_packages:
        return
    for trainer in _TRAINERS:
        folder = probe.root_folder(trainer)
        if folder is None or not (folder / trainer).is_dir():
            continue
        missing = _missing(folder / trainer, trainer)
        for module, places in missing.items():
            package = module.partition(".")[0]
            yield Finding(
                f"{_with_version(trainer)} imports {module}, which {_with_version(package)} does not have",
                f"ModuleNotFoundError in {', '.join(places[:2])}{' and others' if len(places) > 2 else ''}",
                f"install the {package} version that this {trainer} supports, or another {trainer}",
                False,
            )


def _missing(folder: Path, trainer: str) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for file in sorted(folder.rglob("*.py"))[:_MOST_FILES]:
        text = file.read_text(errors="replace")
        for module in {match[1] for match in _IMPORT.finditer(text)}:
            if not module.startswith(f"{trainer}.") and not _exists(module) and _is_needed(text, module):
                found.setdefault(module, []).append(str(file.relative_to(folder.parent)))
    return found


def _exists(module: str) -> bool:
    """Return whether a module exists on disk. A package that is not installed counts as having every module."""
    folder = probe.root_folder(module)
    if folder is None:
        return True
    path = folder.joinpath(*module.split("."))
    # Compiled modules have various suffixes.
    return path.is_dir() or any(path.parent.glob(f"{path.name}.*"))


def _is_needed(text: str, module: str) -> bool:
    """Return whether the import always runs when the file is imported: outside of try, and of branches on versions."""
    try:
        body = list(ast.parse(text).body)
    except (SyntaxError, ValueError, RecursionError):
        return False
    while body:
        node = body.pop()
        if isinstance(node, ast.If) and "version" not in ast.dump(node.test).lower():
            body += [*node.body, *node.orelse]
        elif (isinstance(node, ast.ImportFrom) and node.module == module) or (
            isinstance(node, ast.Import) and any(alias.name == module for alias in node.names)
        ):
            return True
    return False


def two_megatrons(machine: Machine) -> Iterator[Finding]:
    """Check for two copies of Megatron-core on sys.path, because MindSpeed patches the copy that is imported."""
    if not machine.reads_packages:
        return
    paths = [*machine.environ.get("PYTHONPATH", "").split(os.pathsep), machine.environ.get("MEGATRON_LM_PATH", "")]
    installed = probe.root_folder("megatron.core")
    homes = dict.fromkeys(Path(path).resolve() for path in (*paths, str(installed or "")) if path)
    found = {str(home): version for home in homes if (version := _megatron_version(home))}
    if len(set(found.values())) > 1:
        yield Finding(
            "; ".join(f"Megatron-core {version} in {home}" for home, version in found.items()),
            "the first copy on sys.path is imported, and MindSpeed's patches for the other copy do not fit it",
            "keep one copy: point PYTHONPATH and MEGATRON_LM_PATH to the same checkout, and uninstall megatron-core",
            False,
        )


def _megatron_version(home: Path) -> str:
    file = home / "megatron" / "core" / "package_info.py"
    if not file.is_file():
        return ""
    numbers = dict(re.findall(r"(?m)^(MAJOR|MINOR|PATCH)\s*=\s*(\d+)", file.read_text(errors="replace")))
    return ".".join(numbers.get(name, "?") for name in ("MAJOR", "MINOR", "PATCH"))


def _with_version(package: str) -> str:
    version = probe.distribution_version(_DISTRIBUTIONS.get(package, package))
    return f"{package} {version}" if version else package


CHECKS = (missing_modules, two_megatrons)
