"""Protocol between launcher and agent: a byte stream in each direction, in frames of a kind, a length and a payload.

A login shell may print text before the agent starts, so an agent begins with a mark; bytes before the mark are not
frames.
"""

from __future__ import annotations

import json
import os
import struct
import threading
from collections.abc import Iterator
from enum import Enum
from typing import Any

_HEAD = struct.Struct(">cI")
_MARK = b"\0ascend-run agent 1\n"
_AT_ONCE = 1 << 16
_MOST = 1 << 28
# Each end sends a heartbeat every BEAT_S seconds; the other end considers it lost after LOST_S without any frame.
BEAT_S, LOST_S = 2.0, 20.0


class Kind(Enum):
    """Kinds of frames; payloads are JSON unless noted otherwise."""

    HELLO = b"H"  # agent: the facts about its host
    ORDER = b"O"  # launcher: the processes to run on the host
    BEGAN = b"B"  # agent: the ranks start; its clock, when it received the order
    STDOUT = b"1"  # agent: bytes that the ranks printed
    STDERR = b"2"
    STATUS = b"S"  # agent: the status file of a rank
    ENDED = b"E"  # agent: the outcome
    SIGNAL = b"K"  # launcher: one byte, the number of a signal
    ALIVE = b"A"  # both: empty
    PAUSE = b"P"  # launcher: empty; Ctrl-Z suspends the launcher, which is silent until it continues


def frame(kind: Kind, payload: bytes = b"") -> bytes:
    """Encode one frame."""
    return _HEAD.pack(kind.value, len(payload)) + payload


def json_frame(kind: Kind, data: Any) -> bytes:
    """Encode one JSON frame; bytes that are not UTF-8 are sent as Python's surrogate escapes."""
    return frame(kind, json.dumps(data).encode("ascii"))


def json_object(payload: bytes | str) -> dict[str, Any]:
    """Decode the JSON object of a frame.

    Raises:
        ValueError: the payload is not JSON, or not an object.
        RecursionError: the object is nested too deeply.
    """
    data = json.loads(payload)
    if not isinstance(data, dict):
        raise ValueError(f"a JSON {type(data).__name__}, expected an object")
    return data


class FrameDecoder:
    """Splits a byte stream into frames."""

    def __init__(self, marked: bool) -> None:
        self._data = bytearray()
        self._waits_for_mark = marked

    @property
    def noise(self) -> bytes:
        """Bytes received before the mark."""
        return bytes(self._data) if self._waits_for_mark else b""

    def feed(self, data: bytes) -> Iterator[tuple[Kind, bytes]]:
        """Yield the complete frames.

        Raises:
            ValueError: the bytes are not frames of this protocol.
        """
        self._data += data
        if self._waits_for_mark:
            begin = self._data.find(_MARK)
            if begin < 0:
                return
            del self._data[: begin + len(_MARK)]
            self._waits_for_mark = False
        while len(self._data) >= _HEAD.size:
            value, size = _HEAD.unpack_from(self._data)
            if size > _MOST:
                raise ValueError(f"a frame of {size} bytes, expected at most {_MOST}")
            if len(self._data) < _HEAD.size + size:
                return
            payload = bytes(self._data[_HEAD.size : _HEAD.size + size])
            del self._data[: _HEAD.size + size]
            yield Kind(value), payload


class FrameSender:
    """Writes frames to a descriptor that may be slow, from several threads; frames are never interleaved."""

    def __init__(self, descriptor: int, marked: bool = False) -> None:
        self._descriptor = descriptor
        self._lock = threading.Lock()
        self._left = bytearray(_MARK if marked else b"")

    def send(self, data: bytes = b"") -> bool:
        """Write as much as the descriptor accepts, and keep the rest for the next call; False if the reader is gone."""
        with self._lock:
            self._left += data
            try:
                while self._left:
                    del self._left[: os.write(self._descriptor, self._left[:_AT_ONCE])]
            except BlockingIOError:
                pass
            except OSError:
                return False
        return True
