"""Writes the tables of docs/audit.md: other patchers, read on the releases that they are for.

Usage: audits.py FOLDER, which holds what COMMANDS fetch into it. Prints nothing but progress.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from ascend_adapt.audit import reading

PAGE = Path(__file__).parents[2] / "docs" / "audit.md"
BEGIN, END = "<!-- made by `tests/upstream/audits.py` -->", "<!-- end of what is made -->"
COMMANDS = """
git clone https://github.com/Ascend/MindSpeed && git -C MindSpeed checkout --quiet 028de58c
git clone https://github.com/NVIDIA/Megatron-LM
git -C Megatron-LM worktree add ../core_v0.12.1 core_v0.12.1      # and core_v0.8.0, core_v0.16.0, core_v0.19.0
git clone https://github.com/vllm-project/vllm-ascend && git -C vllm-ascend checkout --quiet v0.23.0
git clone https://github.com/Ascend/DeepSpeed ascend-deepspeed
pip download --no-deps --no-binary :all: vllm==0.23.0             # unpacked as vllm
pip download --no-deps liger-kernel==0.8.5 ms-swift==4.6.0 torch_npu==2.13.0    # each unpacked
"""


@dataclass(frozen=True)
class Case:
    """A patcher's source, and the source of what it patches; the installed packages where that is empty."""

    patcher: str
    folder: str
    on: str
    upstream: str = ""


CASES = (
    *(
        Case("MindSpeed 028de58c", "MindSpeed/mindspeed", f"Megatron-LM {tag}", tag)
        for tag in ("core_v0.8.0", "core_v0.12.1", "core_v0.16.0", "core_v0.19.0")
    ),
    Case("vllm-ascend 0.23.0", "vllm-ascend/vllm_ascend", "vllm 0.23.0", "vllm"),
    Case("ms-swift 4.6.0", "swift", "transformers 5.24.0, torch 2.13.0"),
    Case("Liger-Kernel 0.8.5", "liger_kernel", "transformers 5.24.0"),
    Case("deepspeed_npu, Ascend/DeepSpeed", "ascend-deepspeed/deepspeed_npu", "DeepSpeed 0.19.8"),
    Case("torch_npu 2.13.0, transfer_to_npu and contrib", "torch_npu/contrib", "torch 2.13.0"),
    Case("torch_npu 2.13.0, all of it", "torch_npu", "torch 2.13.0"),
)
STATES = ("exists", "missing", "added", "signature differs", "set to None", "unknown")
SHOWN = 6


def main() -> None:
    """Read every case and write the page."""
    folder = Path(sys.argv[1])
    rows = [f"| patcher | on | sites | {' | '.join(STATES)} | several values |", "|" + "---|" * (len(STATES) + 4)]
    faults: list[str] = []
    for case in CASES:
        print(case, file=sys.stderr)
        read = reading.read(folder / case.folder, [folder / case.upstream] if case.upstream else [])
        counts = read.counts()
        cells = [str(counts.get(state, 0)) for state in STATES]
        rows.append(f"| {case.patcher} | {case.on} | {len(read.judged)} | {' | '.join(cells)} | {len(read.several)} |")
        missing = [one for one in read.judged if one.state == "missing"]
        missing += [one for one in read.judged if one.state == "added" and ", it has " in one.reason]
        if missing:
            faults += ["", f"{case.patcher} on {case.on}:", ""]
            faults += [f"- `{one.site.target}`: {one.reason}" for one in missing[:SHOWN]]
            faults += [f"- and {len(missing) - SHOWN} more"] if len(missing) > SHOWN else []
    text = PAGE.read_text(encoding="utf-8")
    before, after = text[: text.index(BEGIN) + len(BEGIN)], text[text.index(END) :]
    PAGE.write_text("\n".join([before, "", *rows, *faults, "", after]), encoding="utf-8")


if __name__ == "__main__":
    main()
