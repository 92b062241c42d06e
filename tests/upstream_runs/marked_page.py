"""Tables of documentation pages that a program makes: what is between two marks is replaced."""

from __future__ import annotations

from pathlib import Path

BEGIN = "<!-- made by `{maker}`{table} -->\n"
END = "<!-- end of what is made -->\n"


class NoMarks(ValueError):
    """A page lacks the marks that a table belongs between; the message names them."""


def mark_of(maker: str, table: str = "") -> str:
    """Return the line that begins a table."""
    return BEGIN.format(maker=maker, table=f", {table}" if table else "")


def put(page: Path, text: str, maker: str, table: str = "") -> None:
    """Replace what is between the marks of ``maker``, a command; ``table`` names one of several that it makes.

    Raises:
        NoMarks: the page lacks them.
    """
    begin = mark_of(maker, table)
    head, mark, rest = page.read_text().partition(begin)
    _, end, tail = rest.partition(END)
    if not mark or not end:
        raise NoMarks(f"{page}: lacks the marks {begin.strip()} and {END.strip()} — add them where the table belongs")
    page.write_text(f"{head}{begin}{text}{END}{tail}")
