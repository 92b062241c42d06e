"""Run the processes of a plan on this host, and report the rehearsal if the NPU is emulated."""

from __future__ import annotations

from ascend_adapt.launch.jobs.context import Context
from ascend_adapt.launch.one_host.console import say
from ascend_adapt.launch.one_host.run_directory import RunDirectory
from ascend_adapt.launch.placement.plan import Plan


def run(
    context: Context, plan: Plan, run_dir: RunDirectory, *, watch_reach: bool = False, shows_progress: bool = False
) -> int:
    """Start the processes, wait for them, and return the exit code."""
    from ascend_adapt.launch.one_host import runner
    from ascend_adapt.launch.one_host.guardian import Assignment

    request = context.request
    code = runner.run(
        Assignment(
            plan,
            run_dir,
            request.max_restarts,
            request.strict,
            watch_reach=watch_reach,
            shows_progress=shows_progress,
            grace=context.grace,
        )
    )
    if context.emulation:
        from ascend_adapt.emulation import rehearsal

        for line in rehearsal.report_lines(run_dir.path):
            say(line)
    return code
