"""A job on several hosts, which the launcher reaches through a transport."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ascend_adapt.errors import LaunchError
from ascend_adapt.launch.jobs.context import Context
from ascend_adapt.launch.jobs.job import Job
from ascend_adapt.launch.jobs.native import Configured
from ascend_adapt.launch.placement import cluster_environment, environment
from ascend_adapt.launch.placement import plan as planning
from ascend_adapt.launch.placement.hostfile import Host
from ascend_adapt.launch.placement.plan import Plan
from ascend_adapt.launch.transport import choice
from ascend_adapt.launch.transport.transport import Transport


@dataclass
class HostsJob(Job):
    """A job with one process per rank, on all hosts.

    ``plan_for`` returns the plan for the kind of device that the hosts report, if the user chose none.
    """

    context: Context
    forwarded: Mapping[str, str]
    transport: Transport
    plan_for: Callable[[str], Plan]
    trained: Configured | None = None

    @classmethod
    def of(cls, context: Context, hosts: Sequence[Host]) -> HostsJob:
        """Return the job for a request.

        Raises:
            LaunchError: the job cannot be started as requested.
        """
        request = context.request
        if context.emulation:
            raise LaunchError(f"--device {request.device}: runs on one host only — leave --hostfile out")
        environ = {**context.environ, **environment.of_deepspeed_env(context.environ, Path.cwd())}
        context.environ = environ
        context.check(context.device, len(hosts))
        transport = choice.choose(
            request.launcher, request.ssh_port, [host.address for host in hosts], look_up=not request.dry_run
        )
        forwarded, run_dir = environment.forwarded(environ, request.export), context.run_dir()
        run_dir.check()
        world_size = sum(len(host.slots) for host in hosts)
        trained = None
        if context.native is not None:
            trained = context.native.configured(world_size)
            context.notes.extend([*trained.check_data(may_be_elsewhere=request.dry_run), *trained.notes])

        def plan_for(device: str) -> Plan:
            plan = planning.of_ranks(
                request,
                device=device,
                hosts=hosts,
                env=context.env(device, run_dir, None, len(hosts)),
                environ=environ,
                free_port=cluster_environment.DEFAULT_PORT,
            )
            return plan.also_set(trained.env) if trained is not None else plan

        if not context.asks_for_device:
            context.notes.append(
                f"device: {context.device} on this host; each host of the job detects its own when it starts — pass "
                "--device to choose it here"
            )
        plan = plan_for(context.device)
        return cls(plan, run_dir, context, forwarded, transport, plan_for, trained, notes=context.notes)

    def run(self) -> int:
        """Start the ranks through an agent on each host, and wait until they end."""
        from ascend_adapt.launch.many_hosts import launcher

        request = self.context.request
        return launcher.run(
            launcher.HostsAssignment(
                plan=self.plan,
                run_dir=self.run_dir,
                device=self.context.device,
                plan_for=None if self.context.asks_for_device else self.plan_for,
                forwarded=self.forwarded,
                transport=self.transport,
                chooses_port=request.master_port is None,
                max_restarts=request.max_restarts,
                strict=request.strict,
                grace=self.context.grace,
                oversubscribe=request.oversubscribe,
            )
        )

    def to_json(self) -> dict[str, Any]:
        """Return the plan with the forwarded variables; for a native run also its configuration, layout and memory."""
        plan = self.plan.on_top_of(self.forwarded).to_json()
        trained = self.trained.to_json() if self.trained is not None else {}
        return {**plan, **({"notes": self.notes} if self.notes else {}), **trained}
