"""Facts that the launcher detects on its host before it places ranks: device, emulation, plugins, run directory."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from ascend_adapt import probe
from ascend_adapt.alignment import recording
from ascend_adapt.errors import LaunchError
from ascend_adapt.launch.jobs import checks
from ascend_adapt.launch.jobs.native import NativeRun
from ascend_adapt.launch.one_host.run_directory import RunDirectory
from ascend_adapt.launch.one_host.termination import GRACE_S, SAVING_GRACE_S
from ascend_adapt.launch.placement import environment
from ascend_adapt.launch.request import Request
from ascend_adapt.runtime import code_bases, settings

if TYPE_CHECKING:
    from ascend_adapt.emulation.environment import Emulation
    from ascend_adapt.runtime.plugin_manager import PluginManager


@dataclass
class Context:
    """A request together with the facts detected on this host.

    ``device`` is the kind of device that patches target. ``devices`` is the number of devices that the job may use
    here. ``notes`` are printed before the job starts.
    """

    request: Request
    environ: Mapping[str, str]
    device: str
    devices: int
    emulation: Emulation | None = None
    native: NativeRun | None = None
    notes: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, request: Request, environ: Mapping[str, str], native: NativeRun | None, notes: list[str]) -> Context:
        """Detect devices, and prepare the emulated NPU if it is requested.

        Raises:
            LaunchError: the emulated NPU is not available here.
        """
        if request.device != "npu-emulated":
            return cls(request, environ, *devices(request, environ), native=native, notes=notes)
        from ascend_adapt.emulation import environment as emulated

        wanted = emulated.count_devices(request.nproc, environ)
        sizes = request.full_size_steps, request.memory
        emulation = emulated.prepare(request.soc, wanted, environ, notes.append, *sizes)
        visible = {**environ, **environment.visible_npus(environ)}
        narrowed = "ASCEND_RT_VISIBLE_DEVICES" in visible
        found = probe.count_devices("npu", visible) if narrowed else emulation.devices or 1
        return cls(request, environ, "npu", found, emulation, native, notes)

    @property
    def label(self) -> str:
        """Name of the device in the plan."""
        return self.request.device if self.emulation else self.device

    @property
    def adapts(self) -> bool:
        """Whether patches are applied in this job."""
        return self.request.adapt and not settings.is_off(self.environ)

    @property
    def asks_for_device(self) -> bool:
        """Whether the user chose the kind of device; otherwise each host detects its devices."""
        return self.request.device != "auto" or settings.resolve(self.environ).device is not None

    @property
    def grace(self) -> float:
        """Grace period from SIGTERM to SIGKILL, in seconds."""
        if self.request.grace is not None:
            return self.request.grace
        return SAVING_GRACE_S if self.request.native else GRACE_S

    def run_dir(self, node: int = 0) -> RunDirectory:
        """Return the run directory: ``--log-dir``, a native run's save folder, or a new folder under runs/."""
        saves_to = self.native.recipe.save if self.native is not None else None
        shown = self.request.log_dir or saves_to or default_run_dir(self.request.native or self.request.target)
        return RunDirectory(Path(os.path.abspath(shown)), node, shown)

    def check(self, device: str, nodes: int) -> None:
        """Check everything that depends on the device and the number of hosts; add a note for each likely problem.

        Raises:
            LaunchError: the job would fail.
        """
        problems = checks.Problems()
        problems.collect(lambda: self.notes.extend(environment.warnings(device, self.environ, nodes)))
        problems.collect(lambda: checks.check_compile_mode(self.request, device, self.adapts))
        if self.request.record is not None and not self.request.node:
            folder = Path(self.request.record)
            problems.collect(lambda: recording.refuse_existing(folder))
        if self.adapts or self.emulation or self.request.record is not None:
            problems.collect(checks.check_bootstrap)
        problems.raise_all()

    def env(self, device: str, run_dir: RunDirectory, hccl_base_port: int | None, nodes: int) -> dict[str, str]:
        """Return the variables that are set for every process of the job.

        ``hccl_base_port`` is None if each host chooses its own.

        Raises:
            LaunchError: a plugin cannot be used.
        """
        patches = self._patches_env(device) if self.adapts else environment.SWITCHED_OFF
        emulated = environment.of_emulation(self.emulation, self.environ) if self.emulation else {}
        return {
            **environment.of_recording(self.request, self.environ),
            **patches,
            **emulated,
            **environment.of_device(device, str(run_dir.path), hccl_base_port, self.environ, nodes),
            "ASCEND_ADAPT_RUN_DIR": str(run_dir.path),
        }

    def _patches_env(self, device: str) -> dict[str, str]:
        manager = _plugins(self.request, self.environ)
        roots = {one.patch.target.root for one in manager.patches()} - {"__main__"}
        # Helper processes import parts of the standard library at startup. Targets among them would adapt each helper.
        targets = roots - environment.STANDARD_LIBRARY
        return {
            **manager.launch_env(device, self.environ),
            **environment.of_patches(self.request, device, targets, self.environ),
        }


def devices(request: Request, environ: Mapping[str, str]) -> tuple[str, int]:
    """Return the kind and number of the devices that a job may use on this host."""
    asked = request.device if request.device != "auto" else settings.resolve(environ).device
    device, _ = probe.device_to_use(asked, environ)
    return device, probe.count_devices(device, {**environ, **environment.visible_npus(environ)})


def default_run_dir(target: str) -> str:
    """Return the default run directory: ``runs/<script>-<time>-<pid>``."""
    name = Path(target).name.removesuffix(".py")
    return os.path.join("runs", f"{name}-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}")


def _plugins(request: Request, environ: Mapping[str, str]) -> PluginManager:
    """Return the plugins of the job.

    Raises:
        LaunchError: a plugin cannot be used.
    """
    from ascend_adapt.runtime.plugin_manager import PluginManager

    wanted = settings.resolve(environ, disable=request.disable)
    manager = PluginManager.of(wanted)
    manager.check_names(wanted.disable, wanted.allowed_plugins, (*request.allow_drift, *wanted.allow_drift))
    manager.hosts(manager.patches(), code_bases.KNOWN)
    if manager.extends_kernels:
        from ascend_adapt.kernels import dispatch

        manager.kernels(dispatch.unusable)
    if manager.problems:
        raise LaunchError("\n".join(manager.problems))
    return manager
