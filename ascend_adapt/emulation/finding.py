"""Findings of a rehearsal: the line of the script, the severity on a cluster, and the suggested replacement."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

UNSUPPORTED, LIMIT, CUDA_ONLY, NOT_MOVED = "unsupported operator", "limit", "CUDA-only call", "model on the CPU"
SCALER, CAST, ON_THE_HOST, WAIT = "GradScaler for another device", "cast", "CPU fallback", "host-device sync"
NOT_COMPILED = "not compiled"
PRINT = "print of a tensor"
"""What all host-device syncs of torch's formatting of a tensor are reported as; it calls a dozen operators."""

# In the order of the report: errors that stop the job, errors in its results, and slow code.
_KINDS = (UNSUPPORTED, LIMIT, CUDA_ONLY, NOT_MOVED, SCALER, CAST, ON_THE_HOST, WAIT, NOT_COMPILED)

_INSTEAD = {
    UNSUPPORTED: "the rehearsal stopped here: use a variant of the model without it",
    LIMIT: "change the call to stay within the limit",
    CUDA_ONLY: "use torch.accelerator, or the same function of torch.npu",
    NOT_MOVED: "call model.to(device) before you create the optimizer",
    SCALER: 'use torch.amp.GradScaler("npu"), or bfloat16 without a scaler',
    CAST: "use float32, or compute in float64 on the host: x.cpu().double()",
    ON_THE_HOST: "each call copies its tensors to the host and back: use another operator, or call it before the loop",
    WAIT: "keep the value on the device, and read it only every N steps",
    NOT_COMPILED: "the rehearsal does not show whether triton-ascend or CANN can compile it",
}
_BY_VALUES = "use torch.where(mask, a, b) or a product with the mask, so that no shape depends on values"
_INSTEAD_OF_OPERATORS = {
    "aten::nonzero": _BY_VALUES,
    "aten::masked_select": _BY_VALUES,
    "aten::index": _BY_VALUES,
    "aten::unique": "compute it in the DataLoader, on the host",
    "copy to the host": "copy it every N steps, or with non_blocking=True into pinned memory",
    PRINT: "print every N steps",
    "torch.npu.synchronize": "remove it, or keep it only for timing",
}
_IN_PYTHON = {
    "aten::_local_scalar_dense": ".item(), float() or a condition",
    "copy to the host": ".cpu(), .tolist() or .numpy()",
}


@dataclass(frozen=True)
class Finding:
    """One kind of finding at one line, of all ranks."""

    kind: str
    what: str
    file: str
    line: int
    count: int
    """Number of occurrences, on the rank that has the most."""
    bytes: int
    detail: str
    steps: int
    """Number of optimizer steps of that rank."""

    @property
    def instead(self) -> str:
        """Suggested replacement of the code."""
        base = self.what.partition(".")[0] if self.what.startswith("aten::") else self.what
        return _INSTEAD_OF_OPERATORS.get(base, _INSTEAD[self.kind])

    @property
    def place(self) -> str:
        """Location of the finding: ``train.py:12``, or ``(unknown line)``."""
        return f"{self.file}:{self.line}" if self.file else "(unknown line)"

    def text(self) -> str:
        """Return the finding's text, without its location."""
        often = f"{self.count} time{'' if self.count == 1 else 's'}"
        if self.kind in (WAIT, ON_THE_HOST) and self.steps and self.count >= self.steps:
            a_step = round(self.count / self.steps, 1)
            often = f"{a_step:g} time{'' if a_step == 1 else 's'} per optimizer step"
        size = f", {self.bytes} bytes" if self.bytes else ""
        python = f" ({_IN_PYTHON[self.what]})" if self.what in _IN_PYTHON else ""
        what = f"{self.kind}: {self.what}{python}" + (f": {self.detail}" if self.detail else "")
        return f"{what} ({often}{size})"


def merged(ranks: Iterable[Mapping[str, Any]]) -> list[Finding]:
    """Merge the findings of all ranks, the most serious first; of equal findings, keep the highest count."""
    most: dict[tuple[str, str, str, int], Finding] = {}
    for facts in ranks:
        for one in facts.get("findings", ()):
            found = Finding(**one, steps=facts["steps"])
            key = found.kind, found.what, found.file, found.line
            if key not in most or most[key].count < found.count:
                most[key] = found
    return sorted(most.values(), key=lambda found: (_KINDS.index(found.kind), -found.count, found.file, found.line))


def alike(findings: Iterable[Finding]) -> list[list[Finding]]:
    """Group findings that differ only in their line within one file; keep their order."""
    groups: dict[tuple[str, str, str, str], list[Finding]] = {}
    for found in findings:
        groups.setdefault((found.kind, found.what, found.detail, found.file), []).append(found)
    return list(groups.values())


def github_annotation(found: Finding) -> str:
    """Return the workflow command that makes GitHub show a finding at its line."""
    level = "error" if _KINDS.index(found.kind) < _KINDS.index(CAST) else "warning"
    root = os.environ.get("GITHUB_WORKSPACE") or os.getcwd()
    file = os.path.relpath(found.file, root) if found.file.startswith(f"{root}/") else found.file
    at = f"file={_property(file)},line={found.line}," if found.file else ""
    message = f"{found.text()} — {found.instead}".replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
    return f"::{level} {at}title={_property(f'rehearsal: {found.kind}')}::{message}"


def _property(text: str) -> str:
    for sign, code in (("%", "%25"), ("\r", "%0D"), ("\n", "%0A"), (":", "%3A"), (",", "%2C")):
        text = text.replace(sign, code)
    return text
