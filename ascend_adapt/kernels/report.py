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
from ascend_adapt.kernels.dispatch import FIRST, kernels
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


@dataclass
class _Choice:
    """One backend of a kernel, with the calls that it is used for, and why, if it is not simply the first that fits."""

    kernel: str
    backend: str
    calls: str
    why: str


def show(report: KernelReport) -> None:
    """Print the report as a table, or as a list on a narrow terminal."""
    print(f"device: {report.device} ({report.device_reason}), torch {report.torch}")
    dtypes = list(dict.fromkeys(row.dtype for row in report.rows if row.dtype))
    if dtypes:
        terminal.line(f"each backend is {FIRST}, in {' and '.join(dtypes)}, unless stated otherwise", "dim")
    choices = _choices(report.rows, dtypes)
    console = terminal.stdout()
    if console.is_terminal and console.width < _NARROW:
        _show_list(choices)
    else:
        _show_table(choices, console)
    if report.comparisons:
        agree = sum(one.agrees for one in report.comparisons)
        print(f"{agree} of {len(report.comparisons)} comparisons with the reference agree, forward and backward")


def _choices(rows: list[KernelRow], dtypes: list[str]) -> list[_Choice]:
    """Return one line per kernel, backend and reason, instead of one per sample call and dtype."""
    calls: dict[tuple[str, str, str], dict[str, list[str]]] = {}
    for row in rows:
        passed = [f"not {name}: {why}" if why else f"not {name}" for name, why in row.passed_over]
        why = "; ".join([row.reason.removeprefix(FIRST).removeprefix("; "), *passed]).removeprefix("; ")
        calls.setdefault((row.kernel, row.backend, why), {}).setdefault(row.call, []).append(row.dtype)
    order = list(dict.fromkeys(row.kernel for row in rows))
    return [
        _Choice(kernel, backend, "; ".join(_named(call, of, dtypes) for call, of in kinds.items()), why)
        for (kernel, backend, why), kinds in sorted(calls.items(), key=lambda one: order.index(one[0][0]))
    ]


def _named(call: str, of: list[str], dtypes: list[str]) -> str:
    return call if of == dtypes or not dtypes else f"{call} ({', '.join(of)})"


def _show_list(choices: list[_Choice]) -> None:
    for kernel, of_kernel in groupby(choices, key=lambda one: one.kernel):
        terminal.line(kernel, "bold")
        for one in of_kernel:
            terminal.line(f"  {one.backend}: {one.calls}")
            if one.why:
                terminal.line(f"    {one.why}", "dim")


def _show_table(choices: list[_Choice], console: Console) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(expand=False)
    for column in ("kernel", "backend", "calls", "why"):
        table.add_column(column, overflow="fold")
    for one in choices:
        # In a Text, unlike a str, brackets are not markup.
        table.add_row(*(Text(cell) for cell in (one.kernel, one.backend, one.calls, one.why)))
    # A pipe has no width, and the default of 80 columns would wrap every word.
    Console(width=None if console.is_terminal else 200, soft_wrap=False).print(table)
