"""The example of this repository on four hosts x two ranks, by ssh and by pdsh: the losses are the same.

python tests/launch/hosts/demo.py data/stdlib_text_document
"""

from __future__ import annotations

import json
import re
import shutil
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from conftest import HOSTFILE, Cluster
from namespaces import why_not

EXAMPLE = Path(__file__).parents[3] / "examples/megatron_deepspeed_gpt2/pretrain_gpt2.py"
SMALL = (
    "--num-layers 2 --hidden-size 32 --num-attention-heads 2 --seq-length 32 --train-iters 3 --log-interval 1 "
    "--global-batch-size 16"
)


def main(data: Path) -> int:
    reason = why_not() or ("" if shutil.which("pdsh") else "pdsh: is not installed")
    if reason:
        print(f"not checked: several hosts: {reason}")
        return 1
    losses = {}
    with tempfile.TemporaryDirectory(prefix="demo-") as folder, Cluster(Path(folder, "of"), 4) as hosts:
        hosts.write("hostfile", HOSTFILE)
        for way in ("ssh", "pdsh"):
            given = [str(EXAMPLE), "--data-path", str(data), "--pipeline-model-parallel-size", "2", *SMALL.split()]
            job = hosts.ascend_run(*given, launcher=way, timeout=500, OMP_NUM_THREADS="1")
            print(job.stdout, job.stderr, sep="\n")
            losses[way] = re.findall(r"lm loss[^|]*", job.stdout)
            status = [
                json.loads(path.read_text())
                for name in hosts.names
                for path in (hosts.folder(name) / "run").glob("adapt-status.*.json")
            ]
            applied = [{one["patch"] for one in rank["outcomes"] if one["state"] == "applied"} for rank in status]
            print(f"{way}: exit code {job.returncode}, patches applied: {sorted(set.union(set(), *applied))}")
            left = hosts.left()
            if job.returncode or left or not losses[way]:
                print(f"{way}: failed, left {left}")
                return 1
    print(losses)
    return 0 if losses["ssh"] == losses["pdsh"] else 1


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]).resolve()))
