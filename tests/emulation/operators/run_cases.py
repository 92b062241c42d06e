"""Runs every case of a table in one process on the emulated device, and writes {name: "" or the problem} as JSON."""

from __future__ import annotations

import importlib
import json
import sys
import traceback
from typing import Any

from ascend_adapt.emulation import rank

rank.watch()

import torch  # noqa: E402
import torch_npu  # noqa: E402, F401
from emulation.operators.case import Gradient, Misuse, run_gradient  # noqa: E402

from ascend_adapt.emulation import report  # noqa: E402
from ascend_adapt.errors import OperatorLimit  # noqa: E402


def run(case: Any) -> str:
    if isinstance(case, Gradient):
        return run_gradient(case)
    if isinstance(case, Misuse):
        return run_misuse(case)
    return str(case.check() or "")


def run_misuse(case: Misuse) -> str:
    try:
        case.call()
    except OperatorLimit as error:
        named = case.limit.text in str(error) and case.operator in str(error)
        known = (f"npu::{case.operator}", case.limit.text) in report.tally.violations
        return "" if named and known else f"named as: {error}"
    return "nothing was raised"


def main(table: str, to: str) -> None:
    # As guides do first, before torch_npu has created a stream on any device: backward() must find one.
    torch.npu.set_compile_mode(jit_compile=False)
    results = {}
    for case in importlib.import_module(f"emulation.operators.{table}").CASES:
        torch.manual_seed(0)
        torch.npu.manual_seed(0)
        try:
            results[case.name] = run(case)
        except Exception:
            results[case.name] = traceback.format_exc()
    with open(to, "w") as file:
        json.dump(results, file)


if __name__ == "__main__":
    main(*sys.argv[1:])
