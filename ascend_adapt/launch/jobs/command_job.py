"""A job that starts a command (or a script that starts ranks) once, unchanged, and adapts every Python process."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass

from ascend_adapt.launch.jobs import on_this_host
from ascend_adapt.launch.jobs.context import Context
from ascend_adapt.launch.jobs.job import Job
from ascend_adapt.launch.placement import plan as planning
from ascend_adapt.launch.placement.ports import Ports
from ascend_adapt.launch.request import without_effect_on_a_command


@dataclass
class CommandJob(Job):
    """A job of one process that is not a rank."""

    context: Context

    @classmethod
    def of(cls, context: Context) -> CommandJob:
        """Return the job for a request.

        Raises:
            LaunchError: the job cannot be started as requested.
        """
        request = context.request
        context.check(context.device, 1)
        if request.form == "script" and not request.once:
            context.notes.append(f"{request.target} starts ranks itself, so it is started once")
        for option in without_effect_on_a_command(request, context.device):
            context.notes.append(f"{option} has no effect: {request.target} is started once")
        run_dir = context.run_dir()
        run_dir.check()
        with ExitStack() as reserved:
            ports = reserved.enter_context(Ports())
            env = context.env(context.device, run_dir, ports.hccl_base, 1)
            if context.device == "cpu" and request.nproc:
                env["LOCAL_SIZE"] = str(request.nproc)  # The number of a host's devices, as DeepSpeed names it.
            plan = planning.of_command(request, device=context.label, env=env)
            reserved.pop_all()
        return cls(plan, run_dir, context, ports=ports, notes=context.notes)

    def run(self) -> int:
        """Start the command, wait until it exits, and terminate the processes that it leaves running."""
        return on_this_host.run(self.context, self.plan, self.run_dir, watch_reach=self.context.adapts)
