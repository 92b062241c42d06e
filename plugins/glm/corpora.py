"""GLM's corpora lie at paths that are written in its code: a path given as --train-data is one more."""

from __future__ import annotations

import os
from typing import Any

from ascend_adapt import Symptom, wrap


@wrap(
    "data_utils:get_dataset",
    host="glm",
    why="each corpus lies at a path of the authors' machines, such as /mnt/train, and no argument names another",
    until="GLM takes the path of a corpus as an argument",
    without="crash",
    symptom=Symptom("path = dataset.PATH"),
)
def corpus_at_a_path(wrapped: Any, instance: None, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Read a file or folder of .jsonl files, {"text": ...} in each line, as GLM reads the Pile."""
    from data_utils import corpora

    class CorpusAtAPath(corpora.Pile):  # type: ignore[misc]
        """The Pile, or lines that do not say which part of it they are."""

        PATH = args[0] if args else kwargs["name"]

        def process_line(self, data: dict[str, Any], tokenizer: Any, tokenize: bool) -> Any:
            return super().process_line({"meta": {"pile_set_name": "text"}, **data}, tokenizer, tokenize)

    if CorpusAtAPath.PATH not in corpora.NAMED_CORPORA and os.path.exists(CorpusAtAPath.PATH):
        corpora.NAMED_CORPORA[CorpusAtAPath.PATH] = CorpusAtAPath
    return wrapped(*args, **kwargs)
