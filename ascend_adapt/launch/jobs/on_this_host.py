"""The report after a job on an emulated NPU."""

from __future__ import annotations

from ascend_adapt.launch.one_host.console import say
from ascend_adapt.launch.one_host.run_directory import RunDirectory


def report_rehearsal(run_dir: RunDirectory) -> None:
    """Print the rehearsal report of a run directory."""
    from ascend_adapt.emulation import rehearsal

    for line in rehearsal.report_lines(run_dir.path):
        say(line)
