"""Source archives of releases, which are downloaded from pip's index, verified and unpacked, but never run."""

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
    """A release cannot be downloaded or unpacked."""


class ReleaseUnreachable(ReleaseError):
    """The index cannot be reached, so it is unknown whether the release exists."""


class Releases:
    """Source trees of releases, unpacked in ``cache``."""

    def __init__(self, cache: Path) -> None:
        self.cache = cache
        self._files: dict[str, dict[str, tuple[str, str]]] = {}

    def tree(self, distribution: str, version: str) -> Path:
        """Return the source folder of a release, downloading it if necessary.

        Raises:
            ReleaseError: the release does not exist, or its archive has a wrong digest.
            ReleaseUnreachable: the index cannot be reached.
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
            raise ReleaseError(f"{distribution} {version}: the index has no source archive — choose another version")
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
                raise ReleaseError(
                    f"{folder.name}: does not contain exactly one folder ({error}) — download it again"
                ) from error
            content.replace(folder)


def _extract(tar: tarfile.TarFile, folder: Path) -> None:
    """Unpack into ``folder`` with Python's "data" filter (from 3.10.12 and 3.11.4 on), or else with equal checks.

    Raises:
        tarfile.TarError: a member is outside the folder or, without the filter, neither a file nor a folder.
    """
    if hasattr(tarfile, "data_filter"):
        tar.extractall(folder, filter="data")
        return
    for member in tar.getmembers():
        path = PurePosixPath(member.name)
        if path.is_absolute() or ".." in path.parts or not (member.isfile() or member.isdir()):
            raise tarfile.TarError(f"{member.name}: expected a file or folder inside the archive's folder")
        # The files are owned by the current user, and not writable for others.
        member.uid, member.gid, member.uname, member.gname = os.getuid(), os.getgid(), "", ""
        member.mode = 0o755 if member.isdir() else member.mode & 0o755 | 0o600
    tar.extractall(folder)


def _source_archives(distribution: str) -> dict[str, tuple[str, str]]:
    """Return version -> (URL, sha256) for the .tar.gz archives that the index lists."""
    page = urllib.parse.urljoin(_index() + "/", re.sub(r"[-_.]+", "-", distribution).lower() + "/")
    listed = _read(page, accept=_JSON)
    archives = {}
    try:
        for file in json.loads(listed)["files"]:
            match = re.fullmatch(r"(.+)-(\d[^-]*)\.tar\.gz", file["filename"])
            if match is not None and "sha256" in file["hashes"]:
                archives[match[2]] = (urllib.parse.urljoin(page, file["url"]), file["hashes"]["sha256"])
    except (ValueError, KeyError, TypeError) as error:
        raise ReleaseError(f"{page}: is not a JSON list of files ({error!r}) — set PIP_INDEX_URL") from error
    return archives


def _index() -> str:
    """Return the URL of the index that pip uses in this environment."""
    default = "from pip._internal.models.index import PyPI; print(PyPI.simple_url)"
    found = (
        os.environ.get("PIP_INDEX_URL")
        or _output("-m", "pip", "config", "get", "global.index-url")
        or _output("-c", default)
    )
    if not found:
        raise ReleaseError("pip: no index is configured — set PIP_INDEX_URL")
    return found.rstrip("/")


def _output(*arguments: str) -> str:
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True).stdout.strip()


def _read(url: str, accept: str = "*/*") -> bytes:
    request = urllib.request.Request(url, headers={"Accept": accept})
    context = ssl.create_default_context(cafile=os.environ.get("PIP_CERT"))
    try:
        with urllib.request.urlopen(request, timeout=_TIMEOUT_S, context=context) as answer:
            return bytes(answer.read())
    except urllib.error.HTTPError as error:
        error.close()
        raise ReleaseError(f"{url}: {error} — the index does not have this file") from error
    except http.client.HTTPException as error:
        raise ReleaseError(f"{url}: the response is truncated ({error!r}) — download it again") from error
    except OSError as error:
        raise ReleaseUnreachable(f"{url}: {error} — check the connection to the index") from error
