"""Static judgement: predicts the outcome of a patch from source files, without importing a target."""

from __future__ import annotations

import ast
import copy
import functools
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ascend_adapt import probe
from ascend_adapt.errors import AdaptError, PatchDrift
from ascend_adapt.patches.declare import syntax
from ascend_adapt.patches.declare.code_base import CodeBase
from ascend_adapt.patches.declare.outcome import Outcome
from ascend_adapt.patches.declare.spec import NotNeeded, Patch, Registered
from ascend_adapt.patches.declare.target import Target
from ascend_adapt.patches.judge import gate
from ascend_adapt.patches.judge.conflicts import conflict_text, exclusive_place
from ascend_adapt.patches.judge.installation import SourceTree, ThisProcess
from ascend_adapt.patches.judge.preconditions import body_drift, refused_call, rewrite_definition


def judge(
    registered: Iterable[Registered], *, device: str, hosts: Mapping[str, CodeBase], tree: SourceTree | None = None
) -> tuple[Outcome, ...]:
    """Return the outcome of each patch if its target is imported from ``tree``, or from the installation."""
    return tuple(_outcome(one, device, hosts, tree) for one in registered)


def _outcome(one: Registered, device: str, hosts: Mapping[str, CodeBase], tree: SourceTree | None) -> Outcome:
    patch = one.patch
    home = _home(patch, tree)
    verdict = gate.judge(patch, device, hosts, tree or home or ThisProcess(lambda name: True, lambda root: True))
    state, reason = "armed", verdict.reason
    if verdict.admits is False:
        state = "skipped"
    elif home is None and patch.host_script is not None:
        reason = f"checked when {patch.host_script} is started"
    elif home is None and probe.find_root(patch.target.root) is not None:
        reason = reason or f"checked when {patch.target.root} is imported, which is not in a folder"
    elif home is None and patch.kind != "provide":
        state, reason = "skipped", f"{patch.target.root} is not installed"
    elif home is None and not verdict.found:
        reason = reason or f"checked when {patch.target.module} is imported"
    elif home is not None:
        try:
            _check(patch, home)
        except NotNeeded as text:
            state, reason = "not_needed", str(text)
        except AdaptError as error:
            state, reason = "drifted", str(error)
    return one.outcome(state, reason, verdict.found)


def conflicts(registered: Sequence[Registered], outcomes: Sequence[Outcome]) -> list[str]:
    """Return one message for each pair of armed patches that change the same location."""
    claims: dict[str, Registered] = {}
    messages = []
    for one, outcome in zip(registered, outcomes, strict=True):
        place = exclusive_place(one.patch)
        if not place or outcome.state != "armed":
            continue
        other = claims.setdefault(place, one)
        if other is not one:
            messages.append(conflict_text(other, one))
    return messages


def _home(patch: Patch, tree: SourceTree | None) -> SourceTree | None:
    """Return the tree of the target: ``tree`` if it has the target's package, else the installation, else None."""
    if patch.host_script is not None:
        return tree if tree is not None and (tree.root / patch.host_script).is_file() else None
    if tree is not None and tree.folder(patch.target.root) is not None:
        return tree
    folder = probe.root_folder(patch.target.module)
    return SourceTree(folder, installed=True) if folder is not None and folder.is_dir() else None


def _check(patch: Patch, tree: SourceTree) -> None:
    """Raise the PatchDrift or NotNeeded that applying the patch would raise."""
    if patch.kind == "provide":
        if not patch.instead and tree.source_of(patch.target.module) is not None:
            raise NotNeeded(f"a real {patch.target.module} exists")
        return
    found = definitions(patch, tree)
    if patch.kind == "add":
        if found:
            raise NotNeeded(f"{patch.target} already exists")
        if len(patch.target.path) > 1 and not find(patch.target.module, patch.target.path[:-1], tree):
            raise PatchDrift(f"{patch.target}: {'.'.join(patch.target.path[:-1])} is not in {patch.target.module}")
        return
    if not found and _may_be_lazy(patch.target, tree):
        return
    if not found:
        raise PatchDrift(f"{patch.target}: {'.'.join(patch.target.path)} is not in {patch.target.module}")
    functions = [one for one in found if isinstance(one.node, syntax.Definition)]
    if patch.kind == "rewrite":
        for one in functions:
            if [cls.name for cls in one.around[-1:]] != list(patch.target.path[-2:-1]):
                raise PatchDrift(
                    f"{patch.target} is inherited from {one.around[-1].name}, whose code all subclasses share"
                )
        if len(functions) != 1:
            raise PatchDrift(f"{patch.target}: expected one definition, found {len(functions)}")
        # A copy is changed, because the next patch uses the tree of the file again.
        rewrite_definition(patch, replace(functions[0], node=copy.deepcopy(functions[0].node)))
    if patch.kind in ("wrap", "replace") and patch.function is not None:
        for one in found:
            _check_function(patch, one.node)
    for one in originals(patch, tree) if patch.bodies else ():
        _check_body(patch, one.node)
    if patch.kind == "replace" and patch.function is not None:
        for one in found:
            _check_replacement(patch, patch.function, one)


def _may_be_lazy(target: Target, tree: SourceTree) -> bool:
    """Return whether the name may come from the module's ``__getattr__``, which static judgement cannot run."""
    if find(target.module, target.path[:1], tree):
        return False
    nodes = [one.node for one in find(target.module, ("__getattr__",), tree)]
    known = [_names_given(node) if isinstance(node, syntax.Definition) else None for node in nodes]
    return any(names is None or target.path[0] in names for names in known)


def _names_given(getattr_: syntax.Definition) -> set[str] | None:
    """Return all names that a module's ``__getattr__`` defines, or None if its source does not list them.

    The source lists the names if every statement is ``if name == "..."``, except for the docstring and a final
    AttributeError.
    """
    *body, last = getattr_.body
    raised = last.exc if isinstance(last, ast.Raise) else None
    if not (isinstance(raised, ast.Call) and ast.unparse(raised.func) == "AttributeError"):
        return None
    names: set[str] = set()
    for statement in body:
        match statement:
            case ast.Expr(value=ast.Constant()):
                continue
            case ast.If(
                test=ast.Compare(left=ast.Name(id=left), ops=[ast.Eq()], comparators=[ast.Constant(value=str(name))]),
                orelse=[],
            ) if left == getattr_.args.args[0].arg:
                names.add(name)
            case _:
                return None
    return names


_LITERALS = (ast.Constant, ast.Dict, ast.List, ast.Tuple, ast.Set, ast.JoinedStr)


def _check_function(patch: Patch, node: ast.stmt) -> None:
    """Raise PatchDrift if the target is defined as something other than a function."""
    if isinstance(node, ast.ClassDef):
        raise PatchDrift(f"{patch.target} is a class: classes are never replaced — patch its __init__ or a method")
    value = getattr(node, "value", None)
    if isinstance(value, _LITERALS):
        raise PatchDrift(f"{patch.target} is {ast.unparse(value)}, expected a function")


def _check_body(patch: Patch, node: ast.stmt) -> None:
    if isinstance(node, syntax.Definition) and patch.bodies and syntax.digest(node) not in patch.bodies:
        raise body_drift(patch, syntax.digest(node))


def _check_replacement(patch: Patch, function: Callable[..., Any], found: syntax.Found) -> None:
    node = found.node
    if not isinstance(node, syntax.Definition):
        return
    theirs = signature_of(node)
    decorators = [ast.unparse(decorator) for decorator in node.decorator_list]
    bound = bool(found.around) and "staticmethod" not in decorators
    refused = refused_call(theirs, inspect.signature(function), bound)
    if refused:
        raise PatchDrift(f"{patch.target}{theirs}: the replacement does not accept {refused}")


def definitions(patch: Patch, tree: SourceTree) -> list[syntax.Found]:
    """Return the definitions of the patch's target in ``tree``, in its class or in a base class that the source names.

    Raises:
        PatchDrift: the module is missing, or does not parse.
    """
    if patch.host_script is not None:
        return syntax.find(syntax.parse_file(tree.root / patch.host_script), patch.target.path)
    return find(patch.target.module, patch.target.source_path, tree)


def originals(patch: Patch, tree: SourceTree) -> list[syntax.Found]:
    """Return the definitions of a patch's original in ``tree``. For an entry, that is the function under its key.

    Raises:
        PatchDrift: the module is missing, or does not parse.
    """
    if patch.original is None:
        return definitions(patch, tree)
    found = find(patch.original.module, patch.original.source_path, tree)
    if not found:
        raise PatchDrift(f"{patch.place}: {patch.original} is missing, expected upstream's own")
    return found


def find(module: str, path: tuple[str, ...], tree: SourceTree) -> list[syntax.Found]:
    """Return the definitions of ``path`` in ``module``, searched as in ``definitions``.

    Raises:
        PatchDrift: the module is missing, or does not parse.
    """
    source = tree.source_of(module)
    if source is None:
        raise PatchDrift(f"{module}: is not in {tree.root}")
    status = source.stat()
    parsed = _parsed(source, status.st_mtime_ns, status.st_size)
    found = syntax.find(parsed, path)
    if found or len(path) == 1:
        return found
    for cls in syntax.find(parsed, path[:-1]):
        for base in getattr(cls.node, "bases", ()):
            for home, name in _origins(base, parsed, module, source):
                if tree.source_of(home) is not None and (home, (name,)) != (module, path[:-1]):
                    found += find(home, (name, path[-1]), tree)
    return found


@functools.lru_cache(
    maxsize=2
)  # consecutive patches often share a module, and parsing takes half the time of a judgement
def _parsed(source: Path, mtime_ns: int, size: int) -> ast.Module:
    return syntax.parse_file(source)


def _origins(base: ast.expr, parsed: ast.Module, module: str, source: Path) -> list[tuple[str, str]]:
    """Return the possible origins (module, name) of a base class: its module, or the modules it is imported from."""
    if not isinstance(base, ast.Name):
        return []
    origins = []
    for one in syntax.find(parsed, (base.id,)):
        if isinstance(one.node, ast.ClassDef):
            origins.append((module, base.id))
        if isinstance(one.node, ast.ImportFrom):
            package = module.split(".") if source.name == "__init__.py" else module.split(".")[:-1]
            above = package[: len(package) - one.node.level + 1] if one.node.level else []
            name = next((alias.name for alias in one.node.names if alias.asname == base.id), base.id)
            origins.append((".".join([*above, *filter(None, [one.node.module])]), name))
    return origins


def signature_of(node: syntax.Definition) -> inspect.Signature:
    """Return the signature of a definition, with the source text of each default as its value."""
    arguments = node.args
    parameters: list[inspect.Parameter] = []

    def add(args: Sequence[ast.arg], kind: inspect._ParameterKind, defaults: Sequence[ast.expr | None]) -> None:
        for arg, default in zip(args, defaults, strict=True):
            value = inspect.Parameter.empty if default is None else ast.unparse(default)
            parameters.append(inspect.Parameter(arg.arg, kind, default=value))

    positional = [*arguments.posonlyargs, *arguments.args]
    defaults = [None] * (len(positional) - len(arguments.defaults)) + list(arguments.defaults)
    count = len(arguments.posonlyargs)
    add(arguments.posonlyargs, inspect.Parameter.POSITIONAL_ONLY, defaults[:count])
    add(arguments.args, inspect.Parameter.POSITIONAL_OR_KEYWORD, defaults[count:])
    if arguments.vararg is not None:
        add([arguments.vararg], inspect.Parameter.VAR_POSITIONAL, [None])
    add(arguments.kwonlyargs, inspect.Parameter.KEYWORD_ONLY, list(arguments.kw_defaults))
    if arguments.kwarg is not None:
        add([arguments.kwarg], inspect.Parameter.VAR_KEYWORD, [None])
    return inspect.Signature(parameters)
