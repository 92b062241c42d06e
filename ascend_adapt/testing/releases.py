"""Source archives of released versions: downloaded from the index pip is set to, checked, unpacked, never run."""

from __future__ import annotations

import hashlib
import http.client
import json
import os
import re
import ssl
import subprocess
import sys
import tarfile
import tempfile
import urllib.error
import urllib.parse
import urllib.request
import zlib
from pathlib import Path, PurePosixPath

from ascend_adapt.errors import AdaptError

_TIMEOUT_S = 120
_JSON = "application/vnd.pypi.simple.v1+json"


class ReleaseError(AdaptError):
    """A release that cannot be had."""


class ReleaseUnreachable(ReleaseError):
    """Nobody answers: there is no connection, so nothing can be said of the release."""


class Releases:
    """The source trees of released versions, kept unpacked below ``cache``."""

    def __init__(self, cache: Path) -> None:
        self.cache = cache
        self._files: dict[str, dict[str, tuple[str, str]]] = {}

    def tree(self, distribution: str, version: str) -> Path:
        """Return the folder of one release's sources, downloaded first if it is not there.

        Raises:
            ReleaseError: no such release, or an archive that is not what the index promised.
            ReleaseUnreachable: no connection.
        """
        folder = self.cache / f"{distribution}-{version}"
        if not folder.is_dir():
            self._unpack(self._download(distribution, version), folder)
        return folder

    def versions(self, distribution: str) -> list[str]:
        """Return every version that has a source archive, in the order of the index."""
        if distribution not in self._files:
            self._files[distribution] = _source_archives(distribution)
        return list(self._files[distribution])

    def _download(self, distribution: str, version: str) -> bytes:
        if version not in self.versions(distribution):
            raise ReleaseError(f"{distribution} {version}: the index has no source archive of it — see its versions")
        url, sha256 = self._files[distribution][version]
        archive = _read(url)
        found = hashlib.sha256(archive).hexdigest()
        if found != sha256:
            raise ReleaseError(f"{distribution} {version}: sha256 {found}, expected {sha256} — download it again")
        return archive

    def _unpack(self, archive: bytes, folder: Path) -> None:
        self.cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=self.cache) as aside:
            packed = Path(aside, "archive.tar.gz")
            packed.write_bytes(archive)
            try:
                with tarfile.open(packed) as tar:
                    _extract(tar, Path(aside, "unpacked"))
                (content,) = Path(aside, "unpacked").iterdir()
            except (tarfile.TarError, zlib.error, EOFError, OSError) as error:
                raise ReleaseError(f"{folder.name}: is not a tar archive ({error}) — download it again") from error
            except ValueError as error:
                raise ReleaseError(f"{folder.name}: holds not one folder ({error}) — download it again") from error
            content.replace(folder)


def _extract(tar: tarfile.TarFile, folder: Path) -> None:
    """Unpack what stays below ``folder``, as Python's "data" filter does; 3.10.12 and 3.11.4 were the first to have it.

    Raises:
        tarfile.TarError: a member would go elsewhere, or, before these, is neither a file nor a folder.
    """
    if hasattr(tarfile, "data_filter"):
        tar.extractall(folder, filter="data")
        return
    for member in tar.getmembers():
        path = PurePosixPath(member.name)
        if path.is_absolute() or ".." in path.parts or not (member.isfile() or member.isdir()):
            raise tarfile.TarError(f"{member.name}: expected a file or folder below the archive's own")
        # Whoever unpacks owns it, and nobody else may write to it.
        member.uid, member.gid, member.uname, member.gname = os.getuid(), os.getgid(), "", ""
        member.mode = 0o755 if member.isdir() else member.mode & 0o755 | 0o600
    tar.extractall(folder)


def _source_archives(distribution: str) -> dict[str, tuple[str, str]]:
    """Return version -> (address, sha256) of the .tar.gz archives that the index lists."""
    page = urllib.parse.urljoin(_index() + "/", re.sub(r"[-_.]+", "-", distribution).lower() + "/")
    listed = _read(page, accept=_JSON)
    archives = {}
    try:
        for file in json.loads(listed)["files"]:
            match = re.fullmatch(r"(.+)-(\d[^-]*)\.tar\.gz", file["filename"])
            if match is not None and "sha256" in file["hashes"]:
                archives[match[2]] = (urllib.parse.urljoin(page, file["url"]), file["hashes"]["sha256"])
    except (ValueError, KeyError, TypeError) as error:
        raise ReleaseError(f"{page}: is no list of files in JSON ({error!r}) — set PIP_INDEX_URL") from error
    return archives


def _index() -> str:
    """The index that pip uses in this environment."""
    default = "from pip._internal.models.index import PyPI; print(PyPI.simple_url)"
    found = (
        os.environ.get("PIP_INDEX_URL")
        or _told("-m", "pip", "config", "get", "global.index-url")
        or _told("-c", default)
    )
    if not found:
        raise ReleaseError("pip: names no index — set PIP_INDEX_URL")
    return found.rstrip("/")


def _told(*arguments: str) -> str:
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True).stdout.strip()


def _read(url: str, accept: str = "*/*") -> bytes:
    request = urllib.request.Request(url, headers={"Accept": accept})
    context = ssl.create_default_context(cafile=os.environ.get("PIP_CERT"))
    try:
        with urllib.request.urlopen(request, timeout=_TIMEOUT_S, context=context) as answer:
            return bytes(answer.read())
    except urllib.error.HTTPError as error:
        error.close()
        raise ReleaseError(f"{url}: {error} — the index answers, but not with this file") from error
    except http.client.HTTPException as error:
        raise ReleaseError(f"{url}: the answer is cut short ({error!r}) — download it again") from error
    except OSError as error:
        raise ReleaseUnreachable(f"{url}: {error} — is the index reachable?") from error
