"""Static analysis of a user's files: finds imports, calls and settings in scripts and configurations."""

from __future__ import annotations

import ast
import io
import json
import re
import shlex
import tokenize
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ascend_adapt import regular_files
from ascend_adapt.errors import SettingsError

if TYPE_CHECKING:
    from ascend_adapt.problems.problem import Condition

_LARGEST = 4 << 20
# Options of a command line in a shell script: --name value, --name=value, or name.of.option=value as in hydra.
_FLAG = re.compile(r"--([\w.-]+)(?:[=\s]+(?!-)([^\s\\'\"]+|'[^']*'|\"[^\"]*\"))?")
_HYDRA = re.compile(r"(?<![\w-])\+{0,2}((?:\w+\.)+\w+)=([^\s\\]+)")
_WORD = re.compile(r"\w+")
_EXPORT = re.compile(r"(?m)(?:^|[\s;])(?:export\s+)?([A-Z][A-Z0-9_]{3,})=([^\s;\\]*)")


@dataclass(frozen=True)
class Place:
    """One request in a file, and its line.

    ``is_conditional``: it is in a branch that an option may switch off. ``command``: the first line of a shell command.
    """

    file: str
    line: int
    text: str
    is_conditional: bool = False
    command: int = 0

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.text}" if self.line else f"{self.file}: {self.text}"


Setting = tuple[str, str, Place]
"""A setting: its name, its value, and where it is set."""


@dataclass(frozen=True)
class Call:
    """A function call. ``arguments`` has the arguments with literal values; positional arguments are keyed by index."""

    name: str
    arguments: Mapping[str, str]
    place: Place


@dataclass(frozen=True)
class Reading:
    """The requests of files: imported modules, calls, settings, and variables that scripts export."""

    imports: tuple[tuple[str, Place], ...] = ()
    calls: tuple[Call, ...] = ()
    settings: tuple[Setting, ...] = ()
    environ: tuple[Setting, ...] = ()

    def places(self, condition: Condition) -> list[Place]:
        """Return the places that meet the condition's parts about files, or nothing if any part is not met."""
        found: list[list[Place]] = []
        if condition.imports:
            found.append(
                [
                    place
                    for name, place in self.imports
                    if condition.imports.fullmatch(name) and self._is_late(condition, place)
                ]
            )
        if condition.calls:
            found.append([one.place for one in self.calls if _is_such(one, condition)])
        for key, value in condition.settings:
            found.append(
                [place for name, text, place in self.settings if key.fullmatch(name) and value.fullmatch(text)]
            )
        if not found or not all(found) or any(name in condition.lacks for name, _, _ in self.settings):
            return []
        return list({str(place): place for places in found for place in places}.values())

    def _is_late(self, condition: Condition, place: Place) -> bool:
        """Return whether, before this place, the file imports the condition's ``after`` but not its ``imports``."""
        before = [name for name, other in self.imports if other.file == place.file and other.line < place.line]
        return condition.after is None or (
            any(map(condition.after.fullmatch, before))
            and not any(condition.imports is not None and condition.imports.fullmatch(name) for name in before)
        )

    def __add__(self, other: Reading) -> Reading:
        return Reading(
            self.imports + other.imports,
            self.calls + other.calls,
            self.settings + other.settings,
            self.environ + other.environ,
        )


def _is_such(call: Call, condition: Condition) -> bool:
    return (
        condition.calls is not None
        and bool(condition.calls.fullmatch(call.name))
        and all(value.fullmatch(call.arguments.get(key, "")) for key, value in condition.with_)
        and not any(key in call.arguments for key in condition.without)
    )


def read(file: Path) -> Reading:
    """Parse a file as Python, JSON or YAML by its suffix, and any other as a shell script.

    Raises:
        SettingsError: the file cannot be read, is larger than 4 MiB, or is not valid in its format.
    """
    try:
        with regular_files.open_binary(file) as stream:
            data = stream.read(_LARGEST + 1)
        if len(data) > _LARGEST:
            raise SettingsError(f"{file}: is larger than 4 MiB, expected a script or configuration — pass another file")
        # Decoded as Python does, by a byte order mark or coding line.
        encoding = tokenize.detect_encoding(io.BytesIO(data).readline)[0] if file.suffix == ".py" else "utf-8"
        text = data.decode(encoding)
    except SyntaxError as error:
        raise SettingsError(f"{file}: {error}, expected Python — correct it") from error
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "is not UTF-8"
        raise SettingsError(f"{file}: {why}, expected a script or configuration — correct the path") from error
    return _KINDS.get(file.suffix.lower(), _shell)(str(file), text)


def read_command(words: Sequence[str]) -> Reading:
    """Parse the options and assignments of a command line, but not the files that it names."""
    return _shell("command line", shlex.join(words))


def named_files(words: Sequence[str]) -> list[Path]:
    """Return the scripts and configurations among the arguments of a command line, including ``--option=FILE``."""
    paths = [Path(word.rpartition("=")[2] if word.startswith("-") else word) for word in words]
    return [one for one in dict.fromkeys(paths) if one.suffix.lower() in (*_KINDS, ".sh") and one.is_file()]


def _python(file: str, text: str) -> Reading:
    try:
        tree = ast.parse(text, file)
    except (SyntaxError, ValueError, RecursionError) as error:
        line = getattr(error, "lineno", None)
        where = f"{file}:{line}" if line else file
        raise SettingsError(f"{where}: {error}, expected Python — correct it") from error
    lines = text.splitlines()
    branches = [node for node in ast.walk(tree) if isinstance(node, (ast.If, ast.IfExp)) and not _is_main(node)]
    conditional = {id(inner) for node in branches for inner in ast.walk(node)}

    def place(node: ast.AST) -> Place:
        line = getattr(node, "lineno", 0)
        text = lines[line - 1].strip() if 0 < line <= len(lines) else ""
        return Place(file, line, text, id(node) in conditional)

    names: dict[str, str] = {}
    imports: list[tuple[str, Place]] = []
    calls: list[Call] = []
    settings: list[Setting] = []
    guarded = {id(inner) for node in ast.walk(tree) if isinstance(node, ast.Try) for inner in ast.walk(node)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                names[alias.asname or alias.name.partition(".")[0]] = (
                    alias.name if alias.asname else alias.name.partition(".")[0]
                )
                if id(node) not in guarded:
                    imports.append((alias.name, place(node)))
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                names[alias.asname or alias.name] = f"{node.module}.{alias.name}"
                if id(node) not in guarded:
                    imports.append((f"{node.module}.{alias.name}", place(node)))
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            name = _dotted(node.func, names)
            given = [(str(number), value) for number, value in enumerate(node.args)]
            given += [(keyword.arg, keyword.value) for keyword in node.keywords if keyword.arg]
            arguments = {key: _value(value, names) or "..." for key, value in given}
            calls.append(Call(name, arguments, place(node)))
            settings += [(key, arguments[key], place(value)) for key, value in given if arguments[key] != "..."]
            if name.rpartition(".")[2] == "add_argument":
                settings += _default(node, names, place)
        elif isinstance(node, ast.Dict):
            for key, item in zip(node.keys, node.values, strict=True):
                if isinstance(key, ast.Constant) and (value := _value(item, names)) is not None:
                    settings.append((str(key.value), value, place(item)))
        elif isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value is not None:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            for target in targets:
                key_name = (
                    target.id
                    if isinstance(target, ast.Name)
                    else target.attr
                    if isinstance(target, ast.Attribute)
                    else _key(target)
                )
                if key_name and (value := _value(node.value, names)) is not None:
                    settings.append((key_name, value, place(node)))
                if isinstance(target, ast.Attribute) and (full := _dotted(target, names)) and value is not None:
                    settings.append((full, value, place(node)))
    return Reading(tuple(imports), tuple(calls), tuple(settings))


def _is_main(node: ast.If | ast.IfExp) -> bool:
    """Return whether a statement is ``if __name__ == "__main__"``."""
    return any(isinstance(inner, ast.Name) and inner.id == "__name__" for inner in ast.walk(node.test))


def _default(node: ast.Call, names: dict[str, str], place: Any) -> Iterator[Setting]:
    option = node.args[0].value if node.args and isinstance(node.args[0], ast.Constant) else ""
    for keyword in node.keywords:
        if keyword.arg == "default" and isinstance(option, str) and (value := _value(keyword.value, names)) is not None:
            yield option.lstrip("-").replace("-", "_"), value, place(keyword.value)


def _key(target: ast.AST) -> str:
    """Return the key of ``mapping["key"] = value``."""
    index = target.slice if isinstance(target, ast.Subscript) else None
    return str(index.value) if isinstance(index, ast.Constant) else ""


def _dotted(node: ast.AST, names: dict[str, str]) -> str:
    """Return the full name of a function. A method of an expression is named ``.method``."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if isinstance(node, ast.Name):
        parts.append(names.get(node.id, f".{node.id}" if parts else node.id))
        if node.id not in names and len(parts) > 1:
            return f".{parts[0]}"
        return ".".join(reversed(parts))
    return f".{parts[0]}" if parts else ""


def _value(node: ast.AST, names: dict[str, str]) -> str | None:
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.Attribute):
        return _dotted(node, names) or None
    if isinstance(node, ast.Dict):
        return json.dumps(
            {
                _value(key, names) if key else "": _value(item, names)
                for key, item in zip(node.keys, node.values, strict=True)
            }
        )
    return None


def _json(file: str, text: str) -> Reading:
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise SettingsError(f"{file}: {error}, expected JSON — correct it") from error
    return Reading(settings=tuple(_flat(file, _lines_of_words(text), data)))


def _yaml(file: str, text: str) -> Reading:
    from ascend_adapt import bounded_yaml

    try:
        data = bounded_yaml.load(text)
    except ValueError as error:
        raise SettingsError(f"{file}: {' '.join(str(error).split())}, expected YAML — correct it") from error
    return Reading(settings=tuple(_flat(file, _lines_of_words(text), data)))


def _lines_of_words(text: str) -> dict[str, int]:
    """Return the number of the first line with each word."""
    lines: dict[str, int] = {}
    for number, line in enumerate(text.splitlines(), 1):
        for word in _WORD.findall(line):
            lines.setdefault(word, number)
    return lines


def _flat(file: str, lines: Mapping[str, int], data: Any, above: tuple[str, ...] = ()) -> Iterator[Setting]:
    """Yield each leaf twice: by its last key, and by its path with dots."""
    if isinstance(data, dict):
        for key, value in data.items():
            yield from _flat(file, lines, value, (*above, str(key)))
    elif isinstance(data, list):
        for value in data:
            yield from _flat(file, lines, value, above)
    elif above:
        word = _WORD.search(above[-1])
        place = Place(file, lines.get(word[0], 0) if word else 0, f"{above[-1]}: {data}")
        for name in dict.fromkeys((above[-1], ".".join(above))):
            yield name, str(data), place


def _shell(file: str, text: str) -> Reading:
    settings, environ = [], []
    first, is_continued = 0, False
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith("#"):
            continue
        first, is_continued = first if is_continued else number, line.rstrip().endswith("\\")
        place = Place(file, number, line.strip().rstrip("\\").strip(), command=first)
        for name, value in (*_FLAG.findall(line), *_HYDRA.findall(line)):
            settings.append((name.replace("-", "_"), value.strip("'\"") or "True", place))
        for name, value in _EXPORT.findall(line):
            environ.append((name, value.strip("'\""), place))
        if place.text.startswith("unset "):
            environ += [(name, "", place) for name in place.text.split()[1:]]
    return Reading(settings=tuple(settings), environ=tuple(environ))


_KINDS = {".py": _python, ".json": _json, ".yaml": _yaml, ".yml": _yaml}
