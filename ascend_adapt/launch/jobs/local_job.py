"""A job's ranks on this host: all ranks, or this host's share if each host has its own launcher."""

from __future__ import annotations

import os
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from ascend_adapt.launch import cores
from ascend_adapt.launch.jobs import on_this_host
from ascend_adapt.launch.jobs.checks import UsageError
from ascend_adapt.launch.jobs.context import Context
from ascend_adapt.launch.jobs.job import Job
from ascend_adapt.launch.jobs.native import Configured
from ascend_adapt.launch.placement import cluster_environment, network
from ascend_adapt.launch.placement import hosts as placement
from ascend_adapt.launch.placement import plan as planning
from ascend_adapt.launch.placement.hostfile import Host
from ascend_adapt.launch.placement.ports import Ports, check_free


@dataclass
class LocalJob(Job):
    """A job with one process per rank on this host; ``others`` are the ranks that launchers on other hosts start."""

    context: Context
    others: frozenset[int] = frozenset()
    trained: Configured | None = None

    @classmethod
    def of(cls, context: Context, host: Host | None) -> LocalJob:
        """Return the job for a request; ``host`` is this host's entry if a hostfile or filter selected slots.

        Raises:
            LaunchError: the job cannot be started as requested.
        """
        request, environ = context.request, context.environ
        share = None if host is not None else cluster_environment.of_this_host(request, environ, network.addresses)
        if share is not None and request.max_restarts:
            raise UsageError("--max-restarts: needs one launcher for all hosts, each host has its own — use --hostfile")
        if share is None and host is None and (warning := cluster_environment.overlooked(environ)):
            context.notes.append(warning)
        nodes = share.nodes if share is not None else 1
        context.check(context.device, nodes)
        if host is None:
            host = planning.local_host(request, context.label, context.devices, share)
        else:
            host = placement.as_local(host, context.label, context.devices)
        if not request.oversubscribe:
            cores.check(len(host.slots), context.label)
        run_dir = context.run_dir(share.node if share is not None else 0)
        run_dir.check()
        with ExitStack() as reserved:
            ports = reserved.enter_context(Ports())
            plan = planning.of_ranks(
                request,
                device=context.label,
                hosts=(host,),
                env=context.env(context.device, run_dir, ports.hccl_base, nodes),
                environ=environ,
                free_port=ports.rendezvous,
                share=share,
            )
            port = plan.master_port
            if plan.ranks[0].rank == 0 and port is not None and port != ports.rendezvous:
                check_free(port)
            trained = None
            if context.native is not None:
                trained = context.native.configured(plan.world_size or 1)
                context.notes.extend([*trained.check_data(may_be_elsewhere=request.dry_run), *trained.notes])
                plan = plan.also_set(trained.env)
            reserved.pop_all()
        here = {rank.rank for rank in plan.ranks}
        others = frozenset(range(plan.world_size or 0)) - here if share is not None else frozenset()
        return cls(plan, run_dir, context, others, trained, ports=ports, notes=context.notes)

    def prepare(self) -> None:
        """Create the run directory; keep files that launchers on other hosts have written."""
        self.run_dir.create(self.others)

    def run(self) -> int:
        """Start the ranks and wait until they end."""
        shows_progress = self.trained is not None and self.context.request.progress and _is_terminal()
        return on_this_host.run(self.context, self.plan, self.run_dir, shows_progress=shows_progress)

    def to_json(self) -> dict[str, Any]:
        """Return the plan; for a native run also its configuration, layout and memory."""
        return {**super().to_json(), **(self.trained.to_json() if self.trained is not None else {})}


def _is_terminal() -> bool:
    """Return whether both output streams are terminals that can erase a line; under `... | tee log` they are not."""
    return os.isatty(1) and os.isatty(2) and os.environ.get("TERM", "dumb") != "dumb"
