"""`ascend-run`: read the command line, plan, and start the job or print the plan."""

from __future__ import annotations

import json
import os
import shutil
import stat
import sys
import time
from collections.abc import Mapping, Sequence
from importlib.machinery import PathFinder
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from ascend_adapt import probe
from ascend_adapt.errors import AdaptError, LaunchError, SettingsError
from ascend_adapt.launch import cores
from ascend_adapt.launch import request as requests
from ascend_adapt.launch.jobs import fallback, launcher_scripts, native
from ascend_adapt.launch.one_host import signals
from ascend_adapt.launch.one_host.console import say
from ascend_adapt.launch.one_host.run_directory import RunDirectory
from ascend_adapt.launch.one_host.termination import GRACE_S, SAVING_GRACE_S
from ascend_adapt.launch.placement import cluster_environment as shares
from ascend_adapt.launch.placement import environment, network
from ascend_adapt.launch.placement import hosts as machines
from ascend_adapt.launch.placement import plan as planning
from ascend_adapt.launch.placement.ports import Ports
from ascend_adapt.launch.transport import ssh
from ascend_adapt.runtime import code_bases as hosts
from ascend_adapt.runtime import settings

if TYPE_CHECKING:
    from ascend_adapt.emulation.environment import Emulation
    from ascend_adapt.runtime.plugin_manager import PluginManager


def main(argv: Sequence[str] | None = None) -> int:
    """Run `ascend-run` and return its exit code."""
    arguments = sys.argv[1:] if argv is None else list(argv)
    signals.outlive_passed()
    try:
        return _run(requests.parse(arguments), os.environ)
    except AdaptError as error:
        if "--debug" in arguments:
            raise
        print(f"ascend-run: {error}", file=sys.stderr)
        return 2 if isinstance(error, (SettingsError, _Usage)) else 1
    except KeyboardInterrupt:
        # Before the runner takes care of signals: nothing has been started.
        return 130


class _Usage(LaunchError):
    """The command line names something that cannot be used."""


def _run(request: requests.Request, environ: Mapping[str, str]) -> int:
    if request.container is not None:
        return _run_in_container(request, environ)
    replaced = fallback.instead(request)
    if replaced is not None:
        request, why = replaced
        say(why)
    _check_target(request)
    if not request.native and (request.compile or request.profile is not None or request.exit_signals):
        options = "--compile, --profile, --exit-signal"
        raise _Usage(f"{options}: are for --native — leave them out, or see what the script itself offers")
    native_run = native.prepare(request) if request.native else None
    if native_run is not None:
        request = native_run.request
    started_once = request.form == "command" or request.once or _is_launcher(request)
    if not started_once:
        shares.refuse_copies(request, environ)
    emulation = _emulation(request, environ)
    device, found = ("npu", _visible(emulation, environ)) if emulation else _devices(request, environ)
    hosts = None if started_once else machines.chosen(request, found, say)
    # A plan of many hosts is made without looking each of them up.
    others = (
        0 if request.dry_run and len(hosts or ()) > 1 else sum(not network.is_here(one.address) for one in hosts or ())
    )
    several = hosts is not None and (len(hosts) > 1 or others > 0)
    if several:
        if emulation:
            raise LaunchError(f"--device {request.device}: rehearses on one machine — leave --hostfile out")
        environ = {**environ, **environment.of_deepspeed_env(environ, Path.cwd())}
    share = None if started_once or hosts is not None else shares.of_this_machine(request, environ, network.addresses)
    if not started_once and hosts is None and share is None and (warning := shares.overlooked(environ)):
        say(warning)
    saves_to = native_run.recipe.save if native_run is not None else None
    folder = request.log_dir or saves_to or _default_run_dir(request.native or request.target)
    run_dir = RunDirectory(Path(os.path.abspath(folder)), share.node if share is not None else 0)
    nodes = len(hosts) if hosts is not None else share.nodes if share is not None else 1
    for warning in environment.warnings(device, environ, nodes):
        say(warning)
    adapt = request.adapt and not settings.is_off(environ)
    if request.npu_compile_mode != "keep" and not (adapt and device == "npu"):
        why = f"this job runs on {device}" if adapt else "this job runs without patches, by nothing of ours"
        raise _Usage(f"--npu-compile-mode {request.npu_compile_mode}: is for an NPU, {why} — leave it out")
    if adapt or emulation:
        _check_bootstrap()
    patched = _patched(request, device, environ) if adapt else environment.SWITCHED_OFF
    if emulation:
        patched = {**patched, **environment.of_emulation(emulation, environ)}
    label = request.device if emulation else device
    with Ports() as ports:
        env = {
            **patched,
            **environment.of_device(device, str(run_dir.path), None if several else ports.hccl_base, environ, nodes),
            "ASCEND_ADAPT_RUN_DIR": str(run_dir.path),
        }
        if started_once:
            if request.form == "script" and not request.once:
                say(f"{request.target} starts ranks itself, so it is started once")
            for option in requests.without_effect_on_a_command(request):
                say(f"{option} has no effect: {request.target} is started once")
            plan = planning.of_command(request, device=label, env=env)
        else:
            if hosts is None:
                hosts = (planning.local_host(request, label, found, share),)
            elif not several:
                hosts = (machines.as_local(hosts[0], label, found),)
            free_port = ports.rendezvous if not several else shares.DEFAULT_PORT
            plan = planning.of_ranks(
                request, device=label, hosts=hosts, env=env, environ=environ, free_port=free_port, share=share
            )
            if not several and not request.oversubscribe:
                cores.check(len(plan.ranks), label)
        trained = native_run.configured(plan.world_size or 1) if native_run is not None else None
        if trained is not None:
            plan = plan.also_set(trained.env)
        forwarded = environment.forwarded(environ, request.export) if several else {}
        if request.dry_run:
            told = plan.on_top_of(forwarded).to_json()
            print(json.dumps({**told, **(trained.to_json() if trained is not None else {})}, indent=1))
            return 0
        if share is not None and request.max_restarts:
            raise _Usage("--max-restarts: the other machines have launchers of their own — give a --hostfile instead")
        if several:
            way = ssh.choose(request, [host.address for host in hosts or ()])
        if trained is not None:
            trained.check_data()
            for note in trained.notes:
                say(note)
        here = {rank.rank for rank in plan.ranks}
        run_dir.create(() if share is None else set(range(plan.world_size or 0)) - here)
        say(f"run directory {folder}")
        if several:
            from ascend_adapt.launch.many_hosts import launcher

            return launcher.run(
                launcher.Mission(
                    plan=plan,
                    run_dir=run_dir,
                    device=device,
                    forwarded=forwarded,
                    way=way,
                    chooses_port=request.master_port is None,
                    max_restarts=request.max_restarts,
                    strict=request.strict,
                    grace=_grace(request),
                    oversubscribe=request.oversubscribe,
                )
            )
        from ascend_adapt.launch.one_host import runner
        from ascend_adapt.launch.one_host.guardian import Assignment

        code = runner.run(
            Assignment(
                plan,
                run_dir,
                request.max_restarts,
                request.strict,
                watch_reach=adapt and started_once,
                shows_progress=trained is not None and request.progress and _is_terminal(),
                grace=_grace(request),
            )
        )
        if emulation:
            _tell_rehearsal(run_dir)
        return code


def _run_in_container(request: requests.Request, environ: Mapping[str, str]) -> int:
    from ascend_adapt.launch.jobs import container
    from ascend_adapt.launch.one_host import runner
    from ascend_adapt.launch.one_host.guardian import Assignment

    if request.line is None and request.form != "command":
        shares.refuse_copies(request, environ)
    device, _ = _devices(request, environ)
    folder = request.log_dir or _default_run_dir(request.target)
    run_dir = RunDirectory(Path(os.path.abspath(folder)))
    job = container.plan(request, device, environ, run_dir.path)
    if request.dry_run:
        print(json.dumps(job.to_json(), indent=1))
        return 0
    run_dir.create()
    say(f"run directory {folder}")
    container.write_env_file(job, run_dir.path)
    try:
        return runner.run(Assignment(job, run_dir, grace=_grace(request)))
    finally:
        container.remove(job, run_dir.path)


def _is_terminal() -> bool:
    """Return whether all that is printed goes to a terminal that can erase a line; in `... | tee log` it does not."""
    return os.isatty(1) and os.isatty(2) and os.environ.get("TERM", "dumb") != "dumb"


def _grace(request: requests.Request) -> float:
    if request.grace is not None:
        return request.grace
    return SAVING_GRACE_S if request.native else GRACE_S


def _patched(request: requests.Request, device: str, environ: Mapping[str, str]) -> dict[str, str]:
    """Return what reaches every Python of the job with patches."""
    manager = _plugins(request, environ)
    return {
        **manager.launch_env(device, environ),
        **environment.of_patches(request, device, _targets(manager), environ),
    }


def _check_bootstrap() -> None:
    if os.stat(environment.BOOTSTRAP).st_mode & stat.S_IWOTH:
        raise LaunchError(
            f"{environment.BOOTSTRAP}: is writable by everybody, and every Python of the job runs what is in it — "
            "chmod o-w it"
        )


def _check_target(request: requests.Request) -> None:
    if request.form == "command":
        if shutil.which(request.target) is None:
            raise _Usage(
                f"command {request.target!r}: is no program on PATH — give a script.py, -m and a module, or a command"
            )
    elif request.form == "module":
        _check_module(request.target)
    else:
        _check_script(Path(request.target))


def _is_launcher(request: requests.Request) -> bool:
    return request.form == "script" and launcher_scripts.is_launcher(Path(request.target))


def _check_script(path: Path) -> None:
    if path.exists() and not path.is_file():
        # A pipe would be opened, and waited for.
        raise _Usage(f"script {str(path)!r}: is not a file — give the path of a readable Python file")
    try:
        path.open("rb").close()
    except OSError as error:
        raise _Usage(f"script {str(path)!r}: {error.strerror} — give the path of a readable Python file") from error


def _check_module(name: str) -> None:
    # python -m puts the current folder first; the console script has its own there.
    root = name.partition(".")[0]
    # A package that is installed to be edited is on no path: a finder of its own has it.
    if PathFinder.find_spec(root, [os.getcwd(), *sys.path]) is None and find_spec(root) is None:
        raise _Usage(
            f"module {name!r}: no {root!r} in {os.getcwd()} or on sys.path — give a module that can be imported"
        )


def _devices(request: requests.Request, environ: Mapping[str, str]) -> tuple[str, int]:
    asked = request.device if request.device != "auto" else settings.resolve(environ).device
    device, _ = probe.device_to_use(asked, environ)
    return device, probe.count_devices(device, {**environ, **environment.visible_npus(environ)})


def _emulation(request: requests.Request, environ: Mapping[str, str]) -> Emulation | None:
    if request.device != "npu-emulated":
        return None
    from ascend_adapt.emulation import environment as emulation

    return emulation.prepare(request.soc, emulation.count_devices(request.nproc, environ), environ, say)


def _visible(emulation: Emulation, environ: Mapping[str, str]) -> int:
    visible = {**environ, **environment.visible_npus(environ)}
    return probe.count_devices("npu", visible) if "ASCEND_RT_VISIBLE_DEVICES" in visible else emulation.devices


def _tell_rehearsal(run_dir: RunDirectory) -> None:
    from ascend_adapt.emulation import rehearsal

    for line in rehearsal.told(run_dir.path):
        say(line)


def _plugins(request: requests.Request, environ: Mapping[str, str]) -> PluginManager:
    """Return the plugins of the job; it is not started around one that cannot be used."""
    from ascend_adapt.runtime.plugin_manager import PluginManager

    wanted = settings.resolve(environ, disable=request.disable)
    manager = PluginManager.of(wanted)
    manager.check_names(wanted.disable, wanted.allowed_plugins, (*request.allow_drift, *wanted.allow_drift))
    manager.hosts(manager.patches(), hosts.KNOWN)
    if manager.extends_kernels:
        from ascend_adapt.kernels import dispatch

        manager.kernels(dispatch.unusable)
    if manager.problems:
        raise LaunchError("\n".join(manager.problems))
    return manager


def _targets(manager: PluginManager) -> set[str]:
    """Return the top-level modules at whose import a process of the job is adapted."""
    roots = {one.patch.target.root for one in manager.patches()} - {"__main__"}
    # Every process has some of these from its start on: helpers would pay, and the script's folder is not known yet.
    return roots - sys.stdlib_module_names


def _default_run_dir(target: str) -> str:
    name = Path(target).name.removesuffix(".py")
    return os.path.join("runs", f"{name}-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}")


if __name__ == "__main__":
    sys.exit(main())
