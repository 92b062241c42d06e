"""Finetune on every rank of a job, one mesh after another: finetune_glm.py FOLDER TASKS, TASKS as JSON.

TASKS maps a name to [task, sizes of Parallel]. Each rank writes its log of each to FOLDER/RANK.json.
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch.distributed as dist
from native import glm_cases

from ascend_adapt.native import device as devices


def main() -> None:
    folder, tasks = Path(sys.argv[1]), json.loads(sys.argv[2])
    dist.init_process_group(devices.backend(devices.of_this_rank()))
    rank, logs = dist.get_rank(), {}
    for name, (task, sizes) in tasks.items():
        settings = glm_cases.finetuning(folder / f"of-{rank}", task, **sizes)
        settings = replace(settings, checkpoint=replace(settings.checkpoint, save=str(folder / name)))
        log = glm_cases.finetune(settings, folder / f"{name}-run")
        logs[name] = {"losses": log.losses, "lines": [line for line in log.lines if "|epoch" in line]}
    (folder / f"{rank}.json").write_text(json.dumps(logs))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
