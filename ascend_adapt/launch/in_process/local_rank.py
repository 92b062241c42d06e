"""``--local-rank`` and ``--local_rank``: a launcher passes one spelling, a script may declare the other."""

from __future__ import annotations

import argparse
import functools
import sys
from collections.abc import Sequence
from typing import Any

_SPELLINGS = ("--local-rank", "--local_rank")


def accept_both_spellings() -> None:
    """Let every parser of this process take the launcher's spelling for the one that it declares.

    torch.distributed.launch passes --local_rank up to torch 1.13 and --local-rank from 2.0; DeepSpeed --local_rank.
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
    """Return the arguments with the local rank spelt as in ``declared``, if only the other spelling is there."""
    told: list[str] = []
    for word in words:
        name, equals, value = word.partition("=")
        if name in _SPELLINGS and name not in declared:
            (other,) = (spelling for spelling in _SPELLINGS if spelling != name)
            name = other if other in declared else name
        told.append(name + equals + value)
    return told
