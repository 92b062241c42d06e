"""Print the table of docs/own-script-programs.md from the records of runs: table.py RECORDS.jsonl...

Programs without a record on a device are left out. Later records of a job on a device replace earlier ones. Records of
`run.py --plain` are what happens without this project.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import records
import upstream_job
from code_bases import code_base
from own_scripts.other_fields import NOT_COMPARED
from records import Record
from upstream_job import UpstreamJob

HEADER = (
    "| program | command | CPU | emulated NPU | losses | adapted | without this project, on this CPU | measured at |",
    "|---|---|---|---|---|---|---|---|",
)


def row(job: UpstreamJob, seen: dict[str, Record]) -> str:
    """Return a job's line."""
    commit = code_base(job.code_base).commit if job.code_base else ""
    source = f"{job.name} `{commit}`" if commit else f"{job.name} ({' '.join(job.release or job.needs)}, PyPI)"
    cpu, npu = seen.get("cpu"), seen.get("npu-emulated")
    adapted = sorted({name for one in (cpu, npu) if one for name in one.applied if not name.startswith("deepspeed.")})
    by_plugin: dict[str, int] = {}
    for name in adapted:
        by_plugin[name.partition(".")[0]] = by_plugin.get(name.partition(".")[0], 0) + 1
    patches = ", ".join(f"{plugin} {count}" for plugin, count in by_plugin.items())
    cells = (
        source,
        _words(job),
        _result(cpu),
        _result(npu),
        _losses(job, cpu, npu),
        patches,
        _plain(seen.get("plain")),
        _measured_at(cpu, npu),
    )
    return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"


def _measured_at(*devices: Record | None) -> str:
    """Return this project's commit at each device's run, once if they are the same."""
    return ", ".join(dict.fromkeys(f"`{one.commit}`" for one in devices if one is not None and one.commit))


def _words(job: UpstreamJob) -> str:
    words = " ".join(job.words)
    shown = words if len(words) <= 90 else f"{words[:90]} ..."
    return f"`{shown}`" + (f", {job.nproc} ranks" if job.nproc > 1 else "")


def _result(one: Record | None) -> str:
    if one is None:
        return "not run"
    return "runs" if not one.problems else f"**fails**: {_short(one.problems[0])}"


def _losses(job: UpstreamJob, cpu: Record | None, npu: Record | None) -> str:
    shown = next((one.losses for one in (cpu, npu) if one is not None and one.losses), ())
    text = " ".join(f"{loss:.7g}" for loss in shown[:4]) + (" ..." if len(shown) > 4 else "")
    if cpu is None or npu is None or not cpu.losses or not npu.losses:
        return text
    if cpu.losses == npu.losses:
        return f"{text}; equal in every printed digit"
    if job.bound == NOT_COMPARED["bound"]:
        return f"{text}; not compared"
    return f"{text}; {upstream_job.apart(cpu.losses, npu.losses):.1e} apart, at most {job.bound:.0e}"


def _plain(one: Record | None) -> str:
    if one is None:
        return "not run"
    if not one.code and not one.losses:
        return "exit code 0, nothing trained"
    return "runs" if not one.code else f"`{_short(one.reported)}`"


def _short(text: str) -> str:
    return text.partition(" (exit code")[0].removeprefix("exit code 1: ")[:140]


def main() -> int:
    """Print the table."""
    seen: dict[str, dict[str, Record]] = {}
    for path in sys.argv[1:]:
        for one in records.read(Path(path)):
            device = one.device if one.adapted else "plain"
            seen.setdefault(one.job.partition(":")[2], {})[device] = one
    ran = [job for job in upstream_job.jobs("own_scripts") if {"cpu", "npu-emulated"} & seen.get(job.name, {}).keys()]
    print("\n".join([*HEADER, *(row(job, seen[job.name]) for job in ran)]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
