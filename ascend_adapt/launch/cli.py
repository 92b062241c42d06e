"""`ascend-run`: read the command line, plan, and start the job or print the plan."""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from importlib.machinery import PathFinder
from pathlib import Path

from ascend_adapt import probe, settings
from ascend_adapt.errors import AdaptError, LaunchError, SettingsError
from ascend_adapt.launch import plan as planning
from ascend_adapt.launch import request as requests


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


class _Usage(LaunchError):
    """The command line names something that cannot be used."""


def _run(request: requests.Request, environ: Mapping[str, str]) -> int:
    if request.is_module:
        _check_module(request.target)
    else:
        _check_script(Path(request.target))
    device, found = _devices(request, environ)
    run_dir = request.log_dir or _default_run_dir(request.target)
    plan = planning.build(
        request,
        device=device,
        devices_found=found,
        environ=environ,
        plugin_env=_plugin_env(request, device, environ),
        free_port=_free_port(),
        run_dir=os.path.abspath(run_dir),
    )
    if request.dry_run:
        print(json.dumps(plan.to_json(), indent=1))
        return 0
    try:
        Path(run_dir).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise LaunchError(f"run directory {run_dir}: {error.strerror} — choose another with --log-dir") from error
    print(f"ascend-run: run directory {run_dir}", file=sys.stderr, flush=True)

    from ascend_adapt.launch import runner

    return runner.run(plan, request.max_restarts)


def _check_script(path: Path) -> None:
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
    return device, probe.count_devices(device, environ)


def _plugin_env(request: requests.Request, device: str, environ: Mapping[str, str]) -> dict[str, str]:
    """The variables plugins want; a job is not started around a plugin that cannot be used."""
    if not request.adapt or settings.is_off(environ):
        return {}
    from ascend_adapt.plugin_manager import PluginManager

    wanted = settings.resolve(environ, disable=request.disable)
    manager = PluginManager(disabled=wanted.disable, allowed=wanted.allowed_plugins)
    manager.check_names(wanted.disable, wanted.allowed_plugins)
    if manager.problems:
        raise LaunchError("\n".join(manager.problems))
    return manager.launch_env(device, environ)


def _default_run_dir(target: str) -> str:
    name = Path(target).stem if target.endswith(".py") else target
    return os.path.join("runs", f"{name}-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}")


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


if __name__ == "__main__":
    sys.exit(main())
