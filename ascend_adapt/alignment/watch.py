"""`ascend-run --record`: records this process from the moment that it has imported torch.

The rank is known when the first step begins: a program may start its ranks itself, after this process was adapted.
"""

from __future__ import annotations

import atexit
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from ascend_adapt.alignment.selection import Selection

if TYPE_CHECKING:
    from ascend_adapt.alignment.recorder import Recorder

FOLDER = "ASCEND_ADAPT_RECORD"
STEPS = "ASCEND_ADAPT_RECORD_STEPS"
RANKS = "ASCEND_ADAPT_RECORD_RANKS"
INPUTS = "ASCEND_ADAPT_RECORD_INPUTS"
DEFAULT_STEPS = "1-3"

_recorder: Recorder | None = None


def watch(environ: Mapping[str, str]) -> None:
    """Start recording when torch is imported."""
    import wrapt

    def start(torch: ModuleType) -> None:
        global _recorder
        from ascend_adapt.alignment.recorder import Recorder

        if _recorder is None:
            _recorder = Recorder(
                Path(environ[FOLDER]),
                Selection.parse(environ.get(STEPS, DEFAULT_STEPS), STEPS, 1),
                Selection.parse(environ.get(RANKS, "all"), RANKS, 0),
                tuple(word for word in environ.get(INPUTS, "").split(",") if word),
                report=lambda text: print(f"ascend_adapt: {text}", file=sys.stderr, flush=True),
            )
            atexit.register(_recorder.close)

    wrapt.register_post_import_hook(start, "torch")


def current() -> Recorder | None:
    """Return the recorder of this process; an optimizer that is none of torch's reports its steps to it."""
    return _recorder
