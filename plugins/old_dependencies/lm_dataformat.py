"""Provides ``lm_dataformat``, which GPT-NeoX's requirements install from a GitHub commit."""

from __future__ import annotations

import json
from collections.abc import Iterator
from types import ModuleType
from typing import Any

from ascend_adapt import provide

from ..code_bases import GPT_NEOX

PARAGRAPHS = "\n\n"


class Reader:
    """Reader for the documents of a file or folder, in the formats of ``ascend-adapt preprocess --input``.

    Source of the line format: lm_dataformat 0.0.20, handle_jsonl.
    """

    def __init__(self, in_path: str) -> None:
        self.in_path = in_path

    def stream_data(self, get_meta: bool = False, threaded: bool = False) -> Iterator[Any]:
        """Yield each text, or each (text, meta) with ``get_meta``."""
        from ascend_adapt.data.inputs import find_inputs, open_input

        for source in find_inputs([self.in_path]):
            with open_input(source) as (lines, _):
                for line in lines:
                    if line.strip():
                        yield _document(json.loads(line), get_meta)


def _document(read: Any, get_meta: bool) -> Any:
    if isinstance(read, str):
        return (read, {}) if get_meta else read
    text = PARAGRAPHS.join(read["text"]) if isinstance(read["text"], list) else read["text"]
    return (text, read.get("meta", {})) if get_meta else text


@provide(
    "lm_dataformat",
    host=GPT_NEOX,
    why="the tokenizing tools import it, and requirements.txt installs it from GitHub, which clusters rarely reach",
    until="GPT-NeoX requires a release of it, or reads JSON lines without it",
    without="crash",
)
def lm_dataformat(module: ModuleType) -> None:
    """Provide the document reader."""
    module.Reader = Reader  # type: ignore[attr-defined]
