"""Corpus for comparing tools: equal on every host, with the known differences of tokenizers.

python tests/data/corpus.py FILE.jsonl
"""

from __future__ import annotations

import json
import random
import sys

TEXT = (
    "the of and to in a is that it was for on are as with his they I'm you've "
    "she'll don't WE'RE it's 'quoted' naïve café Straße œuvre Ångström ﬁne 12345 "
    "3.14159 ½ x² 1,000,000 e=mc² 你好 世界。 こんにちは 안녕하세요 Привет שלום مرحبا नमस्ते ไทย 😀 "
    "👩\u200d👩\u200d👧 🇨🇳 def return lambda self.x == != >= -> // /* */ <b> </b> &amp; "
    "http://example.com/?a=b&c=%20 user@example.com \\n \\u0041 #tag "
)
WORDS = TEXT.split()
GAPS = [" "] * 24 + ["  ", "   ", "\n", "\n\n", "\t", "\r\n", "\u00a0", "\u3000", "", "", "...", "\u200b"]


def documents(count: int = 500, seed: int = 8) -> list[str]:
    """Texts of up to some thousand words; every fiftieth is empty."""
    dice = random.Random(seed)
    texts = []
    for number in range(count):
        words = int(dice.paretovariate(0.8) * 12) % 3000
        text = "".join(dice.choice(WORDS) + dice.choice(GAPS) for _ in range(words))
        texts.append("" if number % 50 == 49 else text or "x")
    return texts


def json_lines(texts: list[str]) -> bytes:
    """One document a line, every other with its text escaped to ASCII."""
    lines = (json.dumps({"text": text, "n": n}, ensure_ascii=bool(n % 2)) for n, text in enumerate(texts))
    return "".join(line + "\n" for line in lines).encode()


if __name__ == "__main__":
    with open(sys.argv[1], "wb") as stream:
        stream.write(json_lines(documents()))
