"""The command of each example that trains five steps or fewer of a tiny model on a CPU, and a line that it prints."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
CHEAP = {
    "examples/trainer/train.py": ("ascend-run --device cpu {} --tiny", r"'train_loss': '5\.\d+'"),
    "examples/megatron_gpt2_345M/345M.sh": ("bash {} --tiny", r"iteration +5/ +5 \|.*lm loss: 1\.0\d+E\+01"),
}
REST = {
    "examples/glm_10b/pretrain.sh": ("bash {} --tiny", r"iteration +5/ +5 \|.*lm loss 1\.0\d+E\+01"),
    "examples/own_script/train.py": ("ascend-run --device cpu --nproc 2 {} --tiny", r"step 4: loss 4\.\d+"),
    "examples/zero3_finetuning/finetune.py": ("ascend-run --device cpu --nproc 2 {} --tiny", r"'train_loss': '5\.\d+'"),
    "examples/gpt_neox/20B.sh": ("bash {} --tiny", r"iteration +5/ +5 \|.*lm_loss: 1\.\d+E\+01"),
    "examples/oneflow_gpt/117M.sh": ("bash {} --tiny", r"\| 5 +\| 10 +\| 20 .*\| 10\.\d+ +\|"),
}


def check(path: str, command: str, printed: str, folder: Path) -> None:
    """Run an example in a folder that has only the examples, and look for the line."""
    (folder / "examples").symlink_to(ROOT / "examples")
    programs = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environ = {**os.environ, "PATH": programs, "HF_HUB_OFFLINE": "1"}
    words = command.format(path).split()
    done = subprocess.run(words, cwd=folder, env=environ, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    assert re.search(printed, done.stdout), done.stdout[-2000:]
