"""Builds the emulated CANN libraries for one torch_npu wheel, in the cache."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from ascend_adapt import probe
from ascend_adapt.emulation import cache, symbols
from ascend_adapt.emulation.wheel import Wheel
from ascend_adapt.errors import EmulationError

SOURCES = Path(__file__).parent / "cann"
_FLAGS = ("-std=gnu11", "-O2", "-fPIC", "-fvisibility=hidden", "-Wall")
_LIBRARY = "libascendcl.so"


def cann_home(wheel: Wheel, environ: Mapping[str, str]) -> Path:
    """Return a folder that has the layout of CANN and every library that the wheel loads; build it on first use.

    Raises:
        EmulationError: no C compiler is installed, or compilation fails.
    """
    compiler = find_compiler(environ)
    key = hashlib.sha256()
    for path in sorted(SOURCES.iterdir()):
        key.update(path.name.encode() + b"\0" + path.read_bytes())
    for text in (Path(symbols.__file__).read_text(), Path(__file__).read_text(), _version(compiler), wheel.site.name):
        key.update(text.encode() + b"\0")
    name = f"cann/{wheel.version}-{os.uname().machine}-{key.hexdigest()[:16]}"
    return cache.made_once(cache.folder(environ), name, lambda aside: build(wheel, compiler, aside))


def find_compiler(environ: Mapping[str, str]) -> str:
    """Return the path of CC, gcc or cc.

    Raises:
        EmulationError: no C compiler is installed.
    """
    wanted = [environ["CC"]] if environ.get("CC") else ["gcc", "cc"]
    for name in wanted:
        path = shutil.which(name)
        if path is not None:
            return path
    raise EmulationError(
        f"{' or '.join(wanted)}: not found on PATH, expected a C compiler to build the emulated CANN "
        "(two seconds, once) — install gcc, or set CC"
    )


def build(wheel: Wheel, compiler: str, into: Path) -> None:
    """Compile the libraries into ``lib64`` of a folder, and create the other folders that torch_npu requires.

    All code is in libascendcl.so. The other libraries are empty and link against it, so the loader finds every symbol
    through them.
    """
    torch = probe.root_folder("torch")
    torch_libraries = (torch or Path()) / "torch" / "lib"
    sources = [str(path) for path in sorted(SOURCES.glob("*.c"))]
    for name in ("compiler", "lib64", "opp", "runtime"):
        (into / name).mkdir()
    into = into / "lib64"
    library = into / _LIBRARY
    missing = into / "missing.c"
    ours = ("-shared", f"-Wl,-soname,{_LIBRARY}", "-Wl,-z,noexecstack")
    _compile(compiler, *_FLAGS, *ours, "-o", str(library), *sources, "-lpthread")
    names = set(symbols.cann_functions(wheel, torch_libraries)) - symbols.defined(library)
    missing.write_text(symbols.source_of_missing(sorted(names)))
    _compile(compiler, *_FLAGS, *ours, "-o", str(library), *sources, str(missing), "-lpthread")
    nothing = into / "nothing.c"
    nothing.write_text("/* Everything is in libascendcl.so. */\n")
    for name in symbols.cann_libraries(wheel, torch_libraries):
        if name != _LIBRARY:
            links = ("-shared", f"-Wl,-soname,{name}", "-Wl,--no-as-needed", f"-L{into}", "-lascendcl")
            _compile(compiler, *links, "-Wl,-rpath,$ORIGIN", "-o", str(into / name), str(nothing))


def _version(compiler: str) -> str:
    return _compile(compiler, "--version")


def _compile(compiler: str, *arguments: str) -> str:
    """Run the compiler and return its output."""
    expected = "expected a C compiler for this machine — set CC to another"
    try:
        result = subprocess.run([compiler, *arguments], capture_output=True, text=True)
    except OSError as error:
        raise EmulationError(f"{compiler}: {error.strerror}, {expected}") from error
    if result.returncode != 0:
        first = next((line for line in result.stderr.splitlines() if "error" in line), result.stderr[:200])
        message = " ".join(first.split()) or f"ended with exit code {result.returncode}"
        raise EmulationError(f"{compiler}: {message}, {expected}")
    return result.stdout
