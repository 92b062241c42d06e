"""Facts about a host, and the findings of the checks that read these facts."""

from __future__ import annotations

import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ascend_adapt.patches.declare.outcome import Outcome
from ascend_adapt.whole_numbers import whole_number


@dataclass(frozen=True)
class Finding:
    """Finding: what was observed, why it matters, and what to do.

    ``must_fix``: a job cannot run. ``fixed_by`` names the patch (``plugin.patch``) that fixes the problem.
    """

    what: str
    why: str
    do: str
    must_fix: bool
    fixed_by: str = ""


@dataclass(frozen=True)
class Ran:
    """Result of a command: its exit code, and its stdout and stderr combined."""

    exit_code: int
    output: str


@dataclass(frozen=True)
class Machine:
    """Facts about one host.

    Attributes:
        device: device kind of the job: ``npu``, ``cuda``, ``cpu`` or ``npu-emulated``.
        versions: versions of installed distributions, by name.
        nodes: device nodes by kind.
        folder: the current directory.
        extensions: build folder of torch's C++ extensions.
        shm_bytes: size of /dev/shm in bytes.
        root: root folder of the system files, which tests replace.
        uid: id of the user, whose group ids are ``groups``.
        limits: soft limits by letter of ``ulimit``; None means unlimited.
        outcomes: expected outcome of each patch.
        torch_cuda: CUDA version that torch was built with, or "".
        tools: results of npu-smi and nvidia-smi; None for a tool that was not found.
        distributions: canonical names of all installed distributions; empty if unknown.
        reads_packages: whether the packages are installed on this host, so that their files can be read.
        owners: mode, owner and group of device nodes that were collected on another host.
    """

    device: str
    versions: Mapping[str, str]
    nodes: Mapping[str, tuple[Path, ...]]
    environ: Mapping[str, str]
    folder: Path
    extensions: Path
    now_s: float
    shm_bytes: int
    root: Path = Path("/")
    uid: int = 0
    groups: frozenset[int] = frozenset()
    limits: Mapping[str, int | None] = field(default_factory=dict)
    outcomes: tuple[Outcome, ...] = ()
    torch_cuda: str = ""
    tools: Mapping[str, Ran | None] = field(default_factory=dict)
    distributions: frozenset[str] = frozenset()
    reads_packages: bool = False
    owners: Mapping[str, str] = field(default_factory=dict)

    def at(self, path: str) -> Path:
        """Return an absolute path of this host under ``root``."""
        return self.root / path.lstrip("/")

    def may_open(self, node: Path) -> bool:
        """Return whether the user may read and write ``node``, by its mode, owner and group."""
        status = node.stat()
        if self.uid == 0:
            return True
        bits = (
            stat.S_IRUSR | stat.S_IWUSR
            if status.st_uid == self.uid
            else stat.S_IRGRP | stat.S_IWGRP
            if status.st_gid in self.groups
            else stat.S_IROTH | stat.S_IWOTH
        )
        return status.st_mode & bits == bits

    def owner(self, node: Path) -> str:
        """Return the mode, owner and group of ``node``, such as ``crw-rw---- root HwHiAiUser``."""
        if node.name in self.owners:
            return self.owners[node.name]
        status = node.stat()
        user = self._names("/etc/passwd").get(status.st_uid, status.st_uid)
        group = self._names("/etc/group").get(status.st_gid, status.st_gid)
        return f"{stat.filemode(status.st_mode)} {user} {group}"

    def _names(self, file: str) -> dict[int, str]:
        path = self.at(file)
        lines = path.read_text(errors="replace").splitlines() if path.is_file() else []
        fields = [line.split(":") for line in lines]
        numbers = {whole_number(words[2]): words[0] for words in fields if len(words) > 2}
        return {number: name for number, name in numbers.items() if number is not None}


def settings_of(file: Path) -> dict[str, str]:
    """Return the ``name=value`` settings in a file such as version.info, or {} if it cannot be read."""
    try:
        text = file.read_text(errors="replace")
    except OSError:
        return {}
    return dict(re.findall(r"(?m)^\s*([\w-]+)=(.*?)\s*$", text))
