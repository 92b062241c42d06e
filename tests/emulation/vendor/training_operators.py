"""Counts which operators of torch_npu the vendor's training repositories call, and which of them the emulation has.

training_operators.py CHECKOUTS: the repositories are cloned from github.com/Ascend to that folder, and read at stated
commits. Writes the sentence and the list of docs/rehearsal.md.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

from run import clone

from ascend_adapt.emulation import environment
from ascend_adapt.launch.placement import environment as launch_environment

PAGE = Path(__file__).parents[3] / "docs" / "rehearsal.md"
REPOSITORIES = {
    "MindSpeed": "028de58ca629d035185b00ff7d1eb7eff4f7fd48",
    "MindSpeed-LLM": "c77308a14bfcb1aa7ca61da9c1aa24a893cb1b91",
    "MindSpeed-MM": "57069cd55a8ab16d5affe379a2e2c5f0a4d962b9",
}
ONLY_ASCEND950 = re.compile(r"_mx_quant|_block_quant")
"""Formats of fewer than 16 bits that a 910B does not have."""
ONLY_ATLAS_A3 = frozenset(("npu_alltoallv_gmm", "npu_gmm_alltoallv"))
"""As their pages in op-plugin's docs/zh/custom_APIs/torch_npu state; a 910B is an Atlas A2."""
_CALL = re.compile(r"\b(?:torch_npu|torch\.ops\.npu)\.([a-z_0-9]+) *\(")
_BETWEEN = re.compile(r"(<!-- made by training_operators.py -->)\n(.*?)\n(<!-- end of what is made -->)", re.S)


def calls(checkouts: Path) -> Counter[str]:
    """Return how often the repositories' Python files call each name of torch_npu."""
    found: Counter[str] = Counter()
    for name, commit in REPOSITORIES.items():
        clone(checkouts / name, f"https://github.com/Ascend/{name}")
        command = ["git", "-C", str(checkouts / name), "grep", "-hE", r"(torch_npu|torch\.ops\.npu)\.", commit]
        lines = subprocess.run([*command, "--", "*.py"], capture_output=True, text=True, check=True).stdout
        found.update(_CALL.findall(lines))
    return found


def main() -> int:
    if not os.environ.get("ASCEND_ADAPT_EMULATED"):
        environ = dict(os.environ)
        machine = environment.prepare("910B", 1, environ, print)
        environ |= launch_environment.of_emulation(machine, environ)
        os.execvpe(sys.executable, [sys.executable, *sys.argv], environ)
    import torch

    from ascend_adapt.emulation import operators

    runs = {name.removeprefix("npu::").partition(".")[0] for name in operators.register()}
    all_calls = calls(Path(sys.argv[1]))
    called = {name: count for name, count in all_calls.items() if hasattr(torch.ops.npu, name)}
    elsewhere = ONLY_ATLAS_A3 | {name for name in called if ONLY_ASCEND950.search(name)}
    known = {name: count for name, count in called.items() if name not in elsewhere}
    emulated = {name: count for name, count in known.items() if name in runs}
    missing = sorted(known.keys() - runs, key=lambda name: (-known[name], name))
    text = (
        f"Of {len(known)} operators that MindSpeed, MindSpeed-LLM and MindSpeed-MM call and a 910B has, "
        f"{len(emulated)} run, at {sum(emulated.values())} of {sum(known.values())} call sites "
        f"({100 * sum(emulated.values()) / sum(known.values()):.0f} %). Not emulated, with their number of call sites: "
        + ", ".join(f"`{name}` {known[name]}" for name in missing)
        + f". Left out are {len(called) - len(known)} operators that only an Atlas A3 or an Ascend950 has."
    )
    PAGE.write_text(_BETWEEN.sub(lambda match: f"{match[1]}\n{text}\n{match[3]}", PAGE.read_text()))
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
