"""Starts a plan on this machine with torch.distributed.run's engine, and returns the job's exit code."""

from __future__ import annotations

import os
import signal
import sys
from typing import TYPE_CHECKING

from ascend_adapt.errors import LaunchError

if TYPE_CHECKING:
    from ascend_adapt.launch.plan import Plan


def run(plan: Plan, max_restarts: int) -> int:
    """Run every rank of ``plan`` to its end and return 0, or the first failing rank's own code (128 + signal number).

    Raises:
        LaunchError: torch is missing, or the port is taken.
    """
    try:
        from torch.distributed.elastic.multiprocessing.api import SignalException
        from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
        from torch.distributed.launcher.api import LaunchConfig, elastic_launch
    except ImportError as error:
        raise LaunchError(f"torch: cannot be imported ({error}) — install it, the ranks are started with it") from error

    first = plan.ranks[0]
    # RANK and its like are set by the engine, a rank each; the rest is the same for all ranks.
    of_the_engine = {"RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}
    os.environ.update({name: value for name, value in first.env.items() if name not in of_the_engine})
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=plan.world_size,
        run_id=f"ascend-run-{os.getpid()}",
        rdzv_backend="static",
        rdzv_endpoint=f"{plan.master_addr}:{plan.master_port}",
        rdzv_configs={"rank": 0, "timeout": 900},
        max_restarts=max_restarts,
        monitor_interval=0.1,
        start_method="spawn",
    )
    try:
        elastic_launch(config, first.argv[0])(*first.argv[1:])
    except ChildFailedError as error:
        rank, failure = error.get_first_failure()
        name = f" ({signal.Signals(-failure.exitcode).name})" if failure.exitcode < 0 else ""
        print(f"ascend-run: rank {rank} ended first, with exit code {failure.exitcode}{name}", file=sys.stderr)
        code = int(failure.exitcode)
        return code if code >= 0 else 128 - code
    except SignalException as error:
        return 128 + int(error.sigval)
    except KeyboardInterrupt:
        return 130
    return 0
