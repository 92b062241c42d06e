"""Changed copies of YAML and JSON files, which keep comments and order, and their differences from the originals."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ascend_adapt import bounded_yaml, regular_files
from ascend_adapt.errors import ConfigError, one_line


@dataclass(frozen=True)
class ConfigurationFile:
    """A user's configuration file (never written) and its values; dashes in keys are replaced by underscores."""

    path: Path
    text: str
    values: dict[str, Any]

    @classmethod
    def read(cls, path: Path) -> ConfigurationFile:
        """Read a YAML or JSON file.

        Raises:
            ConfigError: the file cannot be read, or is not a mapping.
        """
        try:
            text = regular_files.read_text(path)
            values = json.loads(text) if path.suffix == ".json" else bounded_yaml.load(text)
        except (OSError, ValueError, RecursionError) as error:
            raise ConfigError(f"{path}: {one_line(error)}, expected YAML or JSON — correct the file") from error
        if not isinstance(values, dict):
            raise ConfigError(f"{path}: is a {type(values).__name__}, expected keys and values — correct the file")
        return cls(path, text, {_plain(key): value for key, value in values.items()})

    def get(self, keys: tuple[str, ...]) -> Any:
        """Return the value at a path of nested keys, or None."""
        value: Any = self.values
        for key in keys:
            value = value.get(key) if isinstance(value, Mapping) else None
        return value

    def write(self, folder: Path, changes: Mapping[tuple[str, ...], Any]) -> list[str]:
        """Write a copy with these values into a folder; return the lines of the diff.

        Raises:
            ConfigError: the values cannot be changed in the text of this file.
        """
        text = self.text
        for keys, value in changes.items():
            text = _changed(text, keys, self.get(keys), value, is_json=self.path.suffix == ".json")
        copy = folder / self.path.name
        copy.write_text(text, encoding="utf-8")
        written = ConfigurationFile.read(copy)
        wrong = [".".join(keys) for keys, value in changes.items() if written.get(keys) != value]
        if wrong:
            raise ConfigError(f"{self.path}: {', '.join(wrong)} could not be changed in a copy — change them yourself")
        lines = difflib.unified_diff(
            self.text.splitlines(), text.splitlines(), str(self.path), str(copy), lineterm="", n=0
        )
        return list(lines)


def _changed(text: str, keys: tuple[str, ...], old: Any, new: Any, *, is_json: bool) -> str:
    """Return the text with the value at a key path replaced, or inserted after the opening brace of its mapping."""
    begin = 0
    for key in keys[:-1]:
        section = re.compile(_key(key)).search(text, begin)
        if section is None:
            inner = {keys[-1]: new}
            return _inserted(text, begin, f'"{key}": {json.dumps(inner)}')
        begin = section.end()
    shown = json.dumps(new) if is_json or not isinstance(new, bool) else str(new).lower()
    found = re.compile(_key(keys[-1]) + r"(?P<value>[^,}\n#]*[^,}\n#\s])").search(text, begin)
    if old is None or found is None:
        return _inserted(text, begin, f'"{keys[-1]}": {shown}')
    return text[: found.start("value")] + shown + text[found.end("value") :]


def _key(name: str) -> str:
    return rf"(?m)(?<![\w-])[\"']?{name.replace('_', '[-_]')}[\"']?\s*:\s*"


def _inserted(text: str, begin: int, entry: str) -> str:
    brace = text.find("{", begin)
    if brace == -1:
        return text.rstrip("\n") + "\n" + entry + "\n"
    follows = text[brace + 1 :].lstrip()
    return text[: brace + 1] + f"\n  {entry}" + ("" if follows.startswith("}") else ",") + text[brace + 1 :]


def _plain(key: Any) -> str:
    return str(key).replace("-", "_")
