"""What the code bases' own tools that tokenize need and cannot have: read, and refused where it is really used."""

from __future__ import annotations

import json
import lzma

import pytest
from stand_ins import Site

from ascend_adapt_plugins.old_dependencies.lm_dataformat import Reader

GPT_NEOX = {"megatron__neox_arguments____init__": ""}
BIGSCIENCE = {"megatron__arguments": "", "megatron__enums": ""}


# Where this runs, they may be installed.
WITHOUT_BOTH = """
import importlib.machinery, runpy, sys

class Finder(importlib.machinery.PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        hidden = name.partition(".")[0] in ("nltk", "lm_dataformat")
        return None if hidden else super().find_spec(name, path, target)

sys.meta_path[sys.meta_path.index(importlib.machinery.PathFinder)] = Finder
import ascend_adapt
ascend_adapt.enable(device="cpu")
runpy.run_path(sys.argv[1], run_name="__main__")
"""


def run_tool(site: Site, tool: str) -> str:
    """Run ``tool``, in the folder tools of a code base."""
    path = site.folder / "tools" / "preprocess_data.py"
    path.parent.mkdir()
    path.write_text(tool)
    return site.run(WITHOUT_BOTH, str(path), ASCEND_ADAPT_PLUGINS="old_dependencies")


def test_documents_are_read_as_lm_dataformat_reads_them(tmp_path) -> None:
    rows = ["alone", {"text": ["two", "paragraphs"], "meta": {"of": "a book"}}, {"text": "ünï"}]
    lines = "\n".join(json.dumps(row) for row in rows) + "\n\n"
    (tmp_path / "a.jsonl").write_text(lines)
    with lzma.open(tmp_path / "b.jsonl.xz", "wt") as file:
        file.write(lines)
    texts = ["alone", "two\n\nparagraphs", "ünï"]
    assert list(Reader(str(tmp_path / "a.jsonl")).stream_data()) == texts
    assert list(Reader(str(tmp_path)).stream_data()) == texts * 2
    read = list(Reader(str(tmp_path / "a.jsonl")).stream_data(get_meta=True))
    assert read == list(zip(texts, ({}, {"of": "a book"}, {}), strict=True))


def test_gpt_neox_tokenizes_without_lm_dataformat(site: Site, tmp_path) -> None:
    site.write(**GPT_NEOX)
    (tmp_path / "text.jsonl").write_text('{"text": "some words"}\n')
    tool = f"import lm_dataformat as lmd\nprint(*lmd.Reader({str(tmp_path / 'text.jsonl')!r}).stream_data())\n"
    assert "some words" in run_tool(site, tool)


@pytest.mark.parametrize("use", ["CustomLanguageVars()", "nltk.load('punkt')", "nltk.download('punkt')"])
def test_bigscience_tokenizes_without_nltk_until_sentences_are_asked_for(site: Site, use: str) -> None:
    site.write(**BIGSCIENCE)
    reported = run_tool(
        site,
        f"""
import nltk
class CustomLanguageVars(nltk.tokenize.punkt.PunktLanguageVars):
    pass
try:
    {use}
except ModuleNotFoundError as error:
    print(error)
""",
    )
    assert "nltk: is not installed, but --split-sentences needs it" in reported
