"""Names of modules and parameters, the same with and without the wrappers of DDP, FSDP, DeepSpeed and torch.compile."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import nn

_WRAPPED = ("module", "_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module")


@dataclass(frozen=True)
class Name:
    """Name of a module: the number of its root, in the order of the roots' first calls, and its path in the root."""

    root: int
    path: str
    is_wrapper: bool = False


class ModuleNames:
    """Names the modules under every root. A root is a module that is called outside any other module."""

    def __init__(self) -> None:
        self.roots: list[weakref.ref[nn.Module]] = []
        self._names: weakref.WeakKeyDictionary[nn.Module, Name] = weakref.WeakKeyDictionary()

    def of(self, module: nn.Module, inside: nn.Module | None) -> Name:
        """Return the name of a module that is called by the module ``inside``, or by the script if that is None."""
        found = self._names.get(module)
        if found is not None:
            return found
        if inside is None:
            self.roots.append(weakref.ref(module))
            self._add(module, len(self.roots) - 1)
        else:  # the module was added after the first call, or is not registered as a child
            parent = self._names[inside]
            root = self.roots[parent.root]()
            if root is not None:
                self._add(root, parent.root)
            if module not in self._names:
                self._names[module] = Name(parent.root, f"{parent.path}.<{type(module).__name__}>".lstrip("."))
        return self._names[module]

    def modules(self, root: int) -> Iterator[tuple[nn.Module, Name]]:
        """Yield the modules of a root with their names, parents first."""
        module = self.roots[root]()
        for each in module.modules() if module is not None else ():
            yield each, self._names.get(each) or Name(root, "")

    def tensors(self, root: int) -> Iterator[tuple[nn.Module, str, str, torch.Tensor, bool]]:
        """Yield (module, local name, full name, tensor, is a parameter) for each parameter and buffer in a root."""
        seen: set[int] = set()
        for module, name in self.modules(root):
            for is_parameter, tensors in ((True, module._parameters), (False, module._buffers)):
                for own, tensor in tensors.items():
                    if tensor is not None and id(tensor) not in seen:
                        seen.add(id(tensor))
                        yield module, own, f"{name.path}.{own}".lstrip("."), tensor, is_parameter

    def _add(self, module: nn.Module, root: int, path: str = "") -> None:
        children = [(own, child) for own, child in module.named_children() if child is not module]
        wrapped = [own for own, _ in children if own in _WRAPPED and (own != "module" or len(children) == 1)]
        self._names.setdefault(module, Name(root, path, bool(wrapped)))
        for own, child in children:
            if child not in self._names or own in wrapped:
                self._add(child, root, path if own in wrapped else f"{path}.{own}".lstrip("."))
