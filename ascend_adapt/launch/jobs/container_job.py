"""A job inside a container: builds the docker or podman command, which exposes no more of the host than necessary.

The device nodes and driver paths come from the Ascend documentation on containers. They have not been tested on an
NPU.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ascend_adapt import probe
from ascend_adapt.errors import LaunchError
from ascend_adapt.launch.jobs.context import default_run_dir, devices
from ascend_adapt.launch.jobs.job import Job
from ascend_adapt.launch.one_host.run_directory import RunDirectory
from ascend_adapt.launch.one_host.termination import GRACE_S
from ascend_adapt.launch.placement import cluster_environment, environment
from ascend_adapt.launch.placement.plan import LOCALHOST, Plan, RankCommand
from ascend_adapt.launch.request import Request

ENGINES = ("docker", "podman")
_NPU_MANAGERS = ("/dev/davinci_manager", "/dev/devmm_svm", "/dev/hisi_hdc")
_PREFIXES = ("ASCEND_ADAPT_", "HCCL_", "NCCL_", "OMP_")
_NPU_DRIVER = ("/usr/local/Ascend/driver", "/usr/local/dcmi", "/usr/local/bin/npu-smi", "/etc/ascend_install.info")


@dataclass
class ContainerJob(Job):
    """A job that starts the container engine's client once; `ascend-run` inside the container starts the ranks."""

    grace: float = GRACE_S

    @classmethod
    def of(cls, request: Request, environ: Mapping[str, str]) -> ContainerJob:
        """Return the job for a request.

        Raises:
            LaunchError: the job cannot be started as requested.
        """
        if request.line is None and request.form != "command":
            cluster_environment.refuse_copies(request, environ)
        # The emulated NPU is built inside the container, so it needs no device of this host.
        device = "cpu" if request.device == "npu-emulated" else devices(request, environ)[0]
        shown = request.log_dir or default_run_dir(request.target)
        run_dir = RunDirectory(Path(os.path.abspath(shown)), 0, shown)
        run_dir.check()
        grace = request.grace if request.grace is not None else GRACE_S
        return cls(plan(request, device, environ, run_dir.path), run_dir, grace)

    def run(self) -> int:
        """Run the container until it exits, then remove it."""
        from ascend_adapt.launch.one_host import runner
        from ascend_adapt.launch.one_host.guardian import Assignment

        try:
            return runner.run(Assignment(self.plan, self.run_dir, grace=self.grace))
        finally:
            remove(self.plan)


def engine() -> str:
    """Return the name of the container engine.

    Raises:
        LaunchError: none is installed.
    """
    for name in ENGINES:
        if shutil.which(name) is not None:
            return name
    raise LaunchError(
        f"--container: neither {' nor '.join(ENGINES)} found on PATH — install one, or leave --container out"
    )


def command(
    request: Request,
    inner: Sequence[str],
    *,
    engine: str,
    name: str,
    device: str,
    environ: Mapping[str, str],
    variables: Sequence[str],
    folder: Path,
    exists: frozenset[str],
) -> tuple[str, ...]:
    """Return the command that runs ``inner`` in a container.

    Args:
        request: the request, which names the image and OneFlow's launch_container options src, py, wheel and cmd.
        inner: the command inside the container, such as ascend-run with its options.
        engine: docker or podman.
        name: name of the container, used to remove it.
        device: the kind of device; the container gets the visible devices of this kind and no others.
        environ: the launcher's environment.
        variables: names of the variables that the container gets; the engine reads their values from its
            environment, so that they appear neither on a command line nor on disk.
        folder: the working folder, mounted at the same path.
        exists: predicate for whether a driver path exists on this host.

    Raises:
        LaunchError: the folder of --src or the file of --wheel does not exist.
    """
    mounts = [(str(folder), "")]
    if request.source is not None:
        if not Path(request.source).is_dir():
            raise LaunchError(f"--src {request.source}: is not a folder, expected a folder to mount — correct the path")
        mounts.append((os.path.abspath(request.source), ""))
    if request.wheel is not None:
        if not Path(request.wheel).is_file():
            raise LaunchError(f"--wheel {request.wheel}: is not a file, expected a wheel to install — correct the path")
        mounts.append((os.path.abspath(request.wheel), ":ro"))
    devices: list[str] = []
    if device == "npu":
        nodes = [f"/dev/davinci{number}" for number in visible(device, environ)]
        devices = [f"--device={node}" for node in (*nodes, *_NPU_MANAGERS)]
        mounts += [(path, ":ro") for path in _NPU_DRIVER if path in exists]
    elif device == "cuda":
        devices = ["--gpus", f'"device={",".join(visible(device, environ))}"']
    return (
        *(engine, "run", "--rm", "--init", "--name", name, "--network=host", "--ipc=host"),
        *("--user", f"{os.getuid()}:{os.getgid()}"),
        *(word for name in variables for word in ("--env", name)),
        *devices,
        *(word for path, mode in dict(mounts).items() for word in ("--volume", f"{path}:{path}{mode}")),
        *("--workdir", str(folder), request.container or ""),
        *_inside(request, inner),
    )


def visible(device: str, environ: Mapping[str, str]) -> list[str]:
    """Return the numbers of this host's devices that are visible to the job."""
    listed = environ.get(probe.VISIBLE_DEVICES[device])
    if listed is not None:
        return [word.strip() for word in listed.split(",")][: probe.count_devices(device, environ)]
    return [re.sub(r"\D", "", name) for name in probe.device_nodes(device)]


def _inside(request: Request, inner: Sequence[str]) -> tuple[str, ...]:
    """Return the command inside the container; it is a shell line if a wheel, PYTHONPATH or --cmd requires a shell."""
    line = request.line if request.line is not None else shlex.join(inner)
    before = []
    python = request.python if request.python is not None else "python3"
    if request.wheel is not None:
        before.append(shlex.join([python, "-m", "pip", "install", "--user", os.path.abspath(request.wheel)]))
    if request.source is not None:
        before.append(f"export PYTHONPATH={shlex.quote(os.path.abspath(request.source))}${{PYTHONPATH:+:$PYTHONPATH}}")
    if not before and request.line is None:
        return tuple(inner)
    return ("bash", "-c", " && ".join([*before, line]))


def plan(request: Request, device: str, environ: Mapping[str, str], run_dir: Path) -> Plan:
    """Return the plan of a job in a container, which starts the engine's client once.

    Raises:
        LaunchError: command() raises it, or the container would see ~/.ssh.
    """
    folder = Path.cwd()
    home = Path(environ.get("HOME") or os.path.expanduser("~"))
    if home.is_relative_to(folder):
        raise LaunchError(
            f"--container: the working folder {folder} contains your home with ~/.ssh and would be mounted in the "
            "container — start it in your project's folder"
        )
    if request.hostfile is not None:
        raise LaunchError("--container with --hostfile: not supported — start one container on each host")
    inner = ["ascend-run", "--log-dir", str(run_dir / "container"), *request.inner]
    env = {name: environ[name] for name in _passed_on(request, environ)}
    argv = command(
        request,
        inner,
        engine=engine(),
        name=f"ascend-run-{os.getpid()}",
        device=device,
        environ=environ,
        variables=list(env),
        folder=folder,
        exists=frozenset(path for path in _NPU_DRIVER if os.path.exists(path)),
    )
    return Plan(None, None, None, (RankCommand(LOCALHOST, None, None, device, env, argv),))


def remove(job: Plan) -> None:
    """Remove the container in case its client was killed."""
    argv = job.ranks[0].argv
    subprocess.run([argv[0], "rm", "--force", argv[argv.index("--name") + 1]], capture_output=True)


def _passed_on(request: Request, environ: Mapping[str, str]) -> list[str]:
    """Return the names of the variables to forward, without those of install paths and devices, which differ inside."""
    environment.check_exported(environ, request.export)
    return [
        name
        for name in environ
        if (name.startswith(_PREFIXES) and name not in environment.OF_ANOTHER_JOB) or name in request.export
    ]
