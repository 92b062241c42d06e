"""Whose commit an evidence record names."""

from __future__ import annotations

import subprocess
from pathlib import Path

from ascend_adapt.testing import seen


def git(folder: Path, *words: str) -> str:
    author = ["-c", "user.name=n", "-c", "user.email=e@example.org"]
    done = subprocess.run(["git", "-C", str(folder), *author, *words], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_the_commit_is_that_of_the_repository_that_tracks_the_file(tmp_path: Path) -> None:
    git(tmp_path, "init", "--quiet")
    own, installed = tmp_path / "own.py", tmp_path / "environment" / "installed.py"
    installed.parent.mkdir()
    own.touch()
    installed.touch()
    git(tmp_path, "add", "own.py")
    git(tmp_path, "commit", "--quiet", "--message", "m")
    assert seen.commit_of(own) == git(tmp_path, "rev-parse", "--short=12", "HEAD")
    assert seen.commit_of(installed) == ""
    assert seen.commit_of(tmp_path / "missing" / "x.py") == ""
