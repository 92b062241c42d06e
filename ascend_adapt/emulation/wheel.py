"""The torch_npu wheel for the installed torch: downloaded, verified and unpacked into the cache.

The wheel is never installed into the user's environment, where plain ``import torch`` would fail without CANN.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import re
import subprocess
import sys
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from packaging.version import InvalidVersion, Version

from ascend_adapt import probe, regular_files
from ascend_adapt.emulation import cache, pairs
from ascend_adapt.errors import EmulationError, one_line


@dataclass(frozen=True)
class Wheel:
    """An unpacked torch_npu; ``site`` is added to sys.path."""

    site: Path
    version: str

    @property
    def libraries(self) -> list[Path]:
        """The shared libraries that ``import torch_npu`` loads."""
        package = self.site / "torch_npu"
        return [
            path
            for pattern in ("_C*.so", "lib/libtorch_npu.so", "lib/libnpu_profiler.so", "lib/libtensorpipe.so")
            for path in sorted(package.glob(pattern))
        ] + sorted(self.site.glob("torch_npu.libs/*.so*"))


def for_installed_torch(environ: Mapping[str, str], say: Callable[[str], None] = lambda text: None) -> Wheel:
    """Return the newest torch_npu for the installed torch; on first use, download it and log this.

    ``ASCEND_ADAPT_TORCH_NPU_WHEEL`` is a wheel file to use instead of a download.

    Raises:
        EmulationError: torch is not installed, no torch_npu pairs with it, or the download fails.
    """
    torch = probe.distribution_version("torch")
    if torch is None:
        raise EmulationError(
            "torch: is not installed, expected a version that has a torch_npu — install one that "
            "`pip index versions torch_npu` lists"
        )
    wanted = release(torch)
    home = cache.folder(environ)
    given = environ.get("ASCEND_ADAPT_TORCH_NPU_WHEEL")
    if given:
        wheel = _unpacked(home, Path(given))
        if release(wheel.version) != wanted:
            raise EmulationError(
                f"{given}: torch_npu {wheel.version} is not built for torch {torch}, expected torch_npu {wanted} — "
                "unset ASCEND_ADAPT_TORCH_NPU_WHEEL, or install the torch for which it is built"
            )
        return wheel
    if fitting := _fitting(home, wanted):
        return Wheel(cache.checked(fitting[-1].site), fitting[-1].version)
    pairs.require(wanted)
    say(f"downloading torch_npu for torch {torch} into {home} (about 45 MB, once)")
    with cache.writing(home), tempfile.TemporaryDirectory(dir=home) as aside:
        return _unpacked(home, download(f"torch_npu=={wanted}.*", Path(aside)))


def is_at_hand(torch: str, environ: Mapping[str, str]) -> bool:
    """Return whether the wheel for a torch version is available without a download, in the cache or as a given file.

    Raises:
        EmulationError: the given file does not exist, or no torch_npu pairs with that torch.
    """
    given = environ.get("ASCEND_ADAPT_TORCH_NPU_WHEEL")
    if given and not Path(given).is_file():
        raise EmulationError(
            f"ASCEND_ADAPT_TORCH_NPU_WHEEL={given}: is not a file, expected a torch_npu wheel — correct or unset it"
        )
    if given or _fitting(cache.path(environ), release(torch)):
        return True
    pairs.require(release(torch))
    return False


def _fitting(home: Path, wanted: str) -> list[Wheel]:
    """Return the unpacked wheels for a torch release and this Python, oldest first."""
    python = f"cp{sys.version_info.major}{sys.version_info.minor}"
    known = sorted(
        (_of_folder(path) for path in home.glob(f"torch_npu/torch_npu-{wanted}*-{python}-*")),
        key=lambda wheel: Version(wheel.version),
    )
    return [wheel for wheel in known if release(wheel.version) == wanted]


def download(requirement: str, into: Path, options: Sequence[str] = ()) -> Path:
    """Download one torch_npu wheel with pip, as pip is configured; pip verifies the hash from the index.

    Raises:
        EmulationError: no wheel fits this Python and machine, or the index cannot be reached.
    """
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
    command += ["--disable-pip-version-check", "--dest", str(into), *options, requirement]
    result = subprocess.run(command, capture_output=True, text=True)
    wheels = sorted(into.glob("torch_npu-*.whl"))
    if result.returncode != 0 or not wheels:
        errors = [line for line in result.stderr.splitlines() if line.startswith("ERROR") or "No module" in line]
        raise EmulationError(
            f"{requirement}: pip finds no wheel for this Python and machine "
            f"({one_line(Exception((errors or ['no output'])[-1]))}) — install a version of torch that "
            "`pip index versions torch_npu` lists, or set ASCEND_ADAPT_TORCH_NPU_WHEEL to a wheel file"
        )
    return wheels[0]


def release(version: str) -> str:
    """Return the release that pairs with a version of torch, such as 2.13.0 for 2.13.0+cpu.

    Raises:
        EmulationError: the argument is not a version.
    """
    try:
        return Version(version).base_version
    except InvalidVersion as error:
        raise EmulationError(f"torch {version}: is not a version — reinstall torch") from error


def _of_folder(path: Path) -> Wheel:
    return Wheel(path, path.name.split("-")[1])


def _unpacked(home: Path, file: Path) -> Wheel:
    """Unpack a wheel once, into a folder named after the file and the hash of its contents."""
    if re.fullmatch(r"torch_npu-[^-]+-cp\d+-cp\d+-[^-]+\.whl", file.name) is None:
        raise EmulationError(f"{file}: is not the name of a torch_npu wheel — pass the file under its original name")
    try:
        digest = _sha256(file)
        name = f"torch_npu/{file.stem}-{digest[:12]}"
        return _of_folder(cache.made_once(home, name, lambda aside: _unpack(file, aside)))
    except (OSError, zipfile.BadZipFile, zlib.error, EOFError) as error:
        raise EmulationError(f"{file}: {one_line(error)}, expected a complete wheel — download it again") from error


def _unpack(file: Path, into: Path) -> None:
    with zipfile.ZipFile(file) as archive:
        archive.extractall(into)
    records = list(into.glob("torch_npu-*.dist-info/RECORD"))
    if len(records) != 1:
        raise EmulationError(f"{file}: has no RECORD of its files, expected a complete wheel — download it again")
    for name, digest, _ in csv.reader(records[0].read_text().splitlines()):
        if digest and (not (into / name).is_file() or _digest(into / name) != digest[7:]):
            raise EmulationError(f"{file}: {name} does not match the wheel's RECORD — download it again")


def _digest(file: Path) -> str:
    """Return a file's hash in the form in which RECORD has it after ``sha256=``."""
    return base64.urlsafe_b64encode(bytes.fromhex(_sha256(file))).rstrip(b"=").decode()


def _sha256(file: Path) -> str:
    digest = hashlib.sha256()
    with regular_files.open_binary(file) as stream:
        while block := stream.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()
