"""Finds and changes options of a command line: `--name value` or `--name=value`, with dashes or underscores."""

from __future__ import annotations

from collections.abc import Sequence


def find(words: Sequence[str], option: str) -> int | None:
    """Return the index of the option's last occurrence, or None."""
    places = [place for place, word in enumerate(words) if _plain(word.partition("=")[0]) == _plain(option)]
    return places[-1] if places and option else None


def value_of(words: Sequence[str], option: str) -> str | None:
    """Return the value of an option, "" for a flag, or None if it is absent."""
    place = find(words, option)
    if place is None:
        return None
    _, equals, value = words[place].partition("=")
    if equals:
        return value
    follower = words[place + 1] if place + 1 < len(words) else "--"
    return "" if follower.startswith("--") else follower


def with_options(words: Sequence[str], options: Sequence[str]) -> list[str]:
    """Return the arguments with these options (and their values, if any) replaced or appended."""
    changed, rest = list(words), list(options)
    while rest:
        option = rest.pop(0)
        value = rest.pop(0) if rest and not rest[0].startswith("--") else None
        place = find(changed, option)
        if place is None:
            changed += [option] if value is None else [option, value]
        elif value is not None and "=" in changed[place]:
            changed[place] = f"{changed[place].partition('=')[0]}={value}"
        elif value is not None:
            changed[place + 1 : place + 2] = [value]
    return changed


def _plain(name: str) -> str:
    return "--" + name[2:].replace("_", "-") if name.startswith("--") else name
