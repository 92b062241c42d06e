"""A job as a user starts it, and a small target with a plugin that patches it."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest


@pytest.fixture
def ascend_run(tmp_path):
    """Run ascend-run in ``tmp_path`` and return the finished process."""

    def run(*argv, timeout=280, **env):
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


class Background:
    """A job that runs while the test looks on; every wait is for something the job does."""

    def __init__(self, argv, cwd, env, **kwargs):
        command = [sys.executable, "-m", "ascend_adapt.launch.cli", *argv]
        self.process = subprocess.Popen(
            command, cwd=cwd, env={**os.environ, **env}, stdout=subprocess.PIPE, text=True, **kwargs
        )
        self.pid = self.process.pid

    def lines(self, count):
        """Return the next lines that the ranks print, sorted."""
        return sorted(self.process.stdout.readline().rstrip("\n") for _ in range(count))

    def code(self):
        """Wait for the launcher and return its exit code as a shell reports it."""
        code = self.process.wait(60)
        return code if code >= 0 else 128 - code


@pytest.fixture
def background(tmp_path):
    """Start ascend-run in ``tmp_path`` and return it, running."""
    jobs = []

    def start(*argv, env=(), **kwargs):
        jobs.append(Background(argv, tmp_path, dict(env), **kwargs))
        return jobs[-1]

    yield start
    for job in jobs:
        job.process.terminate()
        job.process.wait(60)
        for stream in (job.process.stdout, job.process.stderr):
            if stream is not None:
                stream.close()
