"""Corpora of GLM at paths that differ from those in its code, and GLM's language filter."""

from __future__ import annotations

import importlib
import importlib.util
import os
from typing import Any

from ascend_adapt import Call, Symptom, wrap
from ascend_adapt.errors import DataError

# Paths of fastText's language identification model: GLM's code expects the first, its guide uses the second.
LANGUAGES = ("/mnt/lid.176.bin", "/dataset/fd5061f6/english_data/lid.176.bin", "lid.176.bin")


@wrap(
    "data_utils:get_dataset",
    host="glm",
    why="the path of each corpus is hard-coded, such as /mnt/train, and no argument sets another",
    until="GLM takes the path of a corpus as an argument",
    without="crash",
    symptom=Symptom("path = dataset.PATH"),
)
def corpus_path(call: Call) -> Any:
    """Read .jsonl files (a file or a folder, one {"text": ...} per line) as GLM reads the Pile.

    A named corpus such as ``pile`` is read from the working folder if it is not at GLM's path.
    """
    from data_utils import corpora

    name = call["name"]
    own = corpora.NAMED_CORPORA.get(name)
    if os.path.exists(name) and (own is None or not _is_there(own.PATH)):
        corpora.NAMED_CORPORA[name] = _at(name, own or corpora.Pile, corpora.Pile)
    return call.proceed()


def _is_there(path: str) -> bool:
    """Return whether a path holds a corpus, or GLM's tokenized files of a corpus."""
    tokenized = os.path.splitext(path)[0]
    return any(os.path.exists(one) for one in (path, f"{tokenized}.lazy", f"{tokenized}.scatter"))


def _at(path: str, kind: Any, pile: Any) -> Any:
    if not issubclass(kind, pile):
        return type("CorpusAtAPath", (kind,), {"PATH": path})

    class PileAtAPath(kind):  # type: ignore[misc]
        """The Pile, with lines that may omit their subset."""

        PATH = path

        def process_line(self, data: dict[str, Any], tokenizer: Any, tokenize: bool) -> Any:
            return super().process_line({"meta": {"pile_set_name": "text"}, **data}, tokenizer, tokenize)

    return PileAtAPath


@wrap(
    "data_utils.datasets:BlockDataset.__init__",
    host="glm",
    why="--filter-english, which config/ds_block_10B.sh sets, loads /mnt/lid.176.bin with fasttext for every "
    "corpus, no argument sets another path, and fasttext's predict() fails with numpy 2",
    until="GLM takes the path of the model as an argument, and fasttext supports numpy 2",
    without="crash",
    symptom=Symptom("fasttext.load_model('/mnt/lid.176.bin')"),
)
def english_filter(call: Call) -> None:
    """Load the model from GLM's path or the working folder.

    Raises:
        DataError: the model or fasttext is missing.
    """
    filters = call["filter_english"]
    if filters:
        call["filter_english"] = False  # GLM's code would load the model itself.
    model = Languages.load("--filter-english") if filters else None
    call.proceed()
    if filters:
        call.instance.filter_english, call.instance.model = True, model


@wrap(
    "data_utils.corpora:OpenWebText.__init__",
    host="glm",
    why="it loads /dataset/fd5061f6/english_data/lid.176.bin with fasttext, whose predict() fails with numpy 2",
    until="GLM takes the path of the model as an argument, and fasttext supports numpy 2",
    without="crash",
    symptom=Symptom("fasttext.load_model('/dataset/fd5061f6/english_data/lid.176.bin')"),
)
def openwebtext_language_filter(call: Call) -> None:
    """Load fasttext's language identification model from either of GLM's paths or the working folder.

    Raises:
        DataError: the model or fasttext is missing.
    """
    from data_utils import corpora

    model = Languages.load("openwebtext")
    super(corpora.OpenWebText, call.instance).__init__(*call.args, **call.kwargs)
    call.instance.model = model


class Languages:
    """A fastText model without the part of predict() that fails with numpy 2."""

    def __init__(self, model: Any) -> None:
        self._model = model

    @classmethod
    def load(cls, asked_by: str) -> Languages:
        """Load the model.

        Raises:
            DataError: the model or fasttext is missing.
        """
        path = next((one for one in LANGUAGES if os.path.isfile(one)), None)
        missing = [*(["package fasttext"] if importlib.util.find_spec("fasttext") is None else [])]
        missing += [] if path else [f"fastText's lid.176.bin at {LANGUAGES[0]} or in {os.getcwd()}"]
        if missing:
            raise DataError(
                f"{asked_by}: {' and '.join(missing)} not found, expected both — provide what is missing, or remove "
                f"{asked_by}"
            )

        return cls(importlib.import_module("fasttext").load_model(path))

    def predict(self, text: str) -> tuple[tuple[str, ...], list[float]]:
        """Return the label of the most likely language, and its probability."""
        found = self._model.f.predict(f"{text}\n", 1, 0.0, "strict")
        return tuple(label for _, label in found), [probability for probability, _ in found]
