"""Runs every script of tests/emulation/mistakes in one process; some end with an error."""

import runpy
import traceback
from pathlib import Path

for path in sorted(Path(__file__).parents[1].glob("mistakes/*.py")):
    try:
        runpy.run_path(str(path), run_name="__main__")
    except Exception:
        traceback.print_exc()
