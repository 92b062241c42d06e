"""The folder that a command was started in."""

from __future__ import annotations

import os

from ascend_adapt.errors import SettingsError


def check() -> None:
    """Check that it exists: without it, neither relative paths nor MKL's libraries are found.

    Raises:
        SettingsError: it was removed.
    """
    try:
        os.getcwd()
    except OSError as error:
        raise SettingsError(f"working folder: {error.strerror}, expected an existing folder — cd to one") from error
