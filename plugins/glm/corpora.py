"""A path as --train-data: GLM only knows corpora at paths that are written in its code."""

from __future__ import annotations

import os
from typing import Any

from ascend_adapt import Symptom, wrap


@wrap(
    "data_utils:get_dataset",
    host="glm",
    why="the path of each corpus is hard-coded, such as /mnt/train, and no argument sets another",
    until="GLM takes the path of a corpus as an argument",
    without="crash",
    symptom=Symptom("path = dataset.PATH"),
)
def corpus_at_a_path(wrapped: Any, instance: None, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Read a .jsonl file, or a folder of them, one {"text": ...} per line, as GLM reads the Pile."""
    from data_utils import corpora

    class CorpusAtAPath(corpora.Pile):  # type: ignore[misc]
        """The Pile; lines may omit which subset they are from."""

        PATH = args[0] if args else kwargs["name"]

        def process_line(self, data: dict[str, Any], tokenizer: Any, tokenize: bool) -> Any:
            return super().process_line({"meta": {"pile_set_name": "text"}, **data}, tokenizer, tokenize)

    if CorpusAtAPath.PATH not in corpora.NAMED_CORPORA and os.path.exists(CorpusAtAPath.PATH):
        corpora.NAMED_CORPORA[CorpusAtAPath.PATH] = CorpusAtAPath
    return wrapped(*args, **kwargs)
