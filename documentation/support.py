"""Writes the support matrix of both READMEs, and docs/evidence.md.

``python documentation/support.py`` updates these files from records: documentation/runs.yaml (runs),
tests/upstream/*.json (releases on whose source every patch was judged), the shipped evidence records, setup.cfg and the
CANN releases.
"""

from __future__ import annotations

import configparser
import json
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import yaml

from ascend_adapt.diagnosis.evidence import TIERS
from ascend_adapt.diagnosis.findings.cann_versions import CANN_OF
from ascend_adapt.emulation import SOCS

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests" / "upstream_runs"))
from code_bases import CODE_BASES  # noqa: E402

BEGIN, END = "<!-- made by `make docs-support` -->\n", "<!-- end of what is made -->\n"
EVIDENCE = ROOT / "docs" / "evidence.md"

# The text of the matrix in each language.
WORDS = {
    "README.md": {
        "columns": ("", "versions", "evidence"),
        "pairs": "{first} to {last}",
        "checked": "`doctor` checks the pair",
        "chips": "Ascend chips",
        "products": {"910A": "Atlas training series", "910B": "Atlas A2 training series"},
        "judged": "{first} to {last} ({count} releases read)",
        "own script": "your own script",
        "programs": "[nanoGPT and others](docs/own-script-programs.md)",
        "native trainer": "native trainer",
        "dialects": "arguments of Megatron, GPT-NeoX, OneFlow, GLM",
        "a real NPU": "a real NPU",
        "nothing": "nothing has been run yet",
    },
    "README.zh-CN.md": {
        "columns": ("", "版本", "验证级别"),
        "pairs": "{first} 至 {last}",
        "checked": "由 `doctor` 检查版本配套",
        "chips": "昇腾芯片",
        "products": {"910A": "Atlas 训练系列", "910B": "Atlas A2 训练系列"},
        "judged": "{first} 至 {last}（已检查 {count} 个版本的源码）",
        "own script": "自己的训练脚本",
        "programs": "[nanoGPT 等](docs/own-script-programs.md)",
        "native trainer": "原生训练器",
        "dialects": "支持 Megatron、GPT-NeoX、OneFlow、GLM 的参数",
        "a real NPU": "真实 NPU",
        "nothing": "尚未运行",
    },
}


def runs() -> list[dict[str, Any]]:
    """Return the records of documentation/runs.yaml."""
    records: list[dict[str, Any]] = yaml.safe_load((ROOT / "documentation" / "runs.yaml").read_text(encoding="utf-8"))
    return records


def tiers_of(subject: str) -> str:
    """Return the evidence tiers of a code base or component, from weakest to strongest."""
    found = {tier for run in runs() if subject in run["of"] for tier in run["tiers"]}
    return ", ".join(f"`{tier}`" for tier in TIERS if tier in found)


def releases_of(distribution: str) -> list[str]:
    """Return the releases on whose source all patches of this distribution were judged."""
    record = json.loads((ROOT / "tests" / "upstream" / f"{distribution}.json").read_text(encoding="utf-8"))
    return list(record["releases"])


def pythons() -> list[str]:
    """Return the Python versions in the classifiers of setup.cfg."""
    parser = configparser.ConfigParser()
    parser.read(ROOT / "setup.cfg")
    prefix = "Programming Language :: Python :: 3."
    lines = parser["metadata"]["classifiers"].split("\n")
    return [f"3.{line.removeprefix(prefix)}" for line in lines if line.startswith(prefix)]


def matrix(readme: str) -> str:
    """Return the support matrix as Markdown, in the language of a README."""
    words = WORDS[readme]
    emulated = [release for run in runs() for release in run.get("torch_npu", ())]
    schema = [release for release in releases_of("torch_npu") if release not in emulated]
    cann = list(CANN_OF.values())
    rows = [
        ("Python", ", ".join(pythons()), "`cpu`"),
        ("torch", ", ".join(sorted({run["torch"] for run in runs()})), "`cpu`, `cuda`"),
        ("torch_npu", ", ".join(emulated), "`emulated`"),
        ("torch_npu", ", ".join(schema), "`schema`"),
        ("CANN", words["pairs"].format(first=cann[-1], last=cann[0]), words["checked"]),
        (words["chips"], ", ".join(f"{soc} ({words['products'][soc]})" for soc in SOCS), "`emulated`"),
        *((name, _judged(distribution, words), tiers_of(distribution)) for name, distribution in _PACKAGES.items()),
        *((name, _commits(name), tiers_of(name)) for name in _CODE_BASES),
        (words["own script"], words["programs"], tiers_of("own script")),
        (words["native trainer"], words["dialects"], tiers_of("native trainer")),
        (f"**{words['a real NPU']}**", words["nothing"], tiers_of("a real NPU") or "—"),
    ]
    return _table(words["columns"], rows)


_PACKAGES = {
    "DeepSpeed": "deepspeed",
    "transformers": "transformers",
    "accelerate": "accelerate",
    "Megatron-core, Megatron-LM": "megatron-core",
}
_CODE_BASES = ("gpt-neox", "Megatron-DeepSpeed", "bigscience-Megatron-DeepSpeed", "GLM")


def _commits(name: str) -> str:
    return ", ".join(f"[{one.commit}]({one.url})" for one in CODE_BASES if one.folder.removesuffix("-v2.0") == name)


def _judged(distribution: str, words: dict[str, Any]) -> str:
    releases = releases_of(distribution)
    return str(words["judged"]).format(count=len(releases), first=releases[0], last=releases[-1])


def evidence_page(text: str) -> str:
    """Return docs/evidence.md with updated tables."""
    ran = [
        (
            run["what"],
            f"{run['torch']}" + (f", {run['hardware']}" if "hardware" in run else ""),
            ", ".join(f"`{tier}`" for tier in run["tiers"]),
            f"[{run['result']}]({run['page']})",
        )
        for run in runs()
    ]
    tables = [
        "## Jobs that ran\n\n",
        _table(("job", "torch and device", "tier", "result"), ran),
        "\n## Patches that were applied to the installed release\n\n",
        _table(("release", "tier", "patches", "recorded"), _wiring()),
    ]
    return _renewed(text, "".join(tables))


def _wiring() -> list[tuple[str, ...]]:
    """Return one table row per set of installed releases in the shipped evidence records."""
    path = ROOT / "ascend_adapt" / "diagnosis" / "evidence_records.json"
    patches: dict[tuple[str, str], dict[str, str]] = defaultdict(dict)
    for record in json.loads(path.read_text(encoding="utf-8"))["records"]:
        versions = ", ".join(f"{name} {version}" for name, version in sorted(record["versions"].items()))
        patches[versions, record["tier"]][record["patch"]] = record["date"]
    return [
        (versions, f"`{tier}`", ", ".join(f"`{name}`" for name in sorted(dates)), max(dates.values()))
        for (versions, tier), dates in sorted(patches.items())
    ]


def _table(columns: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    lines = [f"| {' | '.join(columns)} |".replace("|  |", "| |"), "|" + "---|" * len(columns)]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)]) + "\n"


def _renewed(text: str, made: str) -> str:
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return before + BEGIN + made + END + after


def pages() -> dict[Path, str]:
    """Return each file that has a generated part, with that part updated."""
    texts = {ROOT / name: (ROOT / name).read_text(encoding="utf-8") for name in WORDS}
    made = {path: _renewed(text, matrix(path.name)) for path, text in texts.items()}
    return {**made, EVIDENCE: evidence_page(EVIDENCE.read_text(encoding="utf-8"))}


if __name__ == "__main__":
    for file, renewed in pages().items():
        file.write_text(renewed, encoding="utf-8")
