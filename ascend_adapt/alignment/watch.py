"""`ascend-run --record`: starts recording when this process imports torch.

The rank is read when the first step begins, because a program may start its ranks itself after this process was
adapted.
"""

from __future__ import annotations

import atexit
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType

from ascend_adapt.alignment.selection import Selection

FOLDER = "ASCEND_ADAPT_RECORD"
STEPS = "ASCEND_ADAPT_RECORD_STEPS"
RANKS = "ASCEND_ADAPT_RECORD_RANKS"
INPUTS = "ASCEND_ADAPT_RECORD_INPUTS"
DEFAULT_STEPS = "1-3"


def watch(environ: Mapping[str, str]) -> None:
    """Start recording when torch is imported."""
    import wrapt

    def start(torch: ModuleType) -> None:
        from ascend_adapt.alignment.recorder import Recorder

        recorder = Recorder(
            Path(environ[FOLDER]),
            Selection.parse(environ.get(STEPS, DEFAULT_STEPS), STEPS, 1),
            Selection.parse(environ.get(RANKS, "all"), RANKS, 0),
            tuple(word for word in environ.get(INPUTS, "").split(",") if word),
            report=lambda text: print(f"ascend_adapt: {text}", file=sys.stderr, flush=True),
        )
        atexit.register(recorder.close)

    wrapt.register_post_import_hook(start, "torch")
