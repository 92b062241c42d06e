"""Complete native runs of GPT-2 345M on this host's GPUs: ``python bench/gpu_native_runs.py DATA PART [PART ...]``.

DATA is the prefix of token files. Parts are meshes (``tp2``, ``pp2``, ``zero3``, ...; MESHES has all): 200 steps
without interruption, and the same run killed (SIGKILL to all ranks at once) after its save at step 100, and resumed.
Losses and gradient norms of the two are compared, step by step. ``precision``: one GPU, 300 steps in fp32, bf16 and
fp16 on the same samples. ``--tiny`` does the same on the CPU with a model of two layers, to test this script.

Runs are --deterministic, so that they can be equal bit for bit; with --free they may differ, and may be faster.
``--hosts 2`` is for a mesh with more ranks than GPUs: one ascend-run for each half of the ranks, as on two hosts, but
both on this host; ``--hosts 4`` puts four ranks on one GPU. Ranks then share GPUs, and NCCL uses sockets between hosts,
so times are meaningless. ``--steps 48 --save-at 10`` is shorter, and leaves time for a slow save to finish before the
run ends.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

BOUND = 0.01
"""Largest allowed relative difference from fp32 of the mean loss of the last 50 steps; fixed before the first run."""


@dataclass(frozen=True)
class Mesh:
    """Ranks, micro batch size, global batch size, and the parallelism of the model."""

    ranks: int
    micro: int
    total: int
    words: tuple[str, ...] = ()
    zero: int = 0


def _tensor(size: int) -> tuple[str, ...]:
    return ("--tensor-model-parallel-size", str(size))


def _pipeline(size: int) -> tuple[str, ...]:
    return ("--pipeline-model-parallel-size", str(size))


MESHES = {
    "one": Mesh(1, 8, 8),
    "tp2": Mesh(2, 8, 8, _tensor(2)),
    "tp2-sequence": Mesh(2, 8, 8, (*_tensor(2), "--sequence-parallel")),
    "pp2": Mesh(2, 1, 8, _pipeline(2)),
    "zero1": Mesh(2, 8, 16, zero=1),
    "zero3": Mesh(2, 8, 16, zero=3),
    "tp2-pp2": Mesh(4, 1, 8, (*_tensor(2), *_pipeline(2))),
    "tp2-zero3": Mesh(4, 8, 16, _tensor(2), zero=3),
    "pp2-zero1": Mesh(4, 1, 16, _pipeline(2), zero=1),
    "tp4": Mesh(4, 16, 16, _tensor(4)),
    "zero3-on-4": Mesh(4, 8, 32, zero=3),
}


@dataclass(frozen=True)
class Size:
    """A model, the length of its training, and its device."""

    words: str
    length: int
    steps: int
    save_at: int
    precision_steps: int
    device: str
    environ: dict[str, str] = field(default_factory=dict)


M345 = Size("--num-layers 24 --hidden-size 1024 --num-attention-heads 16", 1024, 200, 100, 300, "cuda")
TINY = Size("--num-layers 2 --hidden-size 64 --num-attention-heads 4", 32, 60, 20, 100, "cpu", {"OMP_NUM_THREADS": "1"})


@dataclass(frozen=True)
class Runs:
    """Runs in one folder, with common settings."""

    data: str
    size: Size
    folder: Path
    repeats: bool
    compiled: bool
    hosts: int = 1

    def command(
        self, name: str, mesh: Mesh, dtype: str, steps: int, *, saves: bool = False, dropout: float = 0.1
    ) -> list[str]:
        """Return the command of a job, without the arguments that identify a host."""
        size, run_dir = self.size, str(self.folder / name)
        launch = [sys.executable, "-m", "ascend_adapt.launch.cli", "--device", size.device]
        launch += ["--nproc", str(mesh.ranks // self.hosts)]
        launch += ["--deterministic"] * self.repeats + ["--compile"] * self.compiled
        words = [
            *size.words.split(),
            *f"--seq-length {size.length} --max-position-embeddings {size.length} --vocab-size 50257".split(),
            *f"--micro-batch-size {mesh.micro} --global-batch-size {mesh.total} --train-iters {steps}".split(),
            *f"--lr 0.00015 --min-lr 1.0e-5 --lr-decay-style cosine --lr-decay-iters {steps}".split(),
            *f"--lr-warmup-iters {steps // 20} --weight-decay 1e-2 --clip-grad 1.0 --log-interval 1".split(),
            *f"--eval-iters 0 --split 949,50,1 --data-path {self.data}".split(),
            *["--hidden-dropout", str(dropout), "--attention-dropout", str(dropout)],
            *mesh.words,
        ]
        if dtype != "fp32":
            words.append(f"--{dtype}")
        if dtype == "fp16":
            # Starting at upstream's 2^32 skips sixteen steps, so sixteen fewer updates would be compared.
            words += ["--initial-loss-scale", "4096"]
        if mesh.zero:
            settings: dict[str, Any] = {"zero_optimization": {"stage": mesh.zero}}
            if dtype != "fp32":
                settings[dtype] = {"enabled": True}
            path = self.folder / f"{name}.json"
            path.write_text(json.dumps(settings))
            words += ["--deepspeed_config", str(path)]
        if saves:
            words += ["--save", run_dir, "--load", run_dir, "--save-interval", str(size.save_at)]
        return [*launch, "--native", "megatron", *words]

    def start(self, name: str, command: list[str]) -> list[subprocess.Popen[bytes]]:
        """Start the job: a launcher for each host."""
        port, native = free_port(), command.index("--native")
        started = []
        for host, run_dir in enumerate(self.run_dirs(name)):
            variables = {**os.environ, **self.size.environ}
            ours = ["--log-dir", str(run_dir)]
            if self.hosts > 1:
                ours += ["--num-nodes", str(self.hosts), "--node-rank", str(host)]
                ours += ["--master-addr", "127.0.0.1", "--master-port", str(port)]
                # NCCL rejects two ranks of the same host on one GPU, but accepts ranks of two hosts.
                variables |= {"NCCL_HOSTID": str(host), "NCCL_SOCKET_IFNAME": "lo", "GLOO_SOCKET_IFNAME": "lo"}
            with (self.folder / f"{name}.log").open("ab") as log:
                whole = [*command[:native], *ours, *command[native:]]
                started.append(subprocess.Popen(whole, stdout=log, stderr=log, env=variables))
        return started

    def run_dirs(self, name: str) -> list[Path]:
        """Return the run directory of each host; a run saves into the first one."""
        return [self.folder / (f"{name}-host-{host}" if host else name) for host in range(self.hosts)]

    def finish(self, name: str, command: list[str]) -> None:
        codes = [job.wait() for job in self.start(name, command)]
        if any(codes):
            raise SystemExit(f"{name}: the run failed\n{self.log(name)[-4000:]}")

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text(errors="replace")

    def rows(self, name: str) -> list[dict[str, Any]]:
        path = self.folder / name / "metrics.jsonl"
        # The last line of a killed run may be incomplete.
        return [json.loads(row) for row in path.read_text().splitlines() if row.endswith("}")]


def straight_killed_and_resumed(runs: Runs, name: str) -> dict[str, Any]:
    """Train a mesh without interruption, killed and resumed, and return the results."""
    mesh, size = MESHES[name], runs.size
    runs.finish(f"{name}-straight", runs.command(f"{name}-straight", mesh, "bf16", size.steps))
    straight = runs.rows(f"{name}-straight")

    killed = f"{name}-killed"
    command = runs.command(killed, mesh, "bf16", size.steps, saves=True)
    jobs = runs.start(killed, command)
    tracker = runs.folder / killed / "latest_checkpointed_iteration.txt"
    until = time.monotonic() + 300
    while not tracker.exists():
        if any(job.poll() is not None for job in jobs) or time.monotonic() > until:
            raise SystemExit(f"{killed}: the run ended or hung before it had saved\n{runs.log(killed)[-4000:]}")
        time.sleep(0.01)
    ranks = [pid for run_dir in runs.run_dirs(killed) for pid in ranks_of(run_dir)]
    for pid in ranks:
        os.kill(pid, signal.SIGKILL)
    codes = [job.wait() for job in jobs]
    before = runs.rows(killed)
    if len(ranks) != mesh.ranks or not all(codes) or len(before) >= size.steps:
        raise SystemExit(
            f"{killed}: {len(ranks)} ranks killed, codes {codes}, {len(before)} steps done, expected a kill before the "
            "end"
        )
    began = time.monotonic()
    runs.finish(killed, command)
    resumed = runs.rows(killed)
    resumptions = [line for line in runs.log(killed).splitlines() if "resuming from" in line]
    shutil.rmtree(runs.folder / killed)

    steady = straight[len(straight) // 4 :]
    return {
        "mesh": name,
        "ranks": mesh.ranks,
        "samples_a_step": mesh.total,
        "first_loss": straight[0]["lm_loss"],
        "last_loss": straight[-1]["lm_loss"],
        "tokens_per_s": round(statistics.median(row["tokens_per_s"] for row in steady)),
        "model_tflops_per_gpu": round(statistics.median(row["model_tflops"] for row in steady), 1),
        "mfu": steady[-1]["mfu"],
        "killed_at_step": before[-1]["iteration"],
        "resumed_from": resumptions[-1].split("resuming from ")[-1].rpartition("/")[2] if resumptions else None,
        "seconds_to_the_end_again": round(time.monotonic() - began, 1),
        "until_the_kill": compared(straight, before),
        "resumed_compared_with_straight": compared(straight[size.save_at :], resumed[size.save_at :]),
        "steps": len(resumed),
    }


def compared(one: list[dict[str, Any]], other: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the differences of losses and gradient norms at the same steps."""
    pairs = [
        (left["iteration"], left[what], right[what])
        for left, right in zip(one, other, strict=False)
        for what in ("lm_loss", "grad_norm")
    ]
    if [row["iteration"] for row in one[: len(other)]] != [row["iteration"] for row in other]:
        raise SystemExit("the runs have different steps")
    apart = [step for step, left, right in pairs if left != right]
    largest = max((abs(left - right) / abs(left) for _, left, right in pairs), default=0.0)
    return {"steps": len(other), "bit_for_bit": not apart, "first_apart": apart[0] if apart else None, "most": largest}


def free_port() -> int:
    """Return a free port."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def ranks_of(run_dir: Path) -> list[int]:
    """Return the process ids of the ranks of the job with this run directory, without DataLoader workers."""
    found: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                variables = (entry / "environ").read_bytes().split(b"\0")
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
            if f"ASCEND_ADAPT_RUN_DIR={run_dir}".encode() in variables and any(
                one.startswith(b"RANK=") for one in variables
            ):
                found[int(entry.name)] = parent
    return [pid for pid, parent in found.items() if parent not in found]


def precision(runs: Runs) -> list[dict[str, Any]]:
    """Train in fp32, bf16 and fp16 on the same samples, and return the mean loss of every 50 steps of each.

    Dropout is disabled, because kernels of different dtypes draw different masks, which changes losses by a percent.
    """
    results: list[dict[str, Any]] = []
    exact: list[float] = []
    mesh, steps = Mesh(1, 2, 2), runs.size.precision_steps
    for dtype in ("fp32", "bf16", "fp16"):
        runs.finish(dtype, runs.command(dtype, mesh, dtype, steps, dropout=0))
        rows = runs.rows(dtype)
        losses = [row["lm_loss"] for row in rows]
        # A step skipped by fp16's loss scaling has no loss.
        means = [statistics.fmean(one for one in losses[at : at + 50] if one is not None) for at in range(0, steps, 50)]
        exact = exact or means
        apart = [abs(one - other) / other for one, other in zip(means, exact, strict=True)]
        results.append(
            {
                "dtype": dtype,
                "means_of_50": [round(one, 4) for one in means],
                "apart_last_50": apart[-1],
                "most": max(apart),
                "within_bound": apart[-1] <= BOUND,
                "skipped": sum(row["skipped"] for row in rows),
                "tokens_per_s": round(statistics.median(row["tokens_per_s"] for row in rows[50:])),
            }
        )
    return results


def card(device: str) -> str:
    """Return the names of the GPUs."""
    if device == "cpu":
        return "cpu"
    import torch

    return f"{torch.cuda.device_count()} x {torch.cuda.get_device_name()}, torch {torch.__version__}"


def main() -> int:
    """Run the parts one after another; each prints JSON lines."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", help="prefix of token files")
    parser.add_argument("parts", nargs="+", choices=[*MESHES, "precision"], metavar="PART")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--free", action="store_true", help="run without --deterministic")
    parser.add_argument("--compile", action="store_true", help="run with torch.compile")
    parser.add_argument("--hosts", type=int, default=1, help="run as on this number of hosts, all on this host")
    parser.add_argument("--steps", type=int, help="number of steps instead of 200, with the save after half of them")
    parser.add_argument("--save-at", type=int, help="step to save at, instead of half of the steps")
    asked = parser.parse_args()
    size, good = TINY if asked.tiny else M345, True
    if asked.steps:
        size = replace(size, steps=asked.steps, save_at=asked.steps // 2)
    if asked.save_at:
        size = replace(size, save_at=asked.save_at)
    if uneven := [part for part in asked.parts if part in MESHES and MESHES[part].ranks % asked.hosts]:
        parser.error(f"--hosts {asked.hosts}: {uneven[0]} has {MESHES[uneven[0]].ranks} ranks — choose a divisor")
    print(card(size.device), flush=True)
    with tempfile.TemporaryDirectory(prefix="native-runs-") as folder:
        runs = Runs(str(Path(asked.data).absolute()), size, Path(folder), not asked.free, asked.compile, asked.hosts)
        for part in asked.parts:
            began = time.monotonic()
            results = precision(runs) if part == "precision" else [straight_killed_and_resumed(runs, part)]
            for one in results:
                print(json.dumps(one), flush=True)
                good &= one.get("within_bound", True) and (
                    asked.free or one.get("resumed_compared_with_straight", {}).get("bit_for_bit", True)
                )
            print(f"{part}: {time.monotonic() - began:.0f} s", flush=True)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
