"""Record which options each version has: names, kinds, defaults and choices, facts read off its own parser.

    python tests/recipes/record_upstream_options.py megatron core_v0.9.0 CHECKOUT

for neox (v2.0, newest), megatron (v2.5, bigscience, deepspeed, core_v0.9.0, newest), oneflow (gpt) and glm (4f61ed7),
each with a checkout of that commit. Megatron's, OneFlow's and GLM's parsers are built by their own code, with the
packages that are not there replaced by stand-ins; GPT-NeoX's fields are read off its dataclasses. Writes
ascend_adapt/recipes/upstream/.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import importlib
import importlib.abc
import importlib.machinery
import json
import sys
import types
import typing
from pathlib import Path
from typing import Any
from unittest import mock

OUTPUT = Path(__file__).parents[2] / "ascend_adapt" / "recipes" / "upstream"
COMMITS = {
    ("neox", "v2.0"): "EleutherAI/gpt-neox@9610391a",
    ("neox", "newest"): "EleutherAI/gpt-neox@ea7aefd8",
    ("megatron", "v2.5"): "NVIDIA/Megatron-LM@v2.5",
    ("megatron", "bigscience"): "bigscience-workshop/Megatron-DeepSpeed@8387ae17",
    ("megatron", "deepspeed"): "deepspeedai/Megatron-DeepSpeed@4efb479d",
    ("megatron", "core_v0.9.0"): "NVIDIA/Megatron-LM@core_v0.9.0",
    ("megatron", "newest"): "NVIDIA/Megatron-LM@d98e8a64",
    ("oneflow", "gpt"): "Oneflow-Inc/OneFlow-Benchmark@de4698a7",
    ("glm", "4f61ed7"): "THUDM/GLM@4f61ed72",
}
# Not there, or not needed to build a parser.
UNCLOSED = '    Either "tune", "run", or `None`.\n'
STOOD_IN = ("apex", "deepspeed", "megatron", "tools", "transformer_engine", "triton")
# Of these the modules are run, their __init__ is not.
PACKAGES = ("megatron", "megatron.model", "megatron.training", "oneflow_gpt")


class StandIns(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Whatever cannot be imported otherwise."""

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] not in STOOD_IN:
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec):
        module = mock.MagicMock(name=spec.name)
        module.__path__, module.__spec__, module.__name__, module.__version__ = [], spec, spec.name, "0"
        return module

    def exec_module(self, module):
        pass


def load(checkout: Path, dialect: str) -> types.ModuleType:
    """Return upstream's module of arguments, run with stand-ins for what it imports beside itself."""
    root = checkout / "LanguageModeling" / "GPT" if dialect == "oneflow" else checkout
    for name in PACKAGES:
        module = types.ModuleType(name)
        module.__path__ = [str(root.joinpath(*name.split(".")))]
        sys.modules[name] = module
    sys.path.insert(0, str(root))
    if dialect == "glm":
        return of_glm()
    # Before a stand-in of triton is there, which they would look into.
    importlib.import_module("torch._inductor.compile_fx")
    importlib.import_module("torch.utils.flop_counter")

    sys.meta_path.append(StandIns())
    if not hasattr(typing, "override"):  # Python 3.12's, which the newest Megatron-LM asks for
        typing.override = lambda function: function
    if (root / "megatron" / "model" / "glu_activations.py").exists():
        sys.modules["megatron"].model = sys.modules["megatron.model"]
        importlib.import_module("megatron.model.glu_activations")
    if dialect == "oneflow":
        return importlib.import_module("oneflow_gpt.config")
    for name in ("megatron.global_vars", "megatron.training.global_vars", "megatron.training.utils", "triton"):
        sys.modules[name] = StandIns().create_module(importlib.machinery.ModuleSpec(name, None))
    at_training = (root / "megatron" / "training" / "arguments.py").exists()
    return importlib.import_module("megatron.training.arguments" if at_training else "megatron.arguments")


def of_glm() -> types.ModuleType:
    """Return GLM's module of arguments; DeepSpeed adds its own options to them, of 0.6.0 as of its guide."""
    deepspeed = types.ModuleType("deepspeed")

    def add_config_arguments(parser):
        group = parser.add_argument_group("DeepSpeed", "DeepSpeed configurations")
        for name in ("--deepspeed", "--deepscale", "--deepspeed_mpi"):
            group.add_argument(name, default=False, action="store_true")
        for name in ("--deepspeed_config", "--deepscale_config"):
            group.add_argument(name, default=None, type=str)
        return parser

    deepspeed.add_config_arguments = add_config_arguments
    sys.modules["deepspeed"] = deepspeed
    sys.modules["utils"] = mock.MagicMock(name="utils")
    module = importlib.import_module("arguments")
    module.parse_args = module.get_args
    return module


def parser_of(module: types.ModuleType) -> argparse.ArgumentParser:
    """Return the parser that upstream builds."""
    found: list[argparse.ArgumentParser] = []

    def stop(self, *args, **kwargs):
        found.append(self)
        raise SystemExit

    with (
        mock.patch.object(argparse.ArgumentParser, "parse_args", stop),
        mock.patch.object(argparse.ArgumentParser, "parse_known_args", stop),
        contextlib.suppress(SystemExit),
    ):
        module.parse_args()
    return found[0]


def options_of(parser: argparse.ArgumentParser) -> dict[str, Any]:
    """Return what each option is, by its longest name."""
    options = {}
    for action in parser._actions:
        if not action.option_strings or isinstance(action, argparse._HelpAction):
            continue
        kind = type(action).__name__.strip("_").removesuffix("Action").lower()
        type_ = getattr(action.type, "__name__", None) if action.type else None
        facts = {
            "dest": action.dest,
            "action": {"storetrue": "true", "storefalse": "false", "storeconst": "const"}.get(kind, kind),
            "type": type_ if type_ in ("int", "float", "bool", None) else "str",
            "nargs": action.nargs if action.nargs not in (0, None) else None,
            "default": plain(action.default),
            "choices": [plain(choice) for choice in action.choices] if action.choices else None,
            "also": [name for name in action.option_strings if name != action.option_strings[0]] or None,
        }
        options[action.option_strings[0]] = {name: value for name, value in facts.items() if value is not None}
    return options


def plain(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [plain(one) for one in value]
    if isinstance(value, (int, float, str, type(None))) and not hasattr(value, "name"):
        return value
    return getattr(value, "name", str(value))


def fields_of(checkout: Path) -> dict[str, Any]:
    """Return type and default of every key a YAML file may have."""
    fields = {}
    for name in ("deepspeed_args.py", "neox_args.py"):
        text = (checkout / "megatron" / "neox_arguments" / name).read_text()
        # In 9610391a a docstring is not closed, and the file is no Python.
        tree = ast.parse(text.replace(UNCLOSED, UNCLOSED + '    """\n') if UNCLOSED + "\n" in text else text)
        choices = {
            node.targets[0].id: ast.literal_eval(node.value)
            for node in tree.body
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.List)
        }
        for kind in (node for node in tree.body if isinstance(node, ast.ClassDef)):
            for field in (node for node in kind.body if isinstance(node, ast.AnnAssign)):
                facts = {"type": ast.unparse(field.annotation)}
                if isinstance(field.value, ast.Call):
                    facts["default"] = ast.unparse(field.value)
                elif field.value is not None:
                    facts["default"] = ast.literal_eval(field.value)
                for constant, values in choices.items():
                    facts["type"] = facts["type"].replace(constant, repr(values))
                fields[field.target.id] = facts
    return fields


def main(dialect: str, version: str, checkout: Path) -> None:
    options = fields_of(checkout) if dialect == "neox" else options_of(parser_of(load(checkout, dialect)))
    OUTPUT.mkdir(exist_ok=True)
    rows = ",\n".join(f"{json.dumps(name)}: {json.dumps(options[name], sort_keys=True)}" for name in sorted(options))
    path = OUTPUT / f"{dialect}-{version}.json"
    path.write_text(f'{{\n"source": {json.dumps(COMMITS[dialect, version])},\n"options": {{\n{rows}\n}}\n}}\n')
    print(f"{path.name}: {len(options)} options")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
