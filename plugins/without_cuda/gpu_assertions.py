"""On a CPU, modules that import flash_attn, xformers or rotary_emb run without assertions that tensors are on a GPU.

Many models contain a copy of a module of flash_attn, with its ``assert qkv.is_cuda``. The flash_attn that this project
provides accepts tensors on the CPU, but is_cuda stays False.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import CodeType, ModuleType

from .callers import Callers, source_of
from .import_finders import found_after
from .who_knows import INTERNAL, KNOWS

_ASSERTS = re.compile(r"(?m)^\s*assert\b[\s\S]{0,200}?\.is_cuda\b")
_IMPORTS = re.compile(r"(?m)^\s*(?:from|import)\s+(?:flash_attn|rotary_emb|xformers)\b")


class GpuAssertions(MetaPathFinder):
    """Import finder that gives these modules a loader of their own, and returns other specs unchanged."""

    def __init__(self, callers: Callers) -> None:
        self._callers = callers

    def install(self) -> None:
        """Find modules just before Python's own finder, so that finders of other tools come first."""
        sys.meta_path.insert(sys.meta_path.index(PathFinder), self)

    def undo(self) -> None:
        """Leave later imports to the other finders."""
        sys.meta_path[:] = [finder for finder in sys.meta_path if finder is not self]

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec that later finders return; a module with such assertions gets another loader."""
        root = fullname.partition(".")[0]
        if self not in sys.meta_path or root in INTERNAL or root in KNOWS or root in sys.stdlib_module_names:
            return None
        spec = found_after(self, fullname, path, target)
        if spec is not None and type(spec.loader) is SourceFileLoader:
            file = spec.loader.path
            if self._has_assertions(fullname, file):
                spec.loader = _Loader(fullname, file)
        return spec

    def _has_assertions(self, name: str, file: str) -> bool:
        if not self._callers.says_cuda(name, file):
            return False
        source = source_of(file)
        return bool(_ASSERTS.search(source) and _IMPORTS.search(source))


class _Loader(SourceFileLoader):
    """Loader that compiles a module without the assertions; it does not use Python's cache of compiled modules."""

    def get_code(self, fullname: str) -> CodeType:
        path = self.get_filename(fullname)
        tree = ast.parse(self.get_data(path), path)
        for node in ast.walk(tree):
            if isinstance(node, ast.Assert) and _is_about_gpus(node.test):
                node.test, node.msg = ast.copy_location(ast.Constant(True), node.test), None
        code: CodeType = compile(tree, path, "exec", dont_inherit=True)
        return code


def _is_about_gpus(test: ast.expr) -> bool:
    """Return whether an assertion only states that tensors are on a GPU."""
    match test:
        case ast.Attribute(attr="is_cuda"):
            return True
        case ast.BoolOp(op=ast.And(), values=values):
            return all(_is_about_gpus(value) for value in values)
        case ast.Call(func=ast.Name(id="all"), args=[ast.GeneratorExp(elt=each) | ast.ListComp(elt=each)]):
            return _is_about_gpus(each)
    return False
