"""Generates the site's reference pages from the code that they describe."""

from __future__ import annotations

import argparse
import json
import os
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

from ascend_adapt import cli
from ascend_adapt.kernels.built_in import register_kernels
from ascend_adapt.launch import request
from ascend_adapt.problems import error_codes, known
from ascend_adapt.recipes import glm, megatron, neox, oneflow
from ascend_adapt.runtime.plugin_manager import PluginManager

RECORDED = Path(neox.__file__).with_name("upstream")
IGNORED = {"glm": glm.IGNORED, "megatron": megatron.IGNORED, "neox": neox.IGNORED, "oneflow": oneflow.IGNORED}


def pages() -> dict[str, str]:
    """Return the Markdown of each page, keyed by its address on the site."""
    dialects = {f"reference/options-{dialect}.md": _options(dialect) for dialect in IGNORED}
    return {
        "reference/commands.md": _commands(),
        "reference/patches.md": _patches(),
        "reference/known-problems.md": _known_problems(),
        "reference/error-codes.md": _error_codes(),
        "reference/kernels.md": _kernels(),
        **dialects,
    }


def _commands() -> str:
    """Return the page of the options of both programs and of every command."""
    parsers = {"ascend-run": request._parser(), **dict(_subcommands("ascend-adapt", cli._parser()))}
    text = ["# Commands and options\n"]
    for name, parser in parsers.items():
        text += [f"## {name}\n", f"{_plain(parser.description or '')}\n"]
        rows = [(_option(action), _plain(_help(action, parser))) for action in parser._actions if _is_listed(action)]
        text.append(_table(("option", ""), rows))
    return "\n".join(text)


def _subcommands(name: str, parser: argparse.ArgumentParser) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    groups = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    if not groups:
        yield name, parser
    for group in groups:
        for word, inner in group.choices.items():
            yield from _subcommands(f"{name} {word}", inner)


def _is_listed(action: argparse.Action) -> bool:
    return action.help != argparse.SUPPRESS and not isinstance(action, argparse._HelpAction)


def _option(action: argparse.Action) -> str:
    names = ", ".join(f"`{one}`" for one in action.option_strings) or f"`{action.metavar or action.dest}`"
    value = action.metavar or (action.choices and "\\|".join(map(str, action.choices)))
    return f"{names} {_plain(str(value))}" if action.option_strings and value and action.nargs != 0 else names


def _help(action: argparse.Action, parser: argparse.ArgumentParser) -> str:
    return parser._get_formatter()._expand_help(action) if action.help else ""


def _patches() -> str:
    """Return the page of all patches, grouped by plugin."""
    by_plugin: dict[str, list[tuple[str, ...]]] = defaultdict(list)
    for one in PluginManager().patches():
        patch = one.patch
        where = ", ".join(map(str, (*patch.requires, *patch.hosts, *patch.devices))) or "always"
        cells = (f"`{one.name}`", f"{patch.kind} `{patch.target}`", where, patch.why, patch.without, patch.until)
        by_plugin[one.plugin].append(tuple(_plain(str(cell)) for cell in cells))
    columns = ("patch", "changes", "applies to", "why", "without it", "until")
    return _by_heading("Patches", "How to declare one: [patches](../patches.md).", columns, by_plugin)


def _known_problems() -> str:
    """Return the page of all known problems that doctor, explain and a rehearsal recognise."""
    problems, _ = known.problems(os.environ)
    rows = [
        (f"`{one.name}`", _plain(one.cause), _plain(one.do), " ".join(f"[{i}]({u})" for i, u in _sources(one.source)))
        for one in problems
    ]
    text = "# Known problems\n\n`ascend-adapt explain`, `doctor` and the rehearsal recognise these.\n\n"
    return text + _table(("problem", "cause", "next step", "source"), rows)


def _sources(addresses: Iterable[str]) -> Iterator[tuple[int, str]]:
    return enumerate((one for one in addresses if one.startswith("http")), 1)


def _error_codes() -> str:
    rows = [(f"`{code}`", _plain(meaning)) for code, meaning in sorted(error_codes.meanings().items())]
    return "# Error codes of CANN and torch_npu\n\n" + _table(("code", "meaning"), rows)


def _kernels() -> str:
    """Return the page of all backends of each kernel, in the order in which they are tried."""
    by_kernel: dict[str, list[tuple[str, ...]]] = defaultdict(list)
    for kernel, backend in register_kernels():
        properties = [word for word in ("measured", "deterministic", "composed") if getattr(backend, word)]
        by_kernel[kernel].append((f"`{backend.name}`", ", ".join(backend.devices), ", ".join(properties)))
    about = "Backends are tried in this order; `reference` supports every call. [How they are chosen](../kernels.md)"
    return _by_heading("Kernels and backends", about, ("backend", "devices", "properties"), by_kernel)


def _options(dialect: str) -> str:
    """Return the page of all options of every version of a dialect, with their effect in the native trainer."""
    versions = {path.stem.removeprefix(f"{dialect}-"): path for path in sorted(RECORDED.glob(f"{dialect}-*.json"))}
    recorded = {name: json.loads(path.read_text(encoding="utf-8"))["options"] for name, path in versions.items()}
    reasons = IGNORED[dialect]
    rows = []
    for option in sorted({option for options in recorded.values() for option in options}):
        of = {name: options[option] for name, options in recorded.items() if option in options}
        defaults: dict[str, list[str]] = defaultdict(list)
        for name, facts in of.items():
            defaults[json.dumps(facts.get("default"))].append(name)
        shown = "; ".join(f"`{_plain(value)}` ({', '.join(names)})" for value, names in defaults.items())
        dest = next(iter(of.values())).get("dest", option)
        rows.append((f"`{option}`", shown, _plain(reasons.get(dest, ""))))
    about = (
        f"# Options of the dialect {dialect}\n\n"
        f"`ascend-run --native {dialect}` reads these options, as recorded from upstream's own parsers. Each option "
        f"is either used, or has no effect for the reason in the last column, or is an error if its value is not "
        f"upstream's default. "
        "[Every option counts](../native.md#every-option-counts)\n\n"
    )
    return about + _table(("option", "upstream's default", "without effect because"), rows)


def _by_heading(title: str, about: str, columns: tuple[str, ...], tables: dict[str, list[tuple[str, ...]]]) -> str:
    parts = [f"## {name}\n\n{_table(columns, rows)}" for name, rows in tables.items()]
    return f"# {title}\n\n{about}\n\n" + "\n".join(parts)


def _plain(text: str) -> str:
    """Escape a program's text for a cell of a Markdown table."""
    for character, written in (("\n", " "), ("|", "\\|"), ("<", "&lt;"), ("*", "\\*")):
        text = text.replace(character, written)
    return text.replace("\\\\|", "\\|")


def _table(columns: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    lines = (f"| {' | '.join(row)} |" for row in (columns, ("---",) * len(columns), *rows))
    return "\n".join(lines) + "\n"
