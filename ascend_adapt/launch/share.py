"""Which machine of a job this one is, where the same command is started on each: said by hand, or by the cluster.

Sources of the names: SchedMD/slurm@3bf22c447ad1 doc/man/man1/srun.1 (output environment variables); Volcano's guides
to its env and pytorch plugins (volcano-sh/volcano docs/user-guide); torch.distributed.run, which reads each of its
options from PET_<OPTION>.
Of ModelArts no document could be read, only scripts that run there: the names are theirs.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ascend_adapt.errors import LaunchError
from ascend_adapt.launch.request import Request

DEFAULT_PORT = 29500


@dataclass(frozen=True)
class Share:
    """One machine of ``nodes``; ``told_by`` says who said so, ``nproc`` how many ranks each has, if it was said."""

    nodes: int
    node: int
    master_addr: str
    master_port: int
    told_by: str
    nproc: int | None = None


def of_this_machine(request: Request, environ: Mapping[str, str], own: Callable[[], set[str]]) -> Share | None:
    """Return this machine's share, or None if it is the only machine.

    ``own`` returns the names and addresses of this machine; it is called for ``--node-ips`` only.

    Raises:
        LaunchError: something is missing, or does not fit.
    """
    if request.nodes is not None or request.node is not None or request.node_ips:
        return _checked(_by_hand(request, environ, own))
    for read in (_slurm, _modelarts, _volcano, _torchrun):
        share = read(environ)
        if share is not None and share.nodes > 1:
            return _checked(
                Share(
                    share.nodes,
                    share.node,
                    request.master_addr or share.master_addr,
                    request.master_port or share.master_port,
                    share.told_by,
                    share.nproc,
                )
            )
    return None


def _by_hand(request: Request, environ: Mapping[str, str], own: Callable[[], set[str]]) -> Share:
    ips = request.node_ips
    nodes = request.nodes if request.nodes is not None else len(ips) or 1
    if ips and len(ips) != nodes:
        raise LaunchError(f"--node-ips: names {len(ips)} machines, --nnodes says {nodes} — correct one of them")
    node = request.node
    if node is None and ips:
        here = own()
        found = [index for index, address in enumerate(ips) if address in here]
        if len(found) != 1:
            raise LaunchError(
                f"--node-ips {','.join(ips)}: {len(found)} of them are this machine, expected one — give --node-rank"
            )
        (node,) = found
    if node is None and nodes > 1:
        raise LaunchError(f"--nnodes {nodes}: which of them is this machine is not said — give --node-rank")
    addr = request.master_addr or (ips[0] if ips else environ.get("MASTER_ADDR", ""))
    if not addr and nodes > 1:
        raise LaunchError(f"--nnodes {nodes}: the address of machine 0 is not said — give --master-addr")
    port = request.master_port or _number(environ.get("MASTER_PORT", "")) or DEFAULT_PORT
    return Share(nodes, node or 0, addr or "127.0.0.1", port, "the command line")


def _slurm(environ: Mapping[str, str]) -> Share | None:
    """Below srun; in a batch script itself the variables of a step are missing, and nobody runs on the other nodes."""
    nodes, listed = _number(environ.get("SLURM_STEP_NUM_NODES", "")), environ.get("SLURM_STEP_NODELIST", "")
    if not nodes or nodes < 2 or not listed:
        return None
    tasks = _number(environ.get("SLURM_STEP_NUM_TASKS", "")) or nodes
    if tasks != nodes:
        raise LaunchError(
            f"SLURM_STEP_NUM_TASKS={tasks}: srun starts ascend-run {tasks} times on {nodes} nodes, expected once on "
            "each — srun --ntasks-per-node=1, ascend-run starts the ranks"
        )
    job = _number(environ.get("SLURM_JOB_ID", "")) or 0
    # Two jobs may share a node. Below what Linux gives away by itself, which begins at 32768.
    port = 16000 + job % 16000
    return Share(nodes, _needed(environ, "SLURM_NODEID"), first_of_nodelist(listed), port, "Slurm")


def first_of_nodelist(text: str) -> str:
    """Return the first host of Slurm's ``rack[1-2]n[03-05,7],login``: rack1n03."""
    first = re.match(r"(?:[^,\[\]]|\[[^\]]*\])+", text)
    if first is None:
        raise LaunchError(f"SLURM_STEP_NODELIST={text!r}: names no host — give --nnodes, --node-rank and --master-addr")
    return re.sub(r"\[([^\],-]+)[^\]]*\]", r"\1", first[0])


def _modelarts(environ: Mapping[str, str]) -> Share | None:
    nodes, hosts = _number(environ.get("MA_NUM_HOSTS", "")), environ.get("VC_WORKER_HOSTS", "")
    if not nodes or not hosts:
        return None
    nproc = _number(environ.get("MA_NUM_GPUS", "")) or None
    first = hosts.partition(",")[0].strip()
    return Share(nodes, _needed(environ, "VC_TASK_INDEX"), first, DEFAULT_PORT, "ModelArts", nproc)


def _volcano(environ: Mapping[str, str]) -> Share | None:
    """Its pytorch plugin's RANK and WORLD_SIZE count pods; without its env plugin's index they may be anybody's."""
    if "VC_TASK_INDEX" not in environ or "LOCAL_RANK" in environ or not environ.get("MASTER_ADDR"):
        return None
    nodes = _number(environ.get("WORLD_SIZE", ""))
    if not nodes:
        return None
    port = _number(environ.get("MASTER_PORT", "")) or DEFAULT_PORT
    return Share(nodes, _needed(environ, "RANK"), environ["MASTER_ADDR"], port, "Volcano")


def _torchrun(environ: Mapping[str, str]) -> Share | None:
    nodes = _number(environ.get("PET_NNODES", ""))
    if not nodes or nodes < 2:
        return None
    if not environ.get("PET_MASTER_ADDR"):
        raise LaunchError(f"PET_NNODES={nodes}: PET_MASTER_ADDR is not set — set it, or unset PET_NNODES")
    port = _number(environ.get("PET_MASTER_PORT", "")) or DEFAULT_PORT
    nproc = _number(environ.get("PET_NPROC_PER_NODE", "")) or None
    return Share(nodes, _needed(environ, "PET_NODE_RANK"), environ["PET_MASTER_ADDR"], port, "torchrun's PET_*", nproc)


def _needed(environ: Mapping[str, str], name: str) -> int:
    number = _number(environ.get(name, ""))
    if number is None:
        raise LaunchError(f"{name}={environ.get(name, '')!r}: expected which machine this is — give --node-rank")
    return number


def _number(text: str) -> int | None:
    return int(text) if text.strip().isdecimal() else None


def _checked(share: Share) -> Share:
    if not 0 <= share.node < share.nodes:
        raise LaunchError(
            f"machine {share.node} of {share.nodes} ({share.told_by}): expected 0 to {share.nodes - 1} — correct it"
        )
    return share
