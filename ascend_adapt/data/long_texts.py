"""Where a long text may be cut so that the ids of its parts, one behind the other, are the ids of the whole.

A byte-level BPE looks at one word at a time, and its regular expression alone says where words begin: no look behind,
and no look ahead but from white space. So a letter or digit ends a word when a space, line break, comma or full stop
follows, whatever comes later, and there the next word begins, whatever came before. Where anything else might look
across a cut, nothing is cut.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tokenizers import Tokenizer

# Characters; Hugging Face's tokenizers hold about 150 bytes for each until a text is done.
PART_LENGTH = 16 << 10

# Scripts whose letters have been letters in every version of Unicode that a library may know.
_LETTERS = "0-9A-Za-zÀ-ÖØ-öø-ÿΑ-ΡΣ-Ωα-ωА-яء-غف-يא-תअ-हぁ-ゖァ-ヺ一-龥가-힣"
_CUT = re.compile(f"[{_LETTERS}](?=[ \\t\\n,.，。、\u3000])")
_ACROSS_A_CUT = re.compile(f"[{_LETTERS}][ \\t\\n,.，。、\u3000]")

# Those of Llama 3 and Qwen 2, which are GPT-4's with one word for up to three digits, or for each.
_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{digits}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
KNOWN_WORDS = frozenset({_WORDS.format(digits="{1,3}"), _WORDS.format(digits="")})


def parts_of(text: str) -> list[str]:
    """Return ``text`` in parts of PART_LENGTH characters, longer where it has no place for a cut."""
    parts, begin = [], 0
    while len(text) - begin > PART_LENGTH and (cut := _CUT.search(text, begin + PART_LENGTH - 1)):
        parts.append(text[begin : cut.end()])
        begin = cut.end()
    return [*parts, text[begin:]] if begin < len(text) or not parts else parts


def part_function(tokenizer: Tokenizer) -> Callable[[str], list[str]]:
    """Return parts_of if the ids of ``tokenizer`` are proven to be the same for parts, else what cuts nothing."""
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
    """What a tokenizer.json says of added tokens; before 0.14 the library has no method that tells them."""
    told: list[dict[str, Any]] = json.loads(tokenizer.to_str())["added_tokens"]
    return told


def _words_are_known(pre_tokenizer: dict[str, Any]) -> bool:
    steps = pre_tokenizer.get("pretokenizers", [pre_tokenizer])
    *splits, last = steps or [{}]
    if last.get("type") != "ByteLevel" or last.get("add_prefix_space", True):
        return False
    if not splits:
        return bool(last.get("use_regex", True))  # GPT-2's
    return (
        len(splits) == 1
        and splits[0].get("type") == "Split"
        and splits[0].get("behavior") == "Isolated"
        and not splits[0].get("invert", True)
        and splits[0].get("pattern", {}).get("Regex") in KNOWN_WORDS
        and not last.get("use_regex", True)
    )


def _settings(component: Any) -> dict[str, Any]:
    """What a tokenizer.json says of one component; {} where it has none."""
    return {} if component is None else json.loads(component.__getstate__())
