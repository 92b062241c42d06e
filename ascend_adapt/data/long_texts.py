"""Cuts long texts where the concatenated ids of the parts equal the ids of the full text.

A byte-level BPE encodes one word at a time, and its regular expression alone decides where words begin. The expression
has no look-behind, and looks ahead only from white space. So a letter or digit before a space, line break, comma or
full stop ends a word, and the next word begins there, independent of the rest of the text. If any other component of a
tokenizer might look across a cut, texts are not cut.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tokenizers import Tokenizer

# In characters. While Hugging Face's tokenizers encode a text, they hold about 150 bytes per character.
PART_LENGTH = 16 << 10

# Characters that are letters in every version of Unicode that a library may use.
_LETTERS = "0-9A-Za-zÀ-ÖØ-öø-ÿΑ-ΡΣ-Ωα-ωА-яء-غف-يא-תअ-हぁ-ゖァ-ヺ一-龥가-힣"
_CUT = re.compile(f"[{_LETTERS}](?=[ \\t\\n,.，。、\u3000])")
_ACROSS_A_CUT = re.compile(f"[{_LETTERS}][ \\t\\n,.，。、\u3000]")

# The expressions of Llama 3 and Qwen 2: that of GPT-4, with words of up to three digits, or of one digit.
_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{digits}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
KNOWN_WORDS = frozenset({_WORDS.format(digits="{1,3}"), _WORDS.format(digits="")})


def parts_of(text: str) -> list[str]:
    """Return ``text`` in parts of PART_LENGTH characters, or longer parts where it cannot be cut."""
    parts, begin = [], 0
    while len(text) - begin > PART_LENGTH and (cut := _CUT.search(text, begin + PART_LENGTH - 1)):
        parts.append(text[begin : cut.end()])
        begin = cut.end()
    return [*parts, text[begin:]] if begin < len(text) or not parts else parts


def part_function(tokenizer: Tokenizer) -> Callable[[str], list[str]]:
    """Return ``parts_of`` if ``tokenizer`` provably gives the same ids for parts, else a function that cuts nothing."""
    return parts_of if _one_word_at_a_time(tokenizer) else _whole


def _whole(text: str) -> list[str]:
    return [text]


def _one_word_at_a_time(tokenizer: Tokenizer) -> bool:
    return (
        type(tokenizer.model).__name__ == "BPE"
        and _settings(tokenizer.normalizer).get("type") in (None, "NFC")
        and _settings(tokenizer.post_processor).get("type") in (None, "ByteLevel")
        and _words_are_known(_settings(tokenizer.pre_tokenizer))
        and not any(
            token["lstrip"] or token["rstrip"] or token["single_word"] or _ACROSS_A_CUT.search(token["content"])
            for token in _added_tokens(tokenizer)
        )
    )


def _added_tokens(tokenizer: Tokenizer) -> list[dict[str, Any]]:
    """Return the added tokens of a tokenizer. Before version 0.14, the library has no method for this."""
    added: list[dict[str, Any]] = json.loads(tokenizer.to_str())["added_tokens"]
    return added


def _words_are_known(pre_tokenizer: dict[str, Any]) -> bool:
    steps = pre_tokenizer.get("pretokenizers", [pre_tokenizer])
    *splits, last = steps or [{}]
    if last.get("type") != "ByteLevel" or last.get("add_prefix_space", True):
        return False
    if not splits:
        return bool(last.get("use_regex", True))  # the expression of GPT-2
    return (
        len(splits) == 1
        and splits[0].get("type") == "Split"
        and splits[0].get("behavior") == "Isolated"
        and not splits[0].get("invert", True)
        and splits[0].get("pattern", {}).get("Regex") in KNOWN_WORDS
        and not last.get("use_regex", True)
    )


def _settings(component: Any) -> dict[str, Any]:
    """Return the settings of one component of a tokenizer, {} if it does not have the component."""
    return {} if component is None else json.loads(component.__getstate__())
