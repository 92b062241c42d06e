"""HTML and SVG elements whose text is always escaped."""

from __future__ import annotations

import html
import unicodedata

_VOID = frozenset({"meta", "br", "path", "circle", "line", "polygon", "polyline", "rect", "col"})


class Markup(str):
    """Text that is already markup. Only ``element`` and ``joined`` create it from data."""


def element(name: str, *children: str | None, **attributes: object) -> Markup:
    """Return an element.

    Children that are not Markup are escaped, and children that are None are left out. In attribute names, ``_`` stands
    for ``-``, and a trailing ``_`` is dropped (``class_``). An attribute that is None or False is left out. The value
    True gives an attribute without a value.
    """
    opened = f"<{name}"
    for key, value in attributes.items():
        if value is True:
            opened += f" {_attribute(key)}"
        elif value is not None and value is not False:
            opened += f' {_attribute(key)}="{text(str(value))}"'
    if name in _VOID:
        return Markup(f"{opened}/>")
    return Markup(f"{opened}>{joined(*children)}</{name}>")


def joined(*children: str | None) -> Markup:
    """Return the children concatenated, escaped as in ``element``."""
    return Markup("".join(one if isinstance(one, Markup) else text(str(one)) for one in children if one is not None))


def text(value: str) -> Markup:
    """Return the escaped text. Control characters, and characters that reorder or hide text, become U+FFFD."""
    shown = value if value.isprintable() else "".join(map(_shown, value))
    return Markup(html.escape(shown))


def _shown(character: str) -> str:
    harmless = character.isprintable() or character in "\n\t" or unicodedata.category(character) == "Zs"
    return character if harmless else "\ufffd"


def _attribute(key: str) -> str:
    return key.rstrip("_").replace("_", "-") if key != "viewBox" else key
