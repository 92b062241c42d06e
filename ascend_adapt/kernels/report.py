"""`ascend-adapt kernels`: reports the backend of each kernel on this host, why it was chosen, and whether it agrees."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from itertools import groupby
from typing import TYPE_CHECKING, Any

from ascend_adapt import probe, terminal
from ascend_adapt.errors import BackendUnavailable, KernelError
from ascend_adapt.kernels.comparison import Comparison, compare
from ascend_adapt.kernels.dispatch import kernels
from ascend_adapt.kernels.samples import DTYPES, samples

if TYPE_CHECKING:
    from rich.console import Console

_NARROW = 110
"""Minimum width in columns at which the table is readable."""


@dataclass(frozen=True)
class KernelRow:
    """The backend chosen for one kind of call, and the reason."""

    kernel: str
    call: str
    dtype: str
    backend: str
    reason: str
    passed_over: tuple[tuple[str, str], ...] = ()


@dataclass
class KernelReport:
    """The report of `ascend-adapt kernels` for this host."""

    device: str
    device_reason: str
    torch: str
    rows: list[KernelRow] = field(default_factory=list)
    comparisons: list[Comparison] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """Return the report as plain data."""
        compared = [{**asdict(one), "agrees": one.agrees} for one in self.comparisons]
        return {**asdict(self), "comparisons": compared}


def examine(environ: Mapping[str, str], *, check: bool) -> KernelReport:
    """Report the choice for a small call of each kind. With ``check``, also compare each backend with the reference."""
    device, reason = probe.device_to_use(environ.get("ASCEND_ADAPT_DEVICE"), environ)
    try:
        import torch
    except ImportError:
        report = KernelReport(device, reason, "not installed")
        known = [(name, ", ".join(one.name for one in kernel.backends)) for name, kernel in kernels().items()]
        report.rows = [
            KernelRow(name, "every", "", "none", "torch is not installed", ((all_, ""),)) for name, all_ in known
        ]
        if check:
            report.problems.append("torch is not installed, so nothing can be compared — install it")
        return report
    report = KernelReport(device, reason, torch.__version__)
    try:
        if device == "npu":
            importlib.import_module("torch_npu")  # older torch versions do not load it automatically
        torch.empty(1, device=device)
    except (ImportError, RuntimeError, AssertionError) as error:
        problem = f"device {device}: torch cannot use it ({' '.join(str(error).split())[:200]})"
        report.problems.append(f"{problem} — see ascend-adapt doctor")
        return report
    for dtype in DTYPES[device]:
        _examine(report, torch.device(device), getattr(torch, dtype), check)
    return report


def _examine(report: KernelReport, device: Any, dtype: Any, check: bool) -> None:
    known = kernels()
    for name, kind, call in samples(device, dtype):
        kernel, word = known[name], str(dtype).removeprefix("torch.")
        try:
            choice = kernel.choose(call)
            report.rows.append(KernelRow(name, kind, word, choice.backend, choice.reason, choice.passed_over))
        except KernelError as error:
            report.rows.append(KernelRow(name, kind, word, "none", str(error)))
            report.problems.append(str(error))
        if not check:
            continue
        for backend, unfit in kernel.candidates(call):
            if unfit or backend.name == "reference":
                continue
            try:
                compared = compare(kernel, backend.name, call)
            except BackendUnavailable:
                continue
            report.comparisons.append(compared)
            if not compared.agrees:
                report.problems.append(f"{compared} — disable it with ASCEND_ADAPT_KERNELS={name}:reference")


def show(report: KernelReport) -> None:
    """Print the report as a table, or as a list on a narrow terminal."""
    print(f"device: {report.device} ({report.device_reason}), torch {report.torch}")
    console = terminal.stdout()
    if console.is_terminal and console.width < _NARROW:
        _show_list(report)
    else:
        _show_table(report, console)
    if report.comparisons:
        agree = sum(one.agrees for one in report.comparisons)
        print(f"{agree} of {len(report.comparisons)} comparisons with the reference agree, forward and backward")


def _show_list(report: KernelReport) -> None:
    for kernel, rows in groupby(report.rows, key=lambda row: row.kernel):
        terminal.line(kernel, "bold")
        for row in rows:
            terminal.line(f"  {row.backend}: {row.call}, {row.dtype}" if row.dtype else f"  {row.backend}: {row.call}")
            terminal.line(f"    {row.reason}", "dim")
            for name, why in row.passed_over:
                terminal.line(f"    not {name}: {why}" if why else f"    not {name}", "dim")


def _show_table(report: KernelReport, console: Console) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(expand=False)
    for column in ("kernel", "call", "dtype", "backend", "why", "passed over"):
        table.add_column(column, overflow="fold")
    for row in report.rows:
        passed = "; ".join(f"{name}: {why}" if why else name for name, why in row.passed_over)
        cells = (row.kernel, row.call, row.dtype, row.backend, row.reason, passed)
        # In a Text, unlike a str, brackets are not markup.
        table.add_row(*(Text(cell) for cell in cells))
    # A pipe has no width, and the default of 80 columns would wrap every word.
    Console(width=None if console.is_terminal else 200, soft_wrap=False).print(table)
