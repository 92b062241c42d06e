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
from pathlib import Path
from typing import TYPE_CHECKING

from ascend_adapt import hosts, probe, settings
from ascend_adapt.errors import AdaptError, LaunchError, SettingsError
from ascend_adapt.launch import environment, launchers
from ascend_adapt.launch import plan as planning
from ascend_adapt.launch import request as requests
from ascend_adapt.launch.ports import Ports
from ascend_adapt.launch.run_directory import RunDirectory

if TYPE_CHECKING:
    from ascend_adapt.emulation.environment import Emulation
    from ascend_adapt.plugin_manager import PluginManager


def main(argv: Sequence[str] | None = None) -> int:
    """Run `ascend-run` and return its exit code."""
    arguments = sys.argv[1:] if argv is None else list(argv)
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
    _check_target(request)
    emulation = _emulation(request, environ)
    device, found = ("npu", _visible(emulation, environ)) if emulation else _devices(request, environ)
    folder = request.log_dir or _default_run_dir(request.target)
    run_dir = RunDirectory(Path(os.path.abspath(folder)))
    adapt = request.adapt and not settings.is_off(environ)
    if adapt or emulation:
        _check_bootstrap()
    if adapt:
        manager = _plugins(request, environ)
        patched = {
            **manager.launch_env(device, environ),
            **environment.of_patches(request, device, _targets(manager), environ),
        }
    else:
        patched = environment.SWITCHED_OFF
    if emulation:
        patched = {**patched, **environment.of_emulation(emulation, environ)}
    label = request.device if emulation else device
    with Ports() as ports:
        env = {
            **patched,
            **environment.of_device(device, str(run_dir.path), ports.hccl_base, environ),
            "ASCEND_ADAPT_RUN_DIR": str(run_dir.path),
        }
        started_once = request.form == "command" or request.once or _is_launcher(request)
        if started_once:
            if request.form == "script" and not request.once:
                print(f"ascend-run: {request.target} starts ranks itself, so it is started once", file=sys.stderr)
            for option in requests.without_effect_on_a_command(request):
                print(f"ascend-run: {option} has no effect: {request.target} is started once", file=sys.stderr)
            plan = planning.of_command(request, device=label, env=env)
        else:
            plan = planning.of_ranks(
                request, device=label, devices_found=found, env=env, environ=environ, free_port=ports.rendezvous
            )
        if request.dry_run:
            print(json.dumps(plan.to_json(), indent=1))
            return 0
        run_dir.create()
        print(f"ascend-run: run directory {folder}", file=sys.stderr, flush=True)

        from ascend_adapt.launch import runner
        from ascend_adapt.launch.guardian import Assignment

        code = runner.run(
            Assignment(plan, run_dir, request.max_restarts, request.strict, watch_reach=adapt and started_once)
        )
        if emulation:
            _tell_rehearsal(run_dir)
        return code


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
    return request.form == "script" and launchers.is_launcher(Path(request.target))


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
    if PathFinder.find_spec(root, [os.getcwd(), *sys.path]) is None:
        raise _Usage(
            f"module {name!r}: no {root!r} in {os.getcwd()} or on sys.path — give a module that can be imported"
        )


def _devices(request: requests.Request, environ: Mapping[str, str]) -> tuple[str, int]:
    asked = request.device if request.device != "auto" else settings.resolve(environ).device
    device = asked or probe.detect_device(environ)[0]
    return device, probe.count_devices(device, {**environ, **environment.visible_npus(environ)})


def _emulation(request: requests.Request, environ: Mapping[str, str]) -> Emulation | None:
    if request.device != "npu-emulated":
        return None
    from ascend_adapt.emulation import environment as emulation

    def say(text: str) -> None:
        print(f"ascend-run: {text}", file=sys.stderr, flush=True)

    return emulation.prepare(request.soc, emulation.count_devices(request.nproc, environ), environ, say)


def _visible(emulation: Emulation, environ: Mapping[str, str]) -> int:
    visible = {**environ, **environment.visible_npus(environ)}
    return probe.count_devices("npu", visible) if "ASCEND_RT_VISIBLE_DEVICES" in visible else emulation.devices


def _tell_rehearsal(run_dir: RunDirectory) -> None:
    from ascend_adapt.emulation import rehearsal

    for line in rehearsal.told(run_dir.path):
        print(f"ascend-run: {line}", file=sys.stderr)


def _plugins(request: requests.Request, environ: Mapping[str, str]) -> PluginManager:
    """Return the plugins of the job; it is not started around one that cannot be used."""
    from ascend_adapt.plugin_manager import PluginManager

    wanted = settings.resolve(environ, disable=request.disable)
    manager = PluginManager(disabled=wanted.disable, allowed=wanted.allowed_plugins)
    manager.check_names(wanted.disable, wanted.allowed_plugins, (*request.allow_drift, *wanted.allow_drift))
    manager.hosts(manager.patches(), hosts.KNOWN)
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
