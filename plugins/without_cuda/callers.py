"""Classifies calling code as CUDA code or not, by the module of the frame that requests "cuda" from torch."""

from __future__ import annotations

import os
import re
import sys
from functools import cache
from pathlib import Path
from typing import Any

import ascend_adapt

from .code_base import CudaCodeBase
from .who_knows import INTERNAL, KNOWS

CUDA, AWARE, TORCH = "cuda", "aware", "torch"
# Names of torch.cuda that are mapped even for code that supports this device: it calls them only if given "cuda".
SELECTING = ("device", "set_device")
_SCRIPT = ("__main__", "__mp_main__")
_INSTALLED = re.compile(r"[/\\](?:site|dist)-packages[/\\]")
_NAMES_NPU = re.compile(
    r"torch_npu|hasattr\(\s*torch\s*,\s*[\"']npu[\"']|is_(?:torch_)?npu_available|npu\.is_available"
)
_NAMES_CUDA = re.compile(r"cuda|nccl|device_ids|torch\.device\(")
_NAMES_ANY = re.compile(rf"{_NAMES_CUDA.pattern}|torch\.accelerator")
_THIS_PACKAGE = str(Path(ascend_adapt.__file__).parent) + os.sep
_IMPORTED = re.compile(r"(?m)^\s*(?:import|from)\s+(\w+)")


class Callers:
    """Classifies modules as CUDA code, code that supports this device, or torch itself.

    ``policy`` is the setting ``cuda_code``. ``code_bases``, which plugins declare, are always CUDA code.
    """

    def __init__(self, device: str, policy: str) -> None:
        self.device, self.policy = device, policy
        self.code_bases: list[CudaCodeBase] = []
        self._kinds: dict[tuple[str, str], str] = {}
        # The package of `python -m package.module` is imported before ``__main__`` refers to it.
        self._brought: set[str] = {to_run()[0].partition(".")[0]} - {""}

    def add(self, code_base: CudaCodeBase) -> None:
        """Add a code base that a plugin declares."""
        self.code_bases.append(code_base)
        self._kinds.clear()

    def remove(self, code_base: CudaCodeBase) -> None:
        """Remove a code base that was added."""
        self.code_bases.remove(code_base)
        self._kinds.clear()

    def kind(self, names: dict[str, Any]) -> str:
        """Return CUDA, AWARE or TORCH for the code whose globals are ``names``."""
        key = names.get("__name__") or "__main__", str(names.get("__file__") or "")
        kind = self._kinds.get(key)
        if kind is None:
            kind = self._kinds[key] = self._judge(key[0], key[1], getattr(names.get("__spec__"), "name", None))
        return kind

    def says_cuda(self, name: str, file: str, run_as: str | None = None) -> bool:
        """Return whether a module is CUDA code and mentions CUDA in its source.

        Of installed packages, only those that the user's modules import are considered: indirect dependencies such as
        huggingface_hub mention CUDA for other reasons.
        """
        own = is_own(name, file)
        # Do the cheap check first, because this runs for every imported module.
        if not own and name.partition(".")[0] not in self._brought:
            return False
        if self._judge(name, file, run_as) != CUDA:
            return False
        source = source_of(file)
        if own:
            self._brought.update(_IMPORTED.findall(source), {(run_as or name).partition(".")[0]})
        # torch.accelerator is the NPU if the host has one; on a CPU, it has no device.
        names = _NAMES_CUDA if self.device == "npu" else _NAMES_ANY
        return bool(names.search(source))

    def _judge(self, name: str, file: str, run_as: str | None) -> str:
        module = sys.modules.get(name)
        if module is not None and any(code_base.owns(module) for code_base in self.code_bases):
            return CUDA
        is_script = name in _SCRIPT
        package = (run_as or "") if is_script else name  # python -m package.module
        root = package.partition(".")[0]
        if root in INTERNAL or root in sys.stdlib_module_names:
            return TORCH
        if self.policy == "off":
            return AWARE
        if self.policy == "all":
            return CUDA
        knows = self.device in KNOWS.get(root, ()) and not _is_beside_the_script(file)
        if knows or (self.policy == "script" and not is_own(name, file)):
            return AWARE
        # A script that mentions NPUs chooses its device itself, in all of its modules. Any other module that mentions
        # NPUs may still default to CUDA.
        script = file if is_script else getattr(sys.modules.get("__main__"), "__file__", None) or ""
        return AWARE if is_own(name, file) and _NAMES_NPU.search(source_of(script)) else CUDA


def is_own(name: str, file: str) -> bool:
    """Return whether a module is the user's: the script, or a module outside every installed package."""
    return name in _SCRIPT or not _INSTALLED.search(file)


def to_run() -> tuple[str, str]:
    """Return the module and the script on this process's command line; at least one of them is ""."""
    words = iter(sys.orig_argv[1:])
    for word in words:
        if word == "-m":
            return next(words, ""), ""
        if word in ("-W", "-X"):
            next(words, "")
        elif word == "-c":
            break
        elif not word.startswith(("-", _THIS_PACKAGE)):  # each rank starts as a file of this package
            return "", word
    return "", ""


def _is_beside_the_script(file: str) -> bool:
    script = getattr(sys.modules.get("__main__"), "__file__", None) or ""
    return bool(script and file) and Path(script).resolve().parent in Path(file).resolve().parents and is_own("", file)


@cache
def source_of(file: str) -> str:
    """Return the text of a Python file, or "" if there is none."""
    # An installed command, such as bin/trl, is a script whose name has no suffix.
    try:
        return Path(file).read_text(errors="replace") if file and Path(file).suffix in ("", ".py") else ""
    except OSError:
        return ""
