"""50 steps of Megatron-core's model and of the native one, from the same weights: losses to 1e-4, relative.

make native-matrix puts Megatron-core into .megatron-core; where it is not, this says so.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
MEGATRON_CORE = HERE.parents[1] / ".megatron-core"


@pytest.mark.skipif(not MEGATRON_CORE.is_dir(), reason="not checked: megatron-core")
@pytest.mark.parametrize("model", ["gpt2", "gated"])
def test_50_steps(model):
    ended = subprocess.run(
        [sys.executable, str(HERE / "beside_megatron_core.py"), model, "50"],
        env={**os.environ, "PYTHONPATH": str(MEGATRON_CORE), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert ended.returncode == 0, ended.stderr[-4000:]
    told = json.loads(ended.stdout.splitlines()[-1])
    theirs, ours = told["megatron-core"], told["native"]
    assert theirs["losses"][-1] < 0.7 * theirs["losses"][0]
    assert ours["losses"] == pytest.approx(theirs["losses"], rel=1e-4)
    assert ours["norms"] == pytest.approx(theirs["norms"], rel=1e-3)
