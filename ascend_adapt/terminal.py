"""Output for people: wrapped and coloured on a terminal, plain and unwrapped in a pipe. NO_COLOR disables colours."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

_HANG = 4
_NAME = 20
"""Width of the column of names. Values after longer names are not aligned."""


def stdout() -> Console:
    """Return a console for the current standard output."""
    from rich.console import Console

    return Console(highlight=False, soft_wrap=False)


def line(text: str | Text, style: str = "") -> None:
    """Print one line, which is wrapped between words on a terminal, with a hanging indent."""
    from rich.text import Text

    # In a Text, unlike a str, brackets are not markup.
    shown = Text(text, style) if isinstance(text, str) else text
    console = stdout()
    if not console.is_terminal:
        print(shown.plain)
        return
    indent = len(shown.plain) - len(shown.plain.lstrip())
    # The last column stays free, because some terminals wrap a full line.
    columns = max(console.width - 1, 2 * _NAME)
    first, *rest = shown.wrap(console, columns) or [shown]
    first.rstrip()
    console.print(first, soft_wrap=True)
    # The remaining text is wrapped again, to the narrower width.
    if rest:
        left = shown[len(first.plain) :]
        left = left[len(left.plain) - len(left.plain.lstrip()) :]
        for part in left.wrap(console, columns - indent - _HANG):
            part.rstrip()
            console.print(Text(" " * (indent + _HANG)) + part, soft_wrap=True)


def pairs(rows: list[tuple[str, str]]) -> None:
    """Print names and values: aligned on a terminal, ``name: value`` in a pipe."""
    from rich.text import Text

    is_terminal = stdout().is_terminal
    for name, value in rows:
        line(Text(f"{name}: ".ljust(_NAME * is_terminal), "dim").append(value, "not dim"))
