"""ctypes interface to the emulated libascendcl of this process: its counters and pending tasks."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from typing import Any

from ascend_adapt.emulation import MAX_DEVICES


class Statistics(ctypes.Structure):
    """Counters of the library, in the layout of emulated.h."""

    _fields_ = [
        ("stream_synchronisations", ctypes.c_uint64),
        ("event_synchronisations", ctypes.c_uint64),
        ("device_synchronisations", ctypes.c_uint64),
        ("device_bytes", ctypes.c_uint64 * MAX_DEVICES),
        ("peak_device_bytes", ctypes.c_uint64 * MAX_DEVICES),
    ]


@functools.cache
def load() -> Any:
    """Return the library that torch_npu has loaded.

    Raises:
        OSError: the process has loaded no such library.
    """
    library = ctypes.CDLL("libascendcl.so")
    library.aclGetRecentErrMsg.restype = ctypes.c_char_p
    library.ascend_adapt_emulated_settle.argtypes = [ctypes.c_void_p]
    return library


def is_emulated() -> bool:
    """Return whether the CANN of this process is emulated: it exports a symbol that the real CANN does not have."""
    try:
        return hasattr(ctypes.CDLL("libascendcl.so"), "ascend_adapt_emulated")
    except OSError:
        return False


def statistics() -> Statistics:
    """Return the current values of the counters."""
    counts = Statistics()
    load().ascend_adapt_emulated_statistics(ctypes.byref(counts))
    return counts


class Traffic(ctypes.Structure):
    """Counts of this rank's launches of one collective, dtype and group, in the layout of hccl.c."""

    _fields_ = [
        ("name", ctypes.c_char * 24),
        ("type", ctypes.c_char * 16),
        ("ranks", ctypes.c_char * 256),
        ("calls", ctypes.c_uint64),
        ("bytes", ctypes.c_uint64),
    ]


def traffic() -> list[dict[str, Any]]:
    """Return the collectives so far: name, dtype, ranks of the group, calls, and bytes of this rank's tensor."""
    found: list[dict[str, Any]] = []
    entry = Traffic()
    while load().ascend_adapt_emulated_traffic(len(found), ctypes.byref(entry)):
        texts = {name: getattr(entry, name).decode() for name in ("name", "type", "ranks")}
        found.append({**texts, "calls": int(entry.calls), "bytes": int(entry.bytes)})
    return found


def ignore_lost_ranks() -> None:
    """From now on, let collectives hang that would otherwise fail because another rank has ended."""
    ctypes.c_int.in_dll(load(), "ascend_adapt_emulated_is_ending").value = 1


def value_bytes() -> tuple[int, int]:
    """Return the maximum bytes of a tensor that holds values at full size, for floating-point and for other dtypes."""
    names = ("ascend_adapt_emulated_float_bytes", "ascend_adapt_emulated_other_bytes")
    floats, others = (ctypes.c_int.in_dll(load(), name).value for name in names)
    return floats, others


def pending() -> ctypes.c_int:
    """Return a live view of the number of pending tasks of all streams."""
    return ctypes.c_int.in_dll(load(), "ascend_adapt_emulated_pending")


@functools.cache
def overflow() -> ctypes.c_int:
    """Return a live view of the overflow flag of a device that saturates."""
    return ctypes.c_int.in_dll(load(), "ascend_adapt_emulated_overflow")


@functools.cache
def saturates() -> ctypes.c_int:
    """Return a live view of whether the device saturates, which torch_npu sets when it initializes."""
    return ctypes.c_int.in_dll(load(), "ascend_adapt_emulated_saturates")


_Locate = ctypes.CFUNCTYPE(None, ctypes.POINTER(ctypes.c_char), ctypes.c_size_t)
_locate: list[Any] = []


def locate_calls_by(line: Callable[[], object]) -> None:
    """Make errors of collectives report the line of the script, which ``line()`` returns in the calling thread."""

    def write(into: Any, room: int) -> None:
        text = str(line()).encode()[-room + 1 :] + b"\0"
        ctypes.memmove(into, text, len(text))

    _locate.append(_Locate(write))  # The library only keeps the address.
    address = ctypes.cast(_locate[-1], ctypes.c_void_p).value
    ctypes.c_void_p.in_dll(load(), "ascend_adapt_emulated_locate").value = address


def settle(stream: int) -> None:
    """Synchronise a stream, given by its address.

    Raises:
        RuntimeError: a collective on this stream has failed.
    """
    if load().ascend_adapt_emulated_settle(stream) != 0:
        raise RuntimeError(load().aclGetRecentErrMsg().decode())
