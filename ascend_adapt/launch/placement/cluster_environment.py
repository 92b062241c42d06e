"""Node rank of this host when the same command is started on every host, from the command line or the scheduler.

Sources of the names: SchedMD/slurm@3bf22c447ad1 doc/man/man1/srun.1 (output environment variables) and @00623bab4353
src/common/env.c (variables of a batch script); Volcano's guides to the env and pytorch plugins
(volcano-sh/volcano docs/user-guide); torch.distributed.run, which reads each of its options from PET_<OPTION>.
No documentation of ModelArts was available; its names come from scripts that run there.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ascend_adapt.errors import LaunchError
from ascend_adapt.launch.request import Request
from ascend_adapt.whole_numbers import whole_number

DEFAULT_PORT = 29500
# Slurm's special steps (batch script, shell of salloc, extern) have numbers from here on; srun counts from 0.
_OWN_STEPS = 0xFFFFFFF0
# Variables of Open MPI, of MPICH and Intel MPI, and of MVAPICH.
_MPI_SIZES = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MV2_COMM_WORLD_SIZE")
_ON_PURPOSE = "if only this copy starts a job, pass --nnodes 1"


@dataclass(frozen=True)
class ClusterNode:
    """This host's node rank among ``nodes``; ``source`` names the origin of the values."""

    nodes: int
    node: int
    master_addr: str
    master_port: int
    source: str
    nproc: int | None = None


def of_this_host(request: Request, environ: Mapping[str, str], own: Callable[[], set[str]]) -> ClusterNode | None:
    """Return this host's share of the job, or None if it is the only host.

    ``own`` returns the names and addresses of this host; it is only called for ``--node-ips``.

    Raises:
        LaunchError: options or variables are missing or contradict each other.
    """
    if request.nodes is not None or request.node is not None or request.node_ips:
        return _checked(_by_hand(request, environ, own))
    for read in (_slurm, _modelarts, _volcano, _torchrun):
        share = read(environ)
        if share is not None and share.nodes > 1:
            return _checked(
                ClusterNode(
                    share.nodes,
                    share.node,
                    request.master_addr or share.master_addr,
                    request.master_port or share.master_port,
                    share.source,
                    share.nproc,
                )
            )
    return None


def refuse_copies(request: Request, environ: Mapping[str, str]) -> None:
    """Raise an error if another launcher has started this command several times, once for each rank.

    Each copy would start the full job on the same devices.

    Raises:
        LaunchError: another launcher has started copies, and the command line does not state that this is intended.
    """
    says_so_itself = request.nodes is not None or request.node is not None or request.node_ips
    if says_so_itself and request.hostfile is None:
        return
    if (step := _step(environ)) is not None:
        nodes, tasks = step
        if tasks > 1 and (tasks != nodes or request.hostfile is not None):
            raise LaunchError(
                f"SLURM_STEP_NUM_TASKS={tasks}: srun starts ascend-run {tasks} times on {nodes} "
                f"{'nodes' if nodes > 1 else 'node'}, expected "
                + (
                    "once, it reaches the other hosts of the hostfile itself — run it in the batch script"
                    if request.hostfile is not None
                    else f"once per node — use srun --ntasks-per-node=1, ascend-run starts the ranks; {_ON_PURPOSE}"
                )
            )
        if tasks > 1:
            return
    for name in _MPI_SIZES:
        if (whole_number(environ.get(name)) or 1) > 1:
            raise LaunchError(
                f"{name}={environ[name]}: mpirun starts ascend-run {environ[name]} times, and each would start "
                "the full job — leave mpirun out and pass a --hostfile, or pass --nnodes, --node-rank and "
                f"--master-addr; {_ON_PURPOSE}"
            )
    if "LOCAL_RANK" in environ and "RANK" in environ and not _is_below_a_rank(environ):
        ranks = whole_number(environ.get("WORLD_SIZE")) or 1
        if ranks > 1:
            raise LaunchError(
                f"RANK={environ['RANK']}, LOCAL_RANK={environ['LOCAL_RANK']}, WORLD_SIZE={ranks}: another launcher "
                f"starts ascend-run {ranks} times, and each would start the full job — put ascend-run first, as in "
                f"`ascend-run torchrun ...`, or unset these; {_ON_PURPOSE}"
            )


def overlooked(environ: Mapping[str, str]) -> str:
    """Return a warning if RANK and WORLD_SIZE are set and might count either hosts or ranks, else an empty string."""
    ranks = whole_number(environ.get("WORLD_SIZE")) or 1
    if ranks < 2 or "RANK" not in environ or "LOCAL_RANK" in environ:
        return ""
    return (
        f"RANK={environ['RANK']} and WORLD_SIZE={ranks} are set and not used, this host runs its own job — if "
        f"it is one of {ranks} hosts, pass --nnodes {ranks} --node-rank {environ['RANK']}"
    )


def _is_below_a_rank(environ: Mapping[str, str]) -> bool:
    """Return whether a rank of ascend-run, and not its launcher, has started this process."""
    rank_pid = environ.get("ASCEND_ADAPT_RANK_PID", "").partition(" ")[0]
    return bool(rank_pid) and rank_pid != str(os.getpid())


def _step(environ: Mapping[str, str]) -> tuple[int, int] | None:
    """Return the number of nodes and tasks of the srun step in which this process runs, or None.

    A batch script has no SLURM_STEP_* variables, only SLURM_NTASKS; a shell of salloc is one of Slurm's special steps.
    """
    number = whole_number(environ.get("SLURM_STEP_ID"))
    nodes = whole_number(environ.get("SLURM_STEP_NUM_NODES"))
    if number is None or number >= _OWN_STEPS or not nodes:
        return None
    return nodes, whole_number(environ.get("SLURM_STEP_NUM_TASKS")) or nodes


def _by_hand(request: Request, environ: Mapping[str, str], own: Callable[[], set[str]]) -> ClusterNode:
    ips = request.node_ips
    nodes = request.nodes if request.nodes is not None else len(ips) or 1
    if ips and len(ips) != nodes:
        raise LaunchError(f"--node-ips: lists {len(ips)} hosts, --nnodes says {nodes} — correct one of them")
    node = request.node
    if node is None and ips:
        here = own()
        found = [index for index, address in enumerate(ips) if address in here]
        if len(found) != 1:
            raise LaunchError(
                f"--node-ips {','.join(ips)}: {len(found)} of them are this host's, expected one — pass --node-rank"
            )
        (node,) = found
    if node is None and nodes > 1:
        raise LaunchError(f"--nnodes {nodes}: the rank of this host is not given — add --node-rank")
    addr = request.master_addr or (ips[0] if ips else environ.get("MASTER_ADDR", ""))
    if not addr and nodes > 1:
        raise LaunchError(f"--nnodes {nodes}: the address of host 0 is not given — add --master-addr")
    port = request.master_port or whole_number(environ.get("MASTER_PORT")) or DEFAULT_PORT
    return ClusterNode(nodes, node or 0, addr or "127.0.0.1", port, "the command line")


def _slurm(environ: Mapping[str, str]) -> ClusterNode | None:
    """Return this node of an srun step, which starts one copy per node; a batch script runs on one node only."""
    step, listed = _step(environ), environ.get("SLURM_STEP_NODELIST", "")
    if step is None or step[0] < 2 or not listed:
        return None
    nodes = step[0]
    job = whole_number(environ.get("SLURM_JOB_ID")) or 0
    # The port depends on the job, because two jobs may share a node. Linux's ephemeral ports begin at 32768.
    port = 16000 + job % 16000
    return ClusterNode(nodes, _needed(environ, "SLURM_NODEID"), first_of_nodelist(listed), port, "Slurm")


def first_of_nodelist(text: str) -> str:
    """Return the first host of a Slurm node list: ``rack1n03`` for ``rack[1-2]n[03-05,7],login``."""
    first = re.match(r"(?:[^,\[\]]|\[[^\]]*\])+", text)
    if first is None:
        raise LaunchError(f"SLURM_STEP_NODELIST={text!r}: lists no host — pass --nnodes, --node-rank and --master-addr")
    return re.sub(r"\[([^\],-]+)[^\]]*\]", r"\1", first[0])


def _modelarts(environ: Mapping[str, str]) -> ClusterNode | None:
    nodes, hosts = whole_number(environ.get("MA_NUM_HOSTS")), environ.get("VC_WORKER_HOSTS", "")
    if not nodes or not hosts:
        return None
    nproc = whole_number(environ.get("MA_NUM_GPUS")) or None
    first = hosts.partition(",")[0].strip()
    return ClusterNode(nodes, _needed(environ, "VC_TASK_INDEX"), first, DEFAULT_PORT, "ModelArts", nproc)


def _volcano(environ: Mapping[str, str]) -> ClusterNode | None:
    """Return this node from Volcano's variables, if the env plugin's index is set.

    Only then is it known that RANK and WORLD_SIZE of the pytorch plugin count pods.
    """
    if "VC_TASK_INDEX" not in environ or "LOCAL_RANK" in environ or not environ.get("MASTER_ADDR"):
        return None
    nodes = whole_number(environ.get("WORLD_SIZE"))
    if not nodes:
        return None
    port = whole_number(environ.get("MASTER_PORT")) or DEFAULT_PORT
    return ClusterNode(nodes, _needed(environ, "RANK"), environ["MASTER_ADDR"], port, "Volcano")


def _torchrun(environ: Mapping[str, str]) -> ClusterNode | None:
    nodes = whole_number(environ.get("PET_NNODES"))
    if not nodes or nodes < 2:
        return None
    if not environ.get("PET_MASTER_ADDR"):
        raise LaunchError(f"PET_NNODES={nodes}: PET_MASTER_ADDR is not set — set it, or unset PET_NNODES")
    port = whole_number(environ.get("PET_MASTER_PORT")) or DEFAULT_PORT
    nproc = whole_number(environ.get("PET_NPROC_PER_NODE")) or None
    return ClusterNode(
        nodes, _needed(environ, "PET_NODE_RANK"), environ["PET_MASTER_ADDR"], port, "torchrun's PET_*", nproc
    )


def _needed(environ: Mapping[str, str], name: str) -> int:
    number = whole_number(environ.get(name))
    if number is None:
        raise LaunchError(f"{name}={environ.get(name, '')!r}: expected the rank of this host — pass --node-rank")
    return number


def _checked(share: ClusterNode) -> ClusterNode:
    if not 0 <= share.node < share.nodes:
        raise LaunchError(
            f"host {share.node} of {share.nodes} ({share.source}): expected 0 to {share.nodes - 1} — correct it"
        )
    return share
