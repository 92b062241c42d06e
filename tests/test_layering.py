"""Who may import whom (architecture), read off the imports themselves."""

from __future__ import annotations

import ast
import graphlib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

# Package or module of ours -> what of ours it may import at any level, besides itself and errors.
MAY_IMPORT = {
    "ascend_adapt": {"ascend_adapt.patches.declare", "ascend_adapt.runtime"},
    "ascend_adapt.errors": set(),
    "ascend_adapt.at_exit": set(),
    "ascend_adapt.regular_files": set(),
    "ascend_adapt.whole_numbers": set(),
    "ascend_adapt.switches": set(),
    "ascend_adapt.working_folder": set(),
    "ascend_adapt.terminal": set(),
    "ascend_adapt.standard_streams": set(),
    "ascend_adapt.interruption": set(),
    "ascend_adapt.completion": set(),
    "ascend_adapt.__main__": {"ascend_adapt.cli"},
    "ascend_adapt.probe": set(),
    "ascend_adapt.bounded_yaml": set(),
    "ascend_adapt.extensions": set(),
    "ascend_adapt.pickled_enums": set(),
    "ascend_adapt.build_locks": {"ascend_adapt.probe"},
    "ascend_adapt.patches": {"ascend_adapt.probe"},
    "ascend_adapt.json_shapes": set(),
    "ascend_adapt.alignment": {"ascend_adapt.json_shapes"},
    "ascend_adapt.npu_limits": set(),
    "ascend_adapt.kernels": {
        *("ascend_adapt.npu_limits", "ascend_adapt.probe", "ascend_adapt.switches", "ascend_adapt.terminal"),
    },
    "ascend_adapt.data": {"ascend_adapt.interruption", "ascend_adapt.probe", "ascend_adapt.terminal"},
    "ascend_adapt.emulation": {"ascend_adapt.at_exit", "ascend_adapt.npu_limits", "ascend_adapt.probe"},
    "ascend_adapt.runtime": {
        *("ascend_adapt.kernels", "ascend_adapt.patches", "ascend_adapt.probe", "ascend_adapt.switches"),
    },
    "ascend_adapt.config": {"ascend_adapt.data.json_lines", "ascend_adapt.extensions"},
    "ascend_adapt.native": {
        "ascend_adapt.alignment.updates",
        "ascend_adapt.bounded_yaml",
        "ascend_adapt.checkpoint",
        "ascend_adapt.config",
        "ascend_adapt.data",
        "ascend_adapt.extensions",
        "ascend_adapt.kernels",
        "ascend_adapt.probe",
        "ascend_adapt.standard_streams",
        "ascend_adapt.switches",
    },
    "ascend_adapt.problems": {"ascend_adapt.bounded_yaml", "ascend_adapt.probe", "ascend_adapt.runtime"},
    "ascend_adapt.recipes": {"ascend_adapt.bounded_yaml", "ascend_adapt.extensions", "ascend_adapt.config"},
    "ascend_adapt.checkpoint": {
        "ascend_adapt.bounded_yaml",
        "ascend_adapt.config",
        "ascend_adapt.pickled_enums",
        "ascend_adapt.recipes",
    },
    "ascend_adapt.audit": {"ascend_adapt.interruption", "ascend_adapt.patches", "ascend_adapt.probe"},
    "ascend_adapt.convert": {"ascend_adapt.checkpoint", "ascend_adapt.config", "ascend_adapt.native"},
    "ascend_adapt.evaluation": {
        "ascend_adapt.checkpoint",
        "ascend_adapt.config",
        "ascend_adapt.data",
        "ascend_adapt.interruption",
        "ascend_adapt.native",
    },
    "ascend_adapt.diagnosis": {
        "ascend_adapt",
        "ascend_adapt.bounded_yaml",
        "ascend_adapt.build_locks",
        "ascend_adapt.emulation.build",
        "ascend_adapt.emulation.cache",
        "ascend_adapt.emulation.wheel",
        "ascend_adapt.json_shapes",
        "ascend_adapt.kernels",
        "ascend_adapt.patches",
        "ascend_adapt.probe",
        "ascend_adapt.problems",
        "ascend_adapt.runtime",
        "ascend_adapt.terminal",
    },
    "ascend_adapt.launch": {
        "ascend_adapt",
        "ascend_adapt.alignment.recording",
        "ascend_adapt.alignment.selection",
        "ascend_adapt.alignment.watch",
        "ascend_adapt.at_exit",
        "ascend_adapt.bounded_yaml",
        "ascend_adapt.emulation.environment",
        "ascend_adapt.emulation.rank",
        "ascend_adapt.emulation.rehearsal",
        "ascend_adapt.extensions",
        "ascend_adapt.kernels",
        "ascend_adapt.launch.request",
        "ascend_adapt.launch.placement.hostfile",
        "ascend_adapt.config",
        "ascend_adapt.native.samples.preflight",
        "ascend_adapt.probe",
        "ascend_adapt.problems",
        "ascend_adapt.recipes",
        "ascend_adapt.runtime",
        "ascend_adapt.standard_streams",
        "ascend_adapt.switches",
        "ascend_adapt.terminal",
        "ascend_adapt.working_folder",
    },
    "ascend_adapt.report": {
        "ascend_adapt",
        "ascend_adapt.bounded_yaml",
        "ascend_adapt.diagnosis",
        "ascend_adapt.emulation",
        "ascend_adapt.launch.one_host",
        "ascend_adapt.patches.declare",
    },
    "ascend_adapt.testing": {
        "ascend_adapt",
        "ascend_adapt.diagnosis.evidence",
        "ascend_adapt.patches",
        "ascend_adapt.probe",
        "ascend_adapt.runtime",
    },
    "ascend_adapt.cli": {
        "ascend_adapt.audit",
        "ascend_adapt",
        "ascend_adapt.alignment.commands",
        "ascend_adapt.completion",
        "ascend_adapt.convert",
        "ascend_adapt.data",
        "ascend_adapt.diagnosis",
        "ascend_adapt.evaluation",
        "ascend_adapt.interruption",
        "ascend_adapt.kernels",
        "ascend_adapt.launch",
        "ascend_adapt.probe",
        "ascend_adapt.report",
        "ascend_adapt.runtime",
        "ascend_adapt.standard_streams",
        "ascend_adapt.terminal",
        "ascend_adapt.working_folder",
    },
    "ascend_adapt.launch.request": {
        *("ascend_adapt", "ascend_adapt.alignment.selection", "ascend_adapt.emulation", "ascend_adapt.launch.cores"),
        "ascend_adapt.launch.argument_types",
        "ascend_adapt.launch.help_text",
    },
    "ascend_adapt.launch.argument_types": {"ascend_adapt.alignment.selection", "ascend_adapt.emulation"},
    # Pure text to data, and DeepSpeed's format.
    "ascend_adapt.launch.placement.hostfile": set(),
    "ascend_adapt_plugins": {
        "ascend_adapt",
        "ascend_adapt.build_locks",
        "ascend_adapt.data",
        "ascend_adapt.kernels",
        "ascend_adapt.launch.placement.hostfile",
        "ascend_adapt.patches.declare.spec",
        "ascend_adapt.patches.declare.terms",
        "ascend_adapt.pickled_enums",
    },
}
# Pure functions of the standard library, which every package may import.
EVERYWHERE = {"ascend_adapt.errors", "ascend_adapt.regular_files", "ascend_adapt.whole_numbers"}
# The launcher's side of the emulation; the rest is loaded in ranks, after torch_npu.
BEFORE_THE_RANKS = [f"ascend_adapt.emulation.{name}" for name in ("build", "cache", "environment", "symbols", "wheel")]
MAY_IMPORT.update(
    {name: {"ascend_adapt.emulation", "ascend_adapt.probe", *BEFORE_THE_RANKS} for name in BEFORE_THE_RANKS}
)
# What of the trainer is arithmetic on a configuration; the rest is loaded in ranks, with torch.
WITHOUT_TORCH = [
    f"ascend_adapt.native.{name}"
    for name in (
        *("metrics.log_formats", "metrics.step_metrics"),
        *("samples.preflight", "samples.token_files", "samples.glm_text", "samples.cloze_examples"),
    )
]
MAY_IMPORT.update(
    {
        name: {"ascend_adapt.config", "ascend_adapt.data", "ascend_adapt.extensions", *WITHOUT_TORCH}
        for name in WITHOUT_TORCH
    }
)
# What records inside a rank; the rest of alignment, which compares, needs no torch.
RECORDING_WITH_TORCH = {
    f"ascend_adapt.alignment.{name}"
    for name in (
        *("digest", "digest_table", "gradient_hooks", "kept_inputs", "module_calls", "module_names", "optimizer_steps"),
        *("random_state", "recorded_step", "recorder", "run_facts", "shards", "updates"),
    )
}
# The rooms of a package from the ground up: each may import from those before it, and from itself.
FLOORS = {
    "ascend_adapt.patches": ("declare", "judge", "apply", "session"),
    # The bootstrap of every process, but for what has to be standard library alone.
    "ascend_adapt.launch": (
        *(
            "cores",
            "argument_types",
            "help_text",
            "request",
            "placement",
            "one_host",
            "transport",
        ),
        *("in_process", "bootstrap", "rank_entry", "program", "many_hosts", "jobs", "fit", "cli"),
    ),
    "ascend_adapt.native": (
        *("device", "signals", "parallel", "model", "step", "samples", "generation", "metrics", "checkpoint"),
        *("loop", "finetuning", "__main__"),
    ),
    "ascend_adapt": (
        *(
            "errors",
            "regular_files",
            "whole_numbers",
            "bounded_yaml",
            "extensions",
            "pickled_enums",
            "probe",
            "terminal",
            "completion",
            "alignment",
            "patches",
            "npu_limits",
            "kernels",
            "data",
            "emulation",
            "runtime",
            "problems",
            "",
            # Pure data, which the trainer and the recipes share.
            "config",
            "recipes",
            "checkpoint",
            "native",
            "convert",
            "evaluation",
            "diagnosis",
        ),
        *("launch", "report", "testing", "cli", "__main__"),
    ),
}
TARGETS = {"accelerate", "apex", "deepspeed", "megatron", "mpu", "peft", "torch", "torch_npu", "transformers"}


def source_files() -> list[Path]:
    return sorted([*(ROOT / "ascend_adapt").rglob("*.py"), *(ROOT / "plugins").rglob("*.py")])


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    name = ".".join(part for part in parts if part != "__init__")
    return name.replace("plugins", "ascend_adapt_plugins", 1) if name.startswith("plugins") else name


def is_inside(module: str, package: str) -> bool:
    """Whether a module lies in a package that may be imported; the public names are only those of its own file."""
    return module == package or (package != "ascend_adapt" and module.startswith(f"{package}."))


def layer_of(module: str) -> str:
    """The entry of MAY_IMPORT that speaks of ``module``."""
    names = [".".join(module.split(".")[:end]) for end in range(len(module.split(".")), 0, -1)]
    known = [name for name in names if name in MAY_IMPORT]
    if not known or (known[0] == "ascend_adapt" and module != "ascend_adapt"):
        raise AssertionError(f"{module}: no layer speaks of it — add it to MAY_IMPORT")
    return known[0]


def imports(path: Path, module: str) -> list[tuple[str, bool]]:
    """Every module that a file imports, and whether it does so when it is itself imported."""
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    tree = ast.parse(path.read_text())
    inner = {
        id(node)
        for scope in ast.walk(tree)
        if isinstance(scope, (ast.FunctionDef, ast.AsyncFunctionDef)) or is_type_checking(scope)
        for node in ast.walk(scope)
    }
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [(alias.name, id(node) not in inner) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            home = ".".join([*above, *filter(None, [node.module])])
            submodules = [f"{home}.{alias.name}" for alias in node.names]
            found += [(name if is_ours(name) else home, id(node) not in inner) for name in submodules]
    return found


def is_ours(name: str) -> bool:
    path = ROOT.joinpath(*name.replace("ascend_adapt_plugins", "plugins", 1).split("."))
    return path.is_dir() or path.with_suffix(".py").exists()


def is_type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


def violations(path: Path, module: str) -> list[str]:
    layer = layer_of(module)
    wrong = []
    for name, at_import in imports(path, module):
        root = name.partition(".")[0]
        if root in ("ascend_adapt", "ascend_adapt_plugins"):
            allowed = {layer, *EVERYWHERE, *MAY_IMPORT[layer]}
            home = name if is_ours(name) else name.rpartition(".")[0]
            if layer_of(home) != layer and not any(is_inside(home, one) for one in allowed):
                wrong.append(f"{module} imports {name}, {layer} may import {', '.join(sorted(allowed))}")
        elif root in may_import_at_once(module) or (root == "torch" and may_import_torch(layer) and not at_import):
            continue
        elif root in TARGETS and (at_import or not may_use_targets(layer, root)):
            wrong.append(f"{module} imports {name}{' at its top' if at_import else ''}")
    return wrong


def may_use_targets(layer: str, root: str) -> bool:
    # A conversion is compared with transformers' own model.
    if layer == "ascend_adapt.convert":
        return root == "transformers"
    # The suite compiles patched functions, and asks torch_npu for its devices.
    return layer == "ascend_adapt_plugins" or (layer == "ascend_adapt.testing" and root in ("torch", "torch_npu"))


def may_import_torch(layer: str) -> bool:
    return layer == "ascend_adapt.kernels"


def may_import_at_once(module: str) -> set[str]:
    """What a module may import at its top: backends of kernels are imported when a tensor comes.

    In plugins a leading underscore marks what a provided module is filled with, imported when that module is.
    """
    if layer_of(module) in ("ascend_adapt.emulation",):
        return {"torch", "torch_npu"}
    if module in RECORDING_WITH_TORCH:
        return {"torch"}
    with_torch = ("native", "checkpoint", "convert", "evaluation")
    if layer_of(module) in {f"ascend_adapt.{name}" for name in with_torch}:
        return {"torch"}
    is_late = module.startswith(("ascend_adapt.kernels.", "ascend_adapt_plugins."))
    is_backend = is_late and module.rpartition(".")[2].startswith("_")
    at_once = (
        "ascend_adapt.data.samplers",
        "ascend_adapt.data.torch_dataset",
        "ascend_adapt.kernels.megatron_extensions",
        "ascend_adapt.kernels.first_order",
        "ascend_adapt.kernels.wide_products",
        "ascend_adapt.kernels.partial_sums",
        "ascend_adapt.kernels.tensor_lists",
        "ascend_adapt.kernels.triton_dropout",
        "ascend_adapt.kernels.triton_launch",
    )
    if is_backend or module in at_once:
        return {"torch"}
    return set()


@pytest.mark.parametrize("path", source_files(), ids=module_name)
def test_imports_only_what_its_layer_may(path):
    assert violations(path, module_name(path)) == []


@pytest.mark.parametrize(
    ("module", "line"),
    [
        ("ascend_adapt.patches.judge.gate", "from ascend_adapt import runtime"),
        ("ascend_adapt.patches.judge.gate", "from ascend_adapt.runtime.plugin_manager import PluginManager"),
        ("ascend_adapt.patches.judge.gate", "def f():\n    import torch"),
        ("ascend_adapt.probe", "import ascend_adapt.launch.placement.plan"),
        ("ascend_adapt_plugins.deepspeed_runtime", "import deepspeed.comm"),
        ("ascend_adapt_plugins.deepspeed_runtime", "from ascend_adapt.patches.session import Session"),
        ("ascend_adapt.launch.one_host.guardian", "def f():\n    import torch"),
        ("ascend_adapt.data.merging", "def f():\n    import torch"),
        ("ascend_adapt.testing.stage", "import torch"),
        ("ascend_adapt.testing.stage", "def f():\n    import deepspeed"),
        ("ascend_adapt.data.torch_dataset", "import deepspeed"),
        ("ascend_adapt.emulation.environment", "import torch"),
        ("ascend_adapt.emulation.aten", "import deepspeed"),
        ("ascend_adapt.emulation.rank", "from ascend_adapt import runtime"),
        ("ascend_adapt.kernels.dispatch", "import torch"),
        ("ascend_adapt.kernels.operators.attention", "import torch"),
        ("ascend_adapt.kernels.operators.attention._npu", "import torch_npu"),
        ("ascend_adapt.kernels.operators.attention._npu", "from ascend_adapt.patches.judge import gate"),
        ("ascend_adapt.config.train_config", "def f():\n    import torch"),
        ("ascend_adapt.native.step.trainer", "import deepspeed"),
        ("ascend_adapt.native.step.trainer", "from ascend_adapt import runtime"),
        ("ascend_adapt.recipes.neox", "import torch"),
        ("ascend_adapt.recipes.neox", "from ascend_adapt.native.step.trainer import Trainer"),
        ("ascend_adapt.launch.jobs.native", "from ascend_adapt.native.step import trainer"),
    ],
)
def test_a_planted_import_is_found(module, line, tmp_path):
    path = tmp_path / "planted.py"
    path.write_text(line + "\n")
    assert len(violations(path, module)) == 1


def floor_of(module: str, package: str) -> int:
    inside = module.removeprefix(package).removeprefix(".")
    floors = FLOORS[package]
    parts = inside.split(".")
    names = [".".join(parts[:end]) for end in range(len(parts), 0, -1)]
    return floors.index(next(name for name in names if name in floors))


@pytest.mark.parametrize("package", FLOORS)
def test_no_import_runs_back_up(package):
    up = []
    for path in source_files():
        module = module_name(path)
        if not module.startswith(f"{package}.") or (path.name == "__init__.py" and path.parent.name == "ascend_adapt"):
            continue
        for name, _ in imports(path, module):
            home = name if is_ours(name) else name.rpartition(".")[0]
            if is_inside(home, package) and home != package and floor_of(home, package) > floor_of(module, package):
                up.append(f"{module} imports {home}")
    assert up == []


def test_no_modules_import_each_other():
    graph = {module_name(path): set() for path in source_files()}
    for path in source_files():
        module = module_name(path)
        for name, _ in imports(path, module):
            home = name if name in graph else name.rpartition(".")[0]
            # A package's face hands on names of its members, which may import it for others of them.
            if home in graph and not module.startswith(f"{home}.") and not home.startswith(f"{module}."):
                graph[module].add(home)
    sorter = graphlib.TopologicalSorter(graph)
    sorter.prepare()  # raises CycleError, which names the modules


def test_a_new_package_needs_a_layer():
    with pytest.raises(AssertionError, match=r"ascend_adapt\.misc: no layer"):
        layer_of("ascend_adapt.misc")


@pytest.mark.parametrize("package", ["patches", "kernels"])
def test_the_engine_names_no_framework(package):
    for path in (ROOT / "ascend_adapt" / package).rglob("*.py"):
        imported = {name.partition(".")[0] for name, _ in imports(path, module_name(path))}
        assert not imported & (TARGETS - {"torch", "torch_npu"}), path
