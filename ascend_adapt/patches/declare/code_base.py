"""Hosts: code bases that share package names (``megatron``, ``mpu``), told apart by the files beside them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ascend_adapt.errors import PatchSpecError

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True)
class Host:
    """A code base, known by marker files relative to the folder that holds its packages.

    ``present`` files must exist there, ``absent`` ones must not.

    Raises:
        PatchSpecError: either is one text.
    """

    name: str
    present: tuple[str, ...]
    absent: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        given: dict[str, Any] = {"present": self.present, "absent": self.absent}
        for what, markers in given.items():
            if isinstance(markers, str):
                # Each of its letters would be a marker.
                raise PatchSpecError(f"host {self.name}: {what}={markers!r} is one text — write ({markers!r},)")

    def owns(self, folder: Path) -> str:
        """Return ``""`` if ``folder`` holds this host's packages, else what is missing or too much."""
        for marker in self.present:
            if not (folder / marker).exists():
                return f"{marker} is not in {folder}"
        for marker in self.absent:
            if (folder / marker).exists():
                return f"{marker} is in {folder}"
        return ""

    @property
    def roots(self) -> tuple[str, ...]:
        """The top-level packages or modules that the markers of this host lie in."""
        return tuple(dict.fromkeys(marker.partition("/")[0].removesuffix(".py") for marker in self.present))

    @property
    def root(self) -> str:
        """The first of ``roots``, which tells where this host is; empty if it has none."""
        return next(iter(self.roots), "")

    @property
    def module(self) -> str:
        """The module that the first marker is: it tells of an import where ``root`` has no code of its own."""
        parts = next(iter(self.present), "").removesuffix(".py").split("/")
        return ".".join(part for part in parts if part != "__init__")

    def __str__(self) -> str:
        return self.name
