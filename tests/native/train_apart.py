"""Train as a config.yaml says, each rank in a folder of its own, as on hosts that share none: train_apart.py CONFIG."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from ascend_adapt.native.__main__ import main
from ascend_adapt.native.checkpoint import save_lock

if __name__ == "__main__":
    save_lock.PATIENCE = float(os.environ.get("PATIENCE", save_lock.PATIENCE))
    own = Path(f"host-{os.environ['RANK']}")
    own.mkdir(exist_ok=True)
    config = os.path.abspath(sys.argv[1])
    os.chdir(own)
    os.environ["LOCAL_RANK"] = "0"
    main([config], os.environ)
