"""GPT-NeoX's YAML files: several files combined, dashes or underscores in keys, typed values.

Sources: EleutherAI/gpt-neox@9610391a and @ea7aefd8 megatron/neox_arguments/arguments.py from_ymls, validate_types.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from ascend_adapt import bounded_yaml, regular_files
from ascend_adapt.errors import ConfigError, one_line


class _Loader(yaml.SafeLoader):
    """YAML loader that rejects duplicate keys."""


def _mapping(loader: _Loader, node: yaml.MappingNode) -> dict[Any, Any]:
    seen: set[Any] = set()
    for key, _ in node.value:
        # Merged keys (`<<`) may be overridden; keys that are not names are rejected below.
        if key.tag == "tag:yaml.org,2002:merge" or not isinstance(key, yaml.ScalarNode):
            continue
        name = loader.construct_object(key)
        name = name.replace("-", "_") if isinstance(name, str) else name
        if name in seen:
            raise ConfigError(f"{name}: is given twice, again on line {key.start_mark.line + 1} — remove one of them")
        seen.add(name)
    return yaml.SafeLoader.construct_mapping(loader, node, deep=True)


_Loader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _mapping)


def read_files(paths: Sequence[str], folder: str | None) -> dict[str, Any]:
    """Return the keys of all files, with underscores; a file name may omit ``.yml``.

    Raises:
        ConfigError: a file cannot be read or is not a mapping, or two files have the same key.
    """
    values: dict[str, Any] = {}
    home: dict[str, str] = {}
    for name in paths:
        path = Path(folder or "") / (name if name.endswith((".yml", ".yaml", ".json")) else f"{name}.yml")
        for key, value in _read(path).items():
            plain = str(key).replace("-", "_")
            if plain in home:
                raise ConfigError(f"{path}: {key} is also in {home[plain]} — keep it in one of them")
            home[plain] = str(path)
            values[plain] = value
    return values


def _read(path: Path) -> dict[str, Any]:
    try:
        content = parsed(regular_files.read_text(path), str(path))
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror} — pass a readable YAML file, and its folder with -d") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: is not a text file ({error}) — correct it") from error
    if not isinstance(content, dict):
        raise ConfigError(f"{path}: is a {type(content).__name__}, expected keys and values — correct it")
    return content


def parsed(text: str, where: str) -> Any:
    """Parse YAML text and return its value.

    Raises:
        ConfigError: the text is not valid YAML, or has a key twice.
    """
    try:
        return bounded_yaml.load(text, _Loader)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from error
    except ValueError as error:
        raise ConfigError(f"{where}: is not valid YAML ({one_line(error)}) — correct it") from error


def converted(name: str, value: Any, kind: str, notes: list[str]) -> Any:
    """Return ``value`` converted to the recorded type ``kind``; lenient conversions add a note.

    Quoted "True" and "False" are booleans, integers are accepted for floats, and choices ignore case.

    Raises:
        ConfigError: the value has another type, or is not one of the choices.
    """
    if value is None or kind == "Any":
        return value
    literal = re.search(r"Literal\[(.*)\]$", kind)
    if literal and not kind.startswith("Union"):
        return _choice(name, value, list(ast.literal_eval(f"[{literal.group(1)}]")))
    kinds = set(re.findall(r"\b(int|float|bool|str|list|List|dict)\b", kind))
    if "bool" in kinds and isinstance(value, str) and value.lower() in ("true", "false"):
        notes.append(f'{name}: "{value}" in quotes is read as {value.lower()}; upstream raises an error')
        return value.lower() == "true"
    if isinstance(value, bool) and "bool" in kinds:
        return value
    if isinstance(value, str) and kinds & {"int", "float"}:
        value = _number(name, value, kind)  # YAML 1.1 reads 1e-5 as a string
    fits = {
        "int": isinstance(value, int) or (isinstance(value, float) and value.is_integer()),
        "float": isinstance(value, (int, float)),
        "str": isinstance(value, str),
        "list": isinstance(value, list),
        "List": isinstance(value, list),
        "dict": isinstance(value, Mapping),
    }
    matching = [one for one in ("int", "float", "str", "list", "List", "dict") if one in kinds and fits[one]]
    if not matching or isinstance(value, bool):
        raise ConfigError(f"{name}: {value!r}, expected {kind} — correct it")
    return {"int": int, "float": float}.get(matching[0], lambda same: same)(value)


def _number(name: str, text: str, kind: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ConfigError(f"{name}: {text!r}, expected {kind} — correct it") from None


def _choice(name: str, value: Any, choices: list[Any]) -> Any:
    for choice in choices:
        if value == choice or (isinstance(value, str) and str(choice).lower() == value.lower()):
            return choice
    raise ConfigError(f"{name}: {value!r}, expected one of {', '.join(map(str, choices))} — choose one")
