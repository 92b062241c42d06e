"""Stand-ins for targets: generated module trees with the target of a patch, as in its declaration or real source.

A stand-in agrees with the declaration by construction, so it tests the engine with this patch, never the patch on
upstream.
"""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import FunctionType
from typing import Any

from ascend_adapt.errors import AdaptError, PatchDrift
from ascend_adapt.patches.declare import syntax
from ascend_adapt.patches.declare.code_base import CodeBase
from ascend_adapt.patches.declare.spec import Patch
from ascend_adapt.patches.judge import static
from ascend_adapt.patches.judge.installation import SourceTree, packages_named
from ascend_adapt.probe import find_root

ANSWER = "as upstream has it"


class NotShown(AdaptError):
    """A scenario cannot run on a stand-in; the message is the reason."""


@dataclass(frozen=True)
class Shape:
    """Shape of a target: a function with signature and decorator, or a value.

    ``around`` is False if the class that should contain the target is missing. ``name`` differs from the target's name
    after renaming, and is empty if the target was removed.
    """

    name: str
    signature: str = "(*args, **kwargs)"
    decorator: str = ""
    keyword: str = "def"
    body: str = f"return {ANSWER!r}"
    value: str = ""
    inherited: bool = False
    around: bool = True


def shape_of(patch: Patch, tree: SourceTree | None = None) -> Shape:
    """Return the shape of the target in ``tree``, or else the shape that the declaration implies.

    Raises:
        NotShown: no module can be generated from the declaration.
    """
    _refuse_what_python_needs(patch)
    _refuse_what_is_here(patch)
    declared = _declared_shape(patch)
    if declared.value or patch.kind not in ("wrap", "replace"):
        return declared
    try:
        found = [] if tree is None else static.definitions(patch, tree)
    except PatchDrift:
        found = []
    functions = [one for one in found if isinstance(one.node, syntax.Definition)]
    return _real_shape(declared, patch, functions[0]) if functions else declared


def is_needed_by_python(patch: Patch) -> bool:
    """Return whether Python or this suite needs the module that a stand-in would replace."""
    return patch.host_script is None and patch.target.root in {*sys.stdlib_module_names, *_NEEDED}


def _refuse_what_python_needs(patch: Patch) -> None:
    if is_needed_by_python(patch):
        raise NotShown(f"a stand-in would replace {patch.target.root}, which this suite itself needs")


_NEEDED = ("ascend_adapt", "packaging", "pluggy", "wrapt", "yaml", "rich")


def _refuse_what_is_here(patch: Patch) -> None:
    """Reject a provided module that is installed here, because a real module takes precedence."""
    if patch.kind != "provide" or patch.instead:
        return
    if patch.target.root == patch.target.module and find_root(patch.target.root):
        raise NotShown(f"a real {patch.target.module} is installed here")


def _declared_shape(patch: Patch) -> Shape:
    shape = Shape(patch.target.source_path[-1] if patch.target.path else "")
    if len(patch.target.path) > 1:
        shape = replace(shape, signature="(self, *args, **kwargs)")
    if patch.kind == "add" or patch.kind == "provide":
        return replace(shape, name="")
    if patch.kind == "entry":
        entries = written({patch.key: ANSWER} if patch.present else {})
        return replace(shape, value=entries if patch.original is None else holding(patch, _originals_name(patch)))
    if patch.kind == "replace" and patch.function is None and not isinstance(patch.value, FunctionType):
        return replace(shape, value=repr(ANSWER))
    if patch.kind == "replace":
        function = patch.value if patch.function is None else patch.function
        return replace(shape, signature=_without_values(inspect.signature(function)))
    if patch.kind == "rewrite":
        has_await = any(isinstance(node, ast.Await) for node in ast.walk(ast.parse(patch.old)))
        return replace(shape, body=patch.old.strip(), keyword="async def" if has_await else "def")
    return shape


def written(entries: dict[Any, Any]) -> str:
    """Return the source text of a mapping.

    Raises:
        NotShown: a key cannot be written as text.
    """
    try:
        if ast.literal_eval(repr(entries)) != entries:
            raise ValueError(entries)
    except (ValueError, SyntaxError):
        raise NotShown(f"the key {next(iter(entries))!r} cannot be written as text") from None
    return repr(entries)


def holding(patch: Patch, expression: str) -> str:
    """Return the source text of a mapping that has ``expression`` under the patch's key."""
    return written({patch.key: ANSWER}).replace(repr(ANSWER), expression)


def _originals_name(patch: Patch) -> str:
    assert patch.original is not None
    return patch.original.path[-1]


def _real_shape(declared: Shape, patch: Patch, found: syntax.Found) -> Shape:
    node = found.node
    assert isinstance(node, syntax.Definition)
    decorators = [ast.unparse(one) for one in node.decorator_list]
    known = [one for one in decorators if one in ("staticmethod", "classmethod", "property")]
    yields = any(isinstance(one, (ast.Yield, ast.YieldFrom)) for one in ast.walk(node))
    return replace(
        declared,
        signature=_without_values(static.signature_of(node)),
        decorator=f"@{known[0]}" if known and found.around else "",
        keyword="async def" if isinstance(node, ast.AsyncFunctionDef) else "def",
        body=f"yield {ANSWER!r}" if yields else declared.body,
        inherited=bool(found.around) and found.around[-1].name != patch.target.path[-2],
    )


def _without_values(signature: inspect.Signature) -> str:
    """Return the signature as text, with None as defaults and without annotations, whose names are unknown."""
    parameters = [
        one.replace(annotation=one.empty, default=one.default if one.default is one.empty else None)
        for one in signature.parameters.values()
    ]
    return str(signature.replace(parameters=parameters, return_annotation=inspect.Signature.empty))


def write(patch: Patch, shape: Shape, folder: Path, versions: Mapping[str, str], *, with_module: bool = True) -> None:
    """Write the module tree, the marker files and the distributions with their ``versions`` into ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    *packages, _ = patch.target.packages[::-1]
    if patch.target.module != patch.target.root or patch.kind != "provide":
        (folder / patch.target.root).mkdir()
        (folder / patch.target.root / "__init__.py").touch()
    for package in packages if with_module else []:
        home = folder.joinpath(*package.split("."))
        home.mkdir(exist_ok=True)
        (home / "__init__.py").touch()
    if with_module and patch.kind != "provide":
        path = folder.joinpath(*patch.target.module.split("."))
        path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
        path.write_text(source(patch, shape))
    write_around(patch, folder, versions)


def write_around(patch: Patch, folder: Path, versions: Mapping[str, str]) -> None:
    """Write the marker files and the distributions with their ``versions`` into ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    for host in patch.hosts[:1]:
        for marker in host.present if isinstance(host, CodeBase) else ():
            file = folder / marker
            file.parent.mkdir(parents=True, exist_ok=True)
            if not file.exists():
                file.touch()
    for name in modules_with_versions(patch):
        path = folder.joinpath(*name.split("."), "__init__.py")
        version = next(each for one, each in versions.items() if packages_named(one, (name,)))
        path.write_text(f"__version__ = {version!r}\n")
    for name, version in versions.items():
        info = folder / f"{name.replace('-', '_')}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")


def modules_with_versions(patch: Patch) -> list[str]:
    """Return the modules of the first code base whose versions are required, if the target is in another library."""
    modules = [host.module for host in patch.hosts[:1] if isinstance(host, CodeBase)]
    required = {name for one in patch.requires for name in packages_named(one.name, modules)}
    return sorted(required - set(patch.target.packages))


def code_bases_of_shared_targets(patch: Patch) -> list[str]:
    """Return the top-level packages of the first code base, if the target is in a library that other code also uses."""
    found = [host for host in patch.hosts[:1] if isinstance(host, CodeBase) and patch.target.root not in host.roots]
    return [root for host in found for root in sorted(host.roots)]


def source(patch: Patch, shape: Shape) -> str:
    """Return the source of the target's module, in which ``AS_MADE`` has a copy of every original namespace."""
    *around, _ = patch.target.source_path
    lines: list[str] = []
    spaces = ""
    namespaces = ["globals()"]
    if patch.original is not None:
        lines += _definition(_original(patch, shape), spaces)
    if shape.around:
        for depth, name in enumerate(around):
            is_innermost = depth == len(around) - 1
            if is_innermost and shape.inherited:
                lines += [f"{spaces}class Base:", f"{spaces}    of_base = 1", *_definition(shape, spaces + "    ")]
            base = "(Base)" if is_innermost and shape.inherited else ""
            lines += [f"{spaces}class {name}{base}:", f"{spaces}    of_upstream = 1"]
            spaces += "    "
            namespaces.append(f"vars({'.'.join(around[: depth + 1])})")
        if not shape.inherited:
            lines += _definition(shape, spaces)
    if patch.kind == "rewrite" and shape.name and shape.around and not shape.value:
        lines.append(f"CODE_AS_MADE = {'.'.join((*around, shape.name))}.__code__")
    lines.append(f"AS_MADE = ({', '.join(f'dict({one})' for one in namespaces)},)")
    return "\n".join(lines) + "\n"


def _definition(shape: Shape, spaces: str) -> list[str]:
    if not shape.name:
        return []
    if shape.value:
        return [f"{spaces}{shape.name} = {shape.value}"]
    decorator = [f"{spaces}{shape.decorator}"] if shape.decorator else []
    body = [f"{spaces}    {line}" for line in shape.body.splitlines()]
    return [*decorator, f"{spaces}{shape.keyword} {shape.name}{shape.signature}:", *body]


def digest(patch: Patch, shape: Shape) -> str:
    """Return the digest of the stand-in's function, as in ``bodies=``."""
    own = shape if patch.original is None else _original(patch, shape)
    return syntax.digest(ast.parse("\n".join(_definition(own, ""))).body[0])


def _original(patch: Patch, shape: Shape) -> Shape:
    """Return the shape of the function under the key of an entry."""
    return Shape(_originals_name(patch), body=shape.body)


def alterations(patch: Patch, shape: Shape) -> dict[str, Shape | None]:
    """Return the altered shapes that the patch must detect, by name of the alteration; None for a missing module."""
    made: dict[str, Shape | None] = {}
    is_function = not shape.value and bool(shape.name)
    if shape.name:
        made["gone"] = replace(shape, name="")
        # A prefix of two underscores would be mangled inside a class.
        made["renamed"] = replace(shape, name=f"v2_{shape.name}")
    if len(patch.target.path) > 1:
        made["class gone"] = replace(shape, around=False)
    if patch.target.module != patch.target.root and patch.kind != "provide" and not _marks_its_host(patch):
        made["module gone"] = None
    is_given_as_a_value = patch.kind == "replace" and patch.function is None
    if is_function and not is_given_as_a_value:
        made["a value"] = replace(shape, value="1", inherited=False)
    if patch.kind == "replace" and is_function and not _takes_any_keyword(patch):
        made["another signature"] = replace(shape, signature=_with_one_more(shape.signature))
    if patch.bodies and (is_function or patch.original is not None):
        made["another body"] = replace(shape, body="return 'another body'")
    if patch.kind == "rewrite":
        made["another expression"] = replace(shape, body="return 'another expression'")
        made["the expression twice"] = replace(shape, body=f"{shape.body}\n{shape.body}")
    if patch.kind == "entry":
        made["no mapping"] = replace(shape, value="1")
    if patch.kind == "entry" and patch.present:
        made["no such key"] = replace(shape, value="{}")
    if patch.original is not None:
        made["somebody's function"] = replace(shape, value=holding(patch, "lambda *args, **kwargs: None"))
    return made


def _marks_its_host(patch: Patch) -> bool:
    """Return whether the target's file is a marker, without which this would be another code base."""
    file = f"{patch.target.module.replace('.', '/')}.py"
    return any(file in host.present for host in patch.hosts if isinstance(host, CodeBase))


def _with_one_more(signature: str) -> str:
    """Return ``signature`` with one more required keyword, which no replacement accepts."""
    node = ast.parse(f"def f{signature}: ...").body[0]
    assert isinstance(node, ast.FunctionDef)
    parameters = list(static.signature_of(node).parameters.values())
    at = len(parameters) - any(one.kind is one.VAR_KEYWORD for one in parameters)
    more = inspect.Parameter("a_keyword_of_no_one_else", inspect.Parameter.KEYWORD_ONLY)
    return _without_values(inspect.Signature([*parameters[:at], more, *parameters[at:]]))


def _takes_any_keyword(patch: Patch) -> bool:
    function = patch.value if patch.function is None else patch.function
    return any(one.kind is one.VAR_KEYWORD for one in inspect.signature(function).parameters.values())
