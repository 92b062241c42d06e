"""argparse `type=` functions for `ascend-run`'s options; each raises ArgumentTypeError for an invalid value."""

from __future__ import annotations

import argparse

from ascend_adapt.alignment.selection import Selection
from ascend_adapt.emulation import SOCS
from ascend_adapt.errors import SettingsError
from ascend_adapt.whole_numbers import whole_number

_MOST = 10**6
DEVICES = ("auto", "npu", "cuda", "cpu", "npu-emulated")


def device(text: str) -> str:
    """Parse a device kind, followed by `:SOC` for an emulated NPU."""
    kind, colon, soc = text.partition(":")
    if kind not in DEVICES or (colon and kind != "npu-emulated"):
        raise argparse.ArgumentTypeError(f"invalid choice: {text!r} (choose from {', '.join(DEVICES)})")
    if colon and soc not in SOCS:
        raise argparse.ArgumentTypeError(f"invalid choice: {soc!r} (choose from {', '.join(SOCS)})")
    return text


def steps(text: str) -> str:
    """Parse a selection of training steps, counted from 1."""
    return _selection(text, 1)


def ranks(text: str) -> str:
    """Parse a selection of ranks, counted from 0."""
    return _selection(text, 0)


def _selection(text: str, least: int) -> str:
    try:
        Selection.parse(text, "", least)
    except SettingsError:
        raise argparse.ArgumentTypeError(
            f"{text!r}, expected numbers from {least} and ranges such as 1,10-12, or all"
        ) from None
    return text


def words(text: str) -> tuple[str, ...]:
    """Split comma-separated words."""
    return tuple(word.strip() for word in text.split(",") if word.strip())


def _number(text: str) -> int:
    number = whole_number(text.removeprefix("-"))
    if number is None:
        raise argparse.ArgumentTypeError(f"{text[:40]!r} is not an integer")
    if number > _MOST:
        raise argparse.ArgumentTypeError(f"{text!r} exceeds {_MOST}")
    return -number if text.startswith("-") else number


def at_least_one(text: str) -> int:
    """Parse an integer of at least 1."""
    number = _number(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is less than 1")
    return number


def at_least_zero(text: str) -> int:
    """Parse an integer of at least 0."""
    number = _number(text)
    if number < 0:
        raise argparse.ArgumentTypeError(f"{text!r} is less than 0")
    return number


def seconds(text: str) -> float:
    """Parse a finite, non-negative number of seconds."""
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0 <= number < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds")
    return number


def port(text: str) -> int:
    """Parse a port number."""
    number = _number(text)
    if not 0 < number < 65536:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port (1 to 65535)")
    return number
