"""Sets up a process for the emulated NPU: installs kernels when torch_npu is imported, and writes the rank's report."""

from __future__ import annotations

import functools
import json
import os
from pathlib import Path
from types import ModuleType
from typing import Any

from ascend_adapt import at_exit
from ascend_adapt.probe import inherited_rank, own_rank

_is_watching = False


def watch() -> None:
    """Install the kernels right after the import of torch_npu, which torch imports itself, as on an NPU machine."""
    from wrapt import register_post_import_hook

    global _is_watching
    if not _is_watching:
        _is_watching = True
        register_post_import_hook(_install, "torch_npu")


def report_path(run_dir: Path, process: str) -> Path:
    """Return the path of a process's report, named after its rank; other processes use ``RANK-PID`` or ``pPID``."""
    return run_dir / f"rehearsal.{process}.json"


def _install(torch_npu: ModuleType) -> None:
    from ascend_adapt.emulation import full_size, library

    if not library.is_emulated():
        return
    from ascend_adapt.emulation import aten, graphs, location, operators, watching

    aten.install()
    aten.refuse(set(operators.register()))
    library.locate_calls_by(location.of_caller)
    watching.watch()
    graphs.install()
    run_dir = os.environ.get("ASCEND_ADAPT_RUN_DIR")
    if full_size.is_on():
        from ascend_adapt.emulation.full_size import host, memory, trials

        memory.watch(lambda: _write(Path(run_dir), os.getpid()) if run_dir else None)
        host.install()
        trials.install()
    if run_dir:
        _write_at_exit(Path(run_dir))
        os.register_at_fork(after_in_child=lambda: _begin_as_child(Path(run_dir)))


def _process() -> str:
    rank = own_rank()
    if rank is not None:
        return str(rank)
    inherited = inherited_rank()
    return f"p{os.getpid()}" if inherited is None else f"{inherited}-{os.getpid()}"


def _write_at_exit(run_dir: Path) -> None:
    at_exit.call(functools.partial(_write, run_dir, os.getpid()))


def _begin_as_child(run_dir: Path) -> None:
    from ascend_adapt.emulation import report

    report.tally = report.Tally()
    _write_at_exit(run_dir)


def _write(run_dir: Path, pid: int) -> None:
    from ascend_adapt.emulation import report

    if os.getpid() != pid or (own_rank() is None and not report.tally.operators):
        return  # A forked child also runs these exit handlers. Other processes of a rank may have nothing to report.
    path = report_path(run_dir, _process())
    aside = path.with_name(f".{path.name}.{pid}")
    aside.write_text(json.dumps(_facts(), indent=1) + "\n")
    aside.replace(path)


def _facts() -> dict[str, Any]:
    import torch
    import torch_npu

    from ascend_adapt.emulation import full_size, library, report

    counts = library.statistics()
    devices = range(torch.npu.device_count())
    memory = {index: torch.npu.max_memory_allocated(index) for index in devices if torch.npu.memory_reserved(index)}
    waits = {
        "torch.npu.synchronize": int(counts.device_synchronisations),
        "stream synchronization": int(counts.stream_synchronisations),
        "an event's synchronize": int(counts.event_synchronisations),
    }
    facts = report.tally.to_json()
    facts["synchronisations"].update({name: count for name, count in waits.items() if count})
    if full_size.is_on():
        from ascend_adapt.emulation.full_size import host, work
        from ascend_adapt.emulation.full_size import memory as device_memory

        facts["full_size"] = {
            "memory": {str(index): device_memory.to_json(index) for index in memory},
            **work.to_json(),
            "host_skipped": dict(host.skipped),
        }
    return {
        **facts,
        "peak_bytes": {str(index): peak for index, peak in memory.items()},
        "peak_device_bytes": {str(index): int(counts.peak_device_bytes[index]) for index in memory},
        "visible": os.environ.get("ASCEND_RT_VISIBLE_DEVICES", ""),
        "torch": torch.__version__,
        "torch_npu": torch_npu.__version__,
        "soc": torch.npu.get_device_name(0) if devices else "",
    }
