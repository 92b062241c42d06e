"""Train small models on the ranks of a job, and write what each step gave.

Usage: ascend-run --nproc N train_small.py OUTPUT CASES, CASES a JSON list of small_models.Case as objects.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path

import torch.distributed as dist
from small_models import Case, train

from ascend_adapt.config import buckets
from ascend_adapt.native import device as devices
from ascend_adapt.native.parallel import mesh as meshes


def main():
    output, cases = Path(sys.argv[1]), [Case(**each) for each in json.loads(sys.argv[2])]
    buckets.BUCKET = 20000  # or small models would have one
    device = devices.of_this_rank()
    dist.init_process_group(devices.backend(device))
    results = {case.name: asdict(train(case, meshes.build(case.settings.parallel, device))) for case in cases}
    if dist.get_rank() == 0:
        output.write_text(json.dumps({"device": device.type, "cases": results}))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
