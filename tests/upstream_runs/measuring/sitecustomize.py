"""First on PYTHONPATH of a compared run: each process that used a GPU leaves what it had at most of its memory."""

import atexit
import json
import os
import sys


def _report() -> None:
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_available() or not torch.cuda.is_initialized():
        return
    name = f"{os.environ.get('RANK', 'none')}-{os.getpid()}.json"
    seen = {"allocated": torch.cuda.max_memory_allocated(), "card": torch.cuda.get_device_name()}
    with open(os.path.join(os.environ["UPSTREAM_RUNS_PEAKS"], name), "w") as file:
        json.dump(seen, file)


if os.environ.get("UPSTREAM_RUNS_PEAKS"):
    atexit.register(_report)
