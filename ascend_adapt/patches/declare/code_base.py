"""Code bases: marker files distinguish code bases that share package names (``megatron``, ``mpu``)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ascend_adapt.errors import PatchSpecError

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True)
class CodeBase:
    """A code base, identified by marker files relative to the folder that contains its packages.

    The files in ``present`` must exist, the files in ``absent`` must not.

    Raises:
        PatchSpecError: ``present`` or ``absent`` is a single string.
    """

    name: str
    present: tuple[str, ...]
    absent: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        given: dict[str, Any] = {"present": self.present, "absent": self.absent}
        for what, markers in given.items():
            if isinstance(markers, str):
                # Each character of the string would be a marker.
                raise PatchSpecError(
                    f"code base {self.name}: {what}={markers!r} is one string, expected a tuple — write ({markers!r},)"
                )

    def owns(self, folder: Path) -> str:
        """Return ``""`` if ``folder`` contains this code base, else which marker is missing or unexpected."""
        for marker in self.present:
            if not (folder / marker).exists():
                return f"{marker} is not in {folder}"
        for marker in self.absent:
            if (folder / marker).exists():
                return f"{marker} is in {folder}"
        return ""

    @property
    def roots(self) -> tuple[str, ...]:
        """The top-level packages or modules of the ``present`` markers."""
        return tuple(dict.fromkeys(marker.partition("/")[0].removesuffix(".py") for marker in self.present))

    @property
    def root(self) -> str:
        """The first of ``roots``, by which the code base is located, or "" if it has none."""
        return next(iter(self.roots), "")

    @property
    def module(self) -> str:
        """The module of the first marker. Its import is watched, because ``root`` may be a namespace package."""
        parts = next(iter(self.present), "").removesuffix(".py").split("/")
        return ".".join(part for part in parts if part != "__init__")

    def __str__(self) -> str:
        return self.name
