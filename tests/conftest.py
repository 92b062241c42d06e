"""Fixtures: a folder of stand-in modules, and enable() with patches given directly; both leave nothing behind."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from stand_ins import Site, plugin

import ascend_adapt
from ascend_adapt.patches.apply import bodies

# A test run that was started by nohup, or in the background of a script, ignores signals, and so would all it starts.
for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    """A folder on sys.path; at the end everything is reverted and its modules are forgotten."""
    for name in [name for name in os.environ if name.startswith("ASCEND_ADAPT")]:
        monkeypatch.delenv(name)
    monkeypatch.syspath_prepend(tmp_path)
    before = set(sys.modules)
    yield Site(tmp_path)
    ascend_adapt.disable()
    for name in set(sys.modules) - before:
        file = getattr(sys.modules[name], "__file__", None) or ""
        if file.startswith(str(tmp_path)) or not file:
            del sys.modules[name]


@pytest.fixture
def bodies_of_stand_ins(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take the bodies of stand-ins, which are code of ours, for those that a patch was read off."""
    monkeypatch.setattr(bodies, "check", lambda patch, standing: None)


@pytest.fixture
def enable(site: Site) -> Callable[..., ascend_adapt.Status]:
    """enable(*patches, **settings): enable() with a plugin of those patches."""

    def call(*patches: Any, **settings: Any) -> ascend_adapt.Status:
        name = settings.pop("name", "stand_in")
        return ascend_adapt.enable(plugins=[plugin(*patches, name=name)], **settings)

    return call
