"""Runs the processes of a plan on this host, reports a rehearsal, and checks that the device was used."""

from __future__ import annotations

from ascend_adapt.launch.in_process import device_use
from ascend_adapt.launch.jobs.context import Context
from ascend_adapt.launch.one_host.console import say
from ascend_adapt.launch.one_host.run_directory import RunDirectory
from ascend_adapt.launch.placement.plan import Plan


def run(
    context: Context, plan: Plan, run_dir: RunDirectory, *, watch_reach: bool = False, shows_progress: bool = False
) -> int:
    """Start the processes, wait until they end, and return the exit code."""
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
        from ascend_adapt.launch.jobs import known_problems

        known = known_problems.lines(context, plan, run_dir)
        for line in rehearsal.report(run_dir.path, code, request.annotate, known):
            # GitHub recognizes its commands only at the beginning of a line.
            print(line, flush=True) if line.startswith("::") else say(line)
    # With --cuda-code off or --no-adapt, the job chooses its device itself and leaves no file.
    requested = context.request.device != "auto"
    if code == 0 and context.device == "npu" and device_use.is_unused(run_dir.path, requested=requested):
        say(
            f"{context.request.target}: ended without a tensor on an NPU, expected a job for --device {context.label} "
            "to use one — select the device with the program's own option, or run it with --device cpu"
        )
        return 1
    return code
