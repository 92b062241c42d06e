"""Accepts both ``--local-rank`` and ``--local_rank``: a launcher may pass one while the script declares the other."""

from __future__ import annotations

import argparse
import functools
import sys
from collections.abc import Sequence
from typing import Any

_SPELLINGS = ("--local-rank", "--local_rank")


def accept_both_spellings() -> None:
    """Make every argparse parser of this process accept the spelling that it did not declare.

    torch.distributed.launch passes --local_rank up to torch 1.13, and --local-rank from torch 2.0 on. DeepSpeed passes
    --local_rank.
    """
    parse = argparse.ArgumentParser.parse_known_args
    if hasattr(parse, "ascend_adapt_spelling"):
        return

    @functools.wraps(parse)
    def parse_known_args(
        self: argparse.ArgumentParser, args: Sequence[str] | None = None, namespace: Any = None
    ) -> Any:
        words = sys.argv[1:] if args is None else args
        return parse(self, as_declared(words, self._option_string_actions), namespace)

    vars(parse_known_args)["ascend_adapt_spelling"] = True
    argparse.ArgumentParser.parse_known_args = parse_known_args  # type: ignore[assignment, method-assign]


def as_declared(words: Sequence[str], declared: Any) -> list[str]:
    """Return the arguments with the local rank option spelled as in ``declared``."""
    spelt: list[str] = []
    for word in words:
        name, equals, value = word.partition("=")
        if name in _SPELLINGS and name not in declared:
            (other,) = (spelling for spelling in _SPELLINGS if spelling != name)
            name = other if other in declared else name
        spelt.append(name + equals + value)
    return spelt
