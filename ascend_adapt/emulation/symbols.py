"""Finds the CANN symbols that the libraries of a torch_npu wheel need."""

from __future__ import annotations

import ctypes
import re
import subprocess
from collections.abc import Iterable
from pathlib import Path

from ascend_adapt.emulation.wheel import Wheel
from ascend_adapt.errors import EmulationError

# Libraries that every Linux has (manylinux policy), and libraries that torch_npu opens by name instead of linking.
_OF_THE_SYSTEM = re.compile(r"(ld-linux.*|libc|libm|libdl|librt|libpthread|libgcc_s|libstdc\+\+|libgomp)\.so(\.\d+)*")
_OPENED_BY_NAME = (
    "libacl_tdt_channel.so",
    "libascend_hal.so",
    "libhcomm.so",
    "libmsprofiler.so",
    "libmspti.so",
    "libopapi.so",
)


def cann_libraries(wheel: Wheel, torch_libraries: Path) -> list[str]:
    """Return the file names of the CANN libraries that the wheel's libraries load."""
    own = {path.name for path in (*wheel.libraries, *wheel.site.glob("torch_npu/lib/*"))}
    needed = set(_OPENED_BY_NAME)
    for path in wheel.libraries:
        needed |= set(re.findall(r"\(NEEDED\).*\[(.*)\]", _run("readelf", "--dynamic", "--wide", str(path))))
    return sorted(
        name
        for name in needed - own
        if not (torch_libraries / name).exists() and not _OF_THE_SYSTEM.fullmatch(name) and not _is_of_torch(name)
    )


def cann_functions(wheel: Wheel, torch_libraries: Path) -> list[str]:
    """Return the C functions that the wheel needs and that the wheel, torch and this interpreter do not define."""
    needed: set[str] = set()
    provided: set[str] = set()
    for path in wheel.libraries:
        needed |= _names(_run("nm", "--dynamic", "--undefined-only", str(path)), kinds="U")
        provided |= _names(_run("nm", "--dynamic", "--defined-only", str(path)))
    for path in torch_libraries.glob("*.so*"):
        provided |= _names(_run("nm", "--dynamic", "--defined-only", str(path)))
    here = ctypes.CDLL(None)
    c_names = (name for name in needed - provided if re.fullmatch(r"[A-Za-z][A-Za-z0-9_]*", name))
    return sorted(name for name in c_names if not hasattr(here, name) and not name.startswith(("Py", "THP", "aoti_")))


def defined(library: Path) -> set[str]:
    """Return the functions that a library defines."""
    return _names(_run("nm", "--dynamic", "--defined-only", str(library)))


def source_of_missing(names: Iterable[str]) -> str:
    """Return C source code in which each of these functions fails and reports its name."""
    lines = [
        "/* Generated from the symbols of one torch_npu wheel. */",
        "extern int emulated_missing(const char *name);",
    ]
    lines += [
        f'__attribute__((visibility("default"))) int {name}(void) {{ return emulated_missing("{name}"); }}'
        for name in names
    ]
    return "\n".join(lines) + "\n"


def _is_of_torch(name: str) -> bool:
    return re.fullmatch(r"lib(torch\w*|c10\w*|shm)\.so", name) is not None


def _names(listing: str, kinds: str = "") -> set[str]:
    """Return the names in the output of nm, without versioned names, which belong to the system."""
    found = set()
    for line in listing.splitlines():
        *_, kind, name = line.split()
        if (not kinds or kind in kinds) and "@" not in name:
            found.add(name)
    return found


def _run(*command: str) -> str:
    try:
        result = subprocess.run(command, capture_output=True, text=True)
    except OSError as error:
        raise EmulationError(
            f"{command[0]}: {error.strerror}, expected the binutils that come with gcc — install them"
        ) from error
    if result.returncode != 0:
        raise EmulationError(f"{command[0]} {command[-1]}: {result.stderr.strip()} — is the wheel complete?")
    return result.stdout
