"""Makes a job from a request, and rejects every invalid request before anything starts."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from ascend_adapt.launch.jobs import checks, fallback, launcher_scripts, native
from ascend_adapt.launch.jobs.command_job import CommandJob
from ascend_adapt.launch.jobs.container_job import ContainerJob
from ascend_adapt.launch.jobs.context import Context
from ascend_adapt.launch.jobs.hosts_job import HostsJob
from ascend_adapt.launch.jobs.job import Job
from ascend_adapt.launch.jobs.local_job import LocalJob
from ascend_adapt.launch.placement import cluster_environment
from ascend_adapt.launch.placement import hosts as placement
from ascend_adapt.launch.request import Request


def make_job(request: Request, environ: Mapping[str, str]) -> Job:
    """Return the job that a command line requests.

    Raises:
        LaunchError, SettingsError: the job cannot be started as requested.
    """
    if request.container is not None:
        return ContainerJob.of(request, environ)
    notes: list[str] = []
    replaced = fallback.instead(request)
    if replaced is not None:
        request, why = replaced
        notes.append(why)
    checks.check(request, environ)
    native_run = native.prepare(request) if request.native else None
    if native_run is not None:
        request = native_run.request
    context = Context.of(request, environ, native_run, notes)
    if starts_once(request):
        return CommandJob.of(context)
    cluster_environment.refuse_copies(request, environ)
    hosts = placement.chosen(request, context.devices, notes.append)
    if hosts is not None and placement.are_several(hosts):
        return HostsJob.of(context, hosts)
    return LocalJob.of(context, hosts[0] if hosts is not None else None)


def starts_once(request: Request) -> bool:
    """Return whether the target is started once: a command, or a script that starts ranks itself."""
    if request.form == "command" or request.once:
        return True
    return request.form == "script" and launcher_scripts.is_launcher(Path(request.target))
