"""pytest plugin, loaded wherever ascend_adapt is installed. It does nothing unless the suite is requested."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest

_SUITE = "ascend_adapt.testing"


def pytest_load_initial_conftests(early_config: pytest.Config, args: list[str]) -> None:
    """Register the suite's options if the suite is requested: ``pytest --pyargs ascend_adapt.testing``."""
    if any(word == _SUITE or word.startswith((f"{_SUITE}.", f"{_SUITE}::")) for word in args):
        from ascend_adapt.testing import command_line

        early_config.pluginmanager.register(command_line, _SUITE)
