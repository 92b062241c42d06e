"""What checks judge, and what they report: plain facts of one machine, and findings."""

from __future__ import annotations

import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ascend_adapt.patches.declare.outcome import Outcome


@dataclass(frozen=True)
class Finding:
    """One thing worth knowing: what was seen, why it matters, what to do.

    ``must_fix``: a job cannot run like this. ``fixed_by`` names the patch (``plugin.patch``) that takes care of it.
    """

    what: str
    why: str
    do: str
    must_fix: bool
    fixed_by: str = ""


@dataclass(frozen=True)
class Ran:
    """A command that was run: its exit code, and its stdout and stderr together."""

    exit_code: int
    output: str


@dataclass(frozen=True)
class Machine:
    """The facts that checks judge.

    Attributes:
        device: the kind of device that a job is to use: ``npu``, ``cuda``, ``cpu`` or ``npu-emulated``.
        versions: installed distributions only.
        nodes: device nodes by kind.
        folder: the current directory.
        extensions: where torch builds its C++ extensions.
        shm_bytes: size of /dev/shm.
        root: the file system that system files are read from; a test gives a folder.
        uid: who is asking, and ``groups`` the ids of their groups.
        limits: soft limits by the letter of ``ulimit``, None is unlimited.
        outcomes: what each patch would become here.
        torch_cuda: the CUDA version that torch is built with, "" for none.
        tools: output of npu-smi or nvidia-smi; None: not found.
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

    def at(self, path: str) -> Path:
        """Return where an absolute path of this machine is found."""
        return self.root / path.lstrip("/")

    def may_open(self, node: Path) -> bool:
        """Return whether the user may read and write ``node``, by its mode, owner and group."""
        told = node.stat()
        if self.uid == 0:
            return True
        bits = (
            stat.S_IRUSR | stat.S_IWUSR
            if told.st_uid == self.uid
            else stat.S_IRGRP | stat.S_IWGRP
            if told.st_gid in self.groups
            else stat.S_IROTH | stat.S_IWOTH
        )
        return told.st_mode & bits == bits

    def owner(self, node: Path) -> str:
        """Return mode, owner and group of ``node``, as in ``crw-rw---- root HwHiAiUser``."""
        told = node.stat()
        user = self._names("/etc/passwd").get(told.st_uid, told.st_uid)
        group = self._names("/etc/group").get(told.st_gid, told.st_gid)
        return f"{stat.filemode(told.st_mode)} {user} {group}"

    def _names(self, file: str) -> dict[int, str]:
        path = self.at(file)
        lines = path.read_text(errors="replace").splitlines() if path.is_file() else []
        fields = [line.split(":") for line in lines]
        return {int(words[2]): words[0] for words in fields if len(words) > 2 and words[2].isdigit()}


def settings_of(file: Path) -> dict[str, str]:
    """Return the ``name=value`` lines of a file, such as version.info; nothing if it cannot be read."""
    try:
        text = file.read_text(errors="replace")
    except OSError:
        return {}
    return dict(re.findall(r"(?m)^\s*([\w-]+)=(.*?)\s*$", text))
