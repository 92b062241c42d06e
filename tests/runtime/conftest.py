"""Fixture: a folder of stand-in modules, without the patches of real packages."""

from __future__ import annotations

import pytest
from stand_ins import Site


@pytest.fixture
def site(site: Site, monkeypatch: pytest.MonkeyPatch) -> Site:
    """Load one installed plugin, whose code base is not: real patches would take most of the time."""
    monkeypatch.setenv("ASCEND_ADAPT_PLUGINS", "glm")
    return site
