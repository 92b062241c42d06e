"""GLM's own data parallelism, without DeepSpeed's, on a torch whose process groups know their backend."""

from __future__ import annotations

from ascend_adapt import rewrite

# It is asked in order to warn of float16 over gloo.
backend_is_asked_for = rewrite(
    "model.distributed:DistributedDataParallel.__init__",
    old="dist._backend == dist.dist_backend.GLOO",
    new="dist.get_backend() == 'gloo'",
    name="backend_is_asked_for",
    host="glm",
    why="torch.distributed has no _backend since it was rewritten for 1.0: `--DDP-impl local` ends in AttributeError",
    until="GLM asks get_backend()",
    without="crash",
)
