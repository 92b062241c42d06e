"""GLM's data parallelism without DeepSpeed, on torch without ``torch.distributed._backend``."""

from __future__ import annotations

from ascend_adapt import rewrite

# GLM's code uses it to warn about float16 over gloo.
local_ddp_backend = rewrite(
    "model.distributed:DistributedDataParallel.__init__",
    old="dist._backend == dist.dist_backend.GLOO",
    new="dist.get_backend() == 'gloo'",
    name="local_ddp_backend",
    host="glm",
    why="torch.distributed has had no _backend since torch 1.0: `--DDP-impl local` fails with AttributeError",
    until="GLM calls get_backend()",
    without="crash",
)
