"""Known problems of all installed plugins, read once per process."""

from __future__ import annotations

from collections.abc import Mapping

from ascend_adapt.errors import PluginError
from ascend_adapt.problems import problem as declared
from ascend_adapt.problems.problem import Problem
from ascend_adapt.runtime import settings
from ascend_adapt.runtime.plugin_manager import PluginManager


def problems(environ: Mapping[str, str]) -> tuple[list[Problem], list[str]]:
    """Return the known problems of all plugins, and errors of plugins and their files.

    Raises:
        SettingsError: an ASCEND_ADAPT_* variable is invalid.
    """
    manager = PluginManager.of(settings.resolve({**environ, "ASCEND_ADAPT_DEVICE": ""}))
    found: dict[str, Problem] = {}
    faults: list[str] = []
    for file in manager.problem_files():
        try:
            entries = declared.read(file)
        except PluginError as error:
            faults.append(str(error))
            continue
        for one in entries:
            if found.setdefault(one.name, one) is not one:
                faults.append(
                    f"{file}: {one.name}: another problem has the same name, expected a unique one — rename it"
                )
    return list(found.values()), [*manager.problems, *faults]
