"""A job inside a container: the docker or podman command line, which exposes no more of the host than the job needs.

Source of the device nodes and driver paths: the Ascend documentation on containers, read through design notes; not
tested on an NPU.
"""

from __future__ import annotations

import os
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
    """The container engine's client, started once; the `ascend-run` inside the container starts the ranks."""

    grace: float = GRACE_S

    @classmethod
    def of(cls, request: Request, environ: Mapping[str, str]) -> ContainerJob:
        """Return the job for a request.

        Raises:
            LaunchError: it cannot be started as requested.
        """
        if request.line is None and request.form != "command":
            cluster_environment.refuse_copies(request, environ)
        # The emulated NPU is built inside the container and needs no device of this host.
        device = "cpu" if request.device == "npu-emulated" else devices(request, environ)[0]
        shown = request.log_dir or default_run_dir(request.target)
        run_dir = RunDirectory(Path(os.path.abspath(shown)), 0, shown)
        run_dir.check()
        grace = request.grace if request.grace is not None else GRACE_S
        return cls(plan(request, device, environ, run_dir.path), run_dir, grace)

    def prepare(self) -> None:
        """Create the run directory, and write the container's variables to a file that only this user can read."""
        super().prepare()
        write_env_file(self.plan, self.run_dir.path)

    def run(self) -> int:
        """Run the container until it exits, then remove it."""
        from ascend_adapt.launch.one_host import runner
        from ascend_adapt.launch.one_host.guardian import Assignment

        try:
            return runner.run(Assignment(self.plan, self.run_dir, grace=self.grace))
        finally:
            remove(self.plan, self.run_dir.path)


def engine() -> str:
    """Return the name of the container engine.

    Raises:
        LaunchError: none is installed.
    """
    for name in ENGINES:
        if shutil.which(name) is not None:
            return name
    raise LaunchError(f"--container: neither {' nor '.join(ENGINES)} found on PATH — install one, or leave it out")


def command(
    request: Request,
    inner: Sequence[str],
    *,
    engine: str,
    name: str,
    device: str,
    environ: Mapping[str, str],
    env_file: str,
    folder: Path,
    exists: frozenset[str],
) -> tuple[str, ...]:
    """Return the command that runs ``inner`` in a container.

    Args:
        request: the image, and OneFlow's launch_container options src, py, wheel and cmd.
        inner: the command inside the container, such as ascend-run with its options.
        engine: docker or podman.
        name: name of the container, used to remove it.
        device: the kind of device; the container gets the visible ones and no others.
        environ: the launcher's environment.
        env_file: file with the job's variables, which keeps them off the command line.
        folder: the working folder, mounted at the same path.
        exists: the driver paths that exist on this host.

    Raises:
        LaunchError: the folder of --src or the file of --wheel does not exist.
    """
    mounts = [(str(folder), "")]
    if request.source is not None:
        if not Path(request.source).is_dir():
            raise LaunchError(f"--src {request.source}: is not a folder, expected the sources to mount — correct it")
        mounts.append((os.path.abspath(request.source), ""))
    if request.wheel is not None:
        if not Path(request.wheel).is_file():
            raise LaunchError(f"--wheel {request.wheel}: is not a file, expected a wheel to install — correct it")
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
        *("--user", f"{os.getuid()}:{os.getgid()}", "--env-file", env_file),
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
    return ["".join(filter(str.isdigit, name)) for name in probe.device_nodes(device)]


def _inside(request: Request, inner: Sequence[str]) -> tuple[str, ...]:
    """Return the command that the container runs; a shell line if a wheel, PYTHONPATH or --cmd needs one."""
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
    """Return the plan of a job in a container: the engine's client, started once.

    Raises:
        LaunchError: as command(); or the container would see ~/.ssh.
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
    argv = command(
        request,
        inner,
        engine=engine(),
        name=f"ascend-run-{os.getpid()}",
        device=device,
        environ=environ,
        env_file=str(env_file(run_dir)),
        folder=folder,
        exists=frozenset(path for path in _NPU_DRIVER if os.path.exists(path)),
    )
    env = {name: environ[name] for name in _passed_on(request, environ)}
    return Plan(None, None, None, (RankCommand(LOCALHOST, None, None, device, env, argv),))


def env_file(run_dir: Path) -> Path:
    """Return the path of the file with the container's variables."""
    return run_dir / ".container-env"


def write_env_file(job: Plan, run_dir: Path) -> None:
    """Write the container's variables to a file that only this user can read.

    Raises:
        LaunchError: they cannot be written.
    """
    text = env_file_text(job.ranks[0].env)
    try:
        env_file(run_dir).unlink(missing_ok=True)
        descriptor = os.open(env_file(run_dir), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w", errors="surrogateescape") as file:
            file.write(text)
    except OSError as error:
        env_file(run_dir).unlink(missing_ok=True)
        raise LaunchError(
            f"{env_file(run_dir)}: {error.strerror}, expected a file to write to — choose another --log-dir"
        ) from error


def remove(job: Plan, run_dir: Path) -> None:
    """Remove the file with the variables, and the container in case its client was killed."""
    env_file(run_dir).unlink(missing_ok=True)
    argv = job.ranks[0].argv
    subprocess.run([argv[0], "rm", "--force", argv[argv.index("--name") + 1]], capture_output=True)


def _passed_on(request: Request, environ: Mapping[str, str]) -> list[str]:
    """Return the names of the variables to pass on; those for install paths and devices differ in the container."""
    environment.check_exported(environ, request.export)
    return [name for name in environ if name.startswith(_PREFIXES) or name in request.export]


def env_file_text(env: Mapping[str, str]) -> str:
    """Return variables in the format of docker's and podman's --env-file: one NAME=value per line, without quoting.

    Raises:
        LaunchError: a value contains a line break, which the format cannot represent.
    """
    for name, value in env.items():
        if "\n" in value:
            raise LaunchError(f"{name}: has a line break, which an --env-file cannot hold — unset it, or leave it out")
    return "".join(f"{name}={value}\n" for name, value in env.items())
