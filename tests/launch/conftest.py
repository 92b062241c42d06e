"""A job as a user starts it, and a small target with a plugin that patches it."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest


@pytest.fixture
def ascend_run(tmp_path):
    """Run ascend-run in ``tmp_path`` and return the finished process."""

    def run(*argv, timeout=120, **env):
        command = [sys.executable, "-m", "ascend_adapt.launch.cli", *argv]
        return subprocess.run(
            command, cwd=tmp_path, env={**os.environ, **env}, capture_output=True, text=True, timeout=timeout
        )

    return run


@pytest.fixture
def toy(tmp_path):
    """Return a folder for PYTHONPATH: module ``toytarget``, whose answer() a plugin turns from "plain" to "patched"."""
    folder = tmp_path / "toy"
    info = folder / "toy_plugin-1.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: toy-plugin\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[ascend_adapt]\ntoy = toy_plugin\n")
    (folder / "toytarget.py").write_text(
        "def answer():\n    return 'plain'\n"
        "class Thing:\n    size = 3\n    def grow(self):\n        self.size += 1\n        return self\n"
    )
    (folder / "toy_plugin.py").write_text(
        "import ascend_adapt\n"
        "TERMS = dict(why='a test', until='the test ends', without='slower')\n"
        "@ascend_adapt.wrap('toytarget:answer', **TERMS)\n"
        "def toy_answer(wrapped, instance, args, kwargs):\n    return 'patched'\n"
        "@ascend_adapt.wrap('toytarget:Thing.grow', **TERMS)\n"
        "def toy_grow(wrapped, instance, args, kwargs):\n    instance.size += 10\n    return wrapped(*args, **kwargs)\n"
        "@ascend_adapt.hookimpl\n"
        "def register_patches():\n    return [toy_answer, toy_grow]\n"
    )
    return str(folder)
