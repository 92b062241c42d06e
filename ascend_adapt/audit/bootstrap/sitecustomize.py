"""Bootstrap of an audited process: starts the recorder, then runs the sitecustomize that would have run without it."""

from __future__ import annotations

import os
import sys
from importlib.machinery import PathFinder
from importlib.util import module_from_spec, spec_from_file_location

_HERE = os.path.dirname(os.path.abspath(__file__))


def _begin() -> None:
    # Load it by path, because ascend_adapt may be missing in the audited interpreter.
    spec = spec_from_file_location("_ascend_adapt_audit", os.path.join(os.path.dirname(_HERE), "recorder.py"))
    if spec is None or spec.loader is None:
        raise ImportError(f"{_HERE}: its recorder cannot be loaded — install ascend_adapt again")
    recorder = module_from_spec(spec)
    spec.loader.exec_module(recorder)
    recorder.begin(os.environ["ASCEND_ADAPT_AUDIT"])


def _chain() -> None:
    later = [entry for entry in sys.path if os.path.abspath(entry) != _HERE]
    spec = PathFinder.find_spec("sitecustomize", later)
    if spec is not None and spec.loader is not None:
        module = module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


if "_ascend_adapt_audit" not in sys.modules and "ASCEND_ADAPT_AUDIT" in os.environ:
    sys.modules["_ascend_adapt_audit"] = sys.modules[__name__]
    _begin()
_chain()
