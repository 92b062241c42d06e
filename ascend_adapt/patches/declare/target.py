"""Targets: ``"package.module:Class.attribute"`` as data, and the lookup of its object in a loaded module."""

from __future__ import annotations

import re
import warnings
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from ascend_adapt.errors import PatchDrift, PatchSpecError

_NAME = r"[^\W\d]\w*"
_TARGET = re.compile(rf"({_NAME}(?:\.{_NAME})*)(?::({_NAME}(?:\.{_NAME})*))?")


@dataclass(frozen=True)
class Target:
    """Target of a patch: a module, and the path of an attribute in the module."""

    module: str
    path: tuple[str, ...] = ()

    @classmethod
    def parse(cls, text: str) -> Target:
        """Return the target that ``text`` describes.

        Raises:
            PatchSpecError: ``text`` is not of the form ``package.module`` or ``package.module:Class.attribute``.
        """
        match = _TARGET.fullmatch(text) if isinstance(text, str) else None
        if match is None:
            raise PatchSpecError(
                f"target {text!r}: expected 'package.module:Class.attribute' — correct the declaration"
            )
        module, path = match.groups()
        return cls(module, tuple(path.split(".")) if path else ())

    @property
    def root(self) -> str:
        """The top-level package, such as ``deepspeed``."""
        return self.module.partition(".")[0]

    @property
    def source_path(self) -> tuple[str, ...]:
        """The path as written in the source, such as ``__f`` for a private method that is stored as ``_Class__f``."""
        *around, name = self.path
        for prefix in (f"_{cls.lstrip('_')}" for cls in around[-1:]):
            if name.startswith(f"{prefix}__") and not name.endswith("__"):
                name = name.removeprefix(prefix)
        return (*around, name)

    @property
    def packages(self) -> tuple[str, ...]:
        """The module and every package that contains it, innermost first."""
        parts = self.module.split(".")
        return tuple(".".join(parts[:end]) for end in range(len(parts), 0, -1))

    @property
    def dotted(self) -> str:
        """The module and the path as one name with dots."""
        return ".".join((self.module, *self.path))

    def __str__(self) -> str:
        return f"{self.module}:{'.'.join(self.path)}" if self.path else self.module


class _Missing:
    """Type of MISSING, with a readable repr."""

    def __repr__(self) -> str:
        return "MISSING"


MISSING: Any = _Missing()


@dataclass(frozen=True)
class Place:
    """Location of a target: ``vars(owner)[name]``, or the same name in a base class if ``inherited``.

    If ``lazy``, ``value`` comes from the module's ``__getattr__``.
    """

    owner: Any
    name: str
    value: Any
    inherited: bool
    lazy: bool = False


def look_up(owner: Any, name: str) -> tuple[Any, bool]:
    """Return the object at ``owner.name`` and whether it is inherited, or ``(MISSING, False)``.

    Only namespaces are read: descriptors are returned as such, and neither a module's ``__getattr__`` nor a property is
    called.
    """
    namespaces = owner.__mro__ if isinstance(owner, type) else (owner,)
    for depth, holder in enumerate(namespaces):
        value = vars(holder).get(name, MISSING)
        if value is not MISSING:
            return value, depth > 0
    return MISSING, False


def standing(owner: Any, name: str) -> Any:
    """Return the object at ``owner.name``, calling a module's ``__getattr__`` (PEP 562) if needed, or MISSING.

    Raises:
        PatchDrift: ``__getattr__`` raises anything but AttributeError.
    """
    value, _ = look_up(owner, name)
    if value is not MISSING or not isinstance(owner, ModuleType):
        return value
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a deprecation warning is meant for callers of the name
            return getattr(owner, name, MISSING)
    except Exception as error:  # a lazy import may raise any exception
        raise PatchDrift(f"{owner.__name__}:{name}: reading it raised {type(error).__name__}: {error}") from error


def locate(target: Target, module: ModuleType, *, lazily: bool = True) -> Place:
    """Return the location of ``target`` in the loaded ``module``. Its value may be MISSING.

    With ``lazily``, names that the module lacks are read through its ``__getattr__``.

    Raises:
        PatchDrift: a step before the last one is missing, or is neither a module nor a class.
    """
    if not isinstance(module, ModuleType):
        raise PatchDrift(f"{target}: {target.module} is a {type(module).__name__} in sys.modules, expected a module")
    owner: Any = module
    for step in target.path[:-1]:
        value = standing(owner, step)
        if value is MISSING:
            raise PatchDrift(f"{target}: {step!r} is not in {_describe(owner)}")
        if not isinstance(value, (type, ModuleType)):
            raise PatchDrift(f"{target}: {step!r} is a {type(value).__name__}, expected a class")
        owner = value
    name = target.path[-1]
    if isinstance(owner, type) and name.startswith("__") and not name.endswith("__"):
        name = f"_{owner.__name__.lstrip('_')}{name}"
    if lazily:
        standing(owner, name)  # __getattr__ may store it in the module
    value, inherited = look_up(owner, name)
    if lazily and value is MISSING:
        value = standing(owner, name)
        return Place(owner, name, value, inherited=False, lazy=value is not MISSING)
    return Place(owner, name, value, inherited)


def locate_present(target: Target, module: ModuleType) -> Place:
    """Return the location of ``target`` in ``module``.

    Raises:
        PatchDrift: the target does not exist.
    """
    place = locate(target, module)
    if place.value is MISSING:
        raise PatchDrift(f"{target}: {place.name!r} is not in {_describe(place.owner)}")
    return place


def _describe(owner: Any) -> str:
    if isinstance(owner, type):
        return f"class {owner.__qualname__}"
    return f"module {owner.__name__}"
