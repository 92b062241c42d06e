"""Kills a run with SIGKILL at random moments of saving and counts the lost saves.

Two ranks save continuously and keep the last two checkpoints; every value of checkpoint N is N. After each kill, both
restart in the same folder, whatever its state, and print the checkpoint that they resume from.

    python bench/torture_checkpoint.py --runs 100 --seed 1 --write docs/reliability.md
"""

from __future__ import annotations

import argparse
import os
import platform
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path

import torch
import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from native.small_models import config
from upstream_runs import marked_page

from ascend_adapt.config.train_config import Checkpoint
from ascend_adapt.native.checkpoint.folder import CheckpointFolder
from ascend_adapt.native.checkpoint.load import load
from ascend_adapt.native.checkpoint.save import Saver
from ascend_adapt.native.checkpoint.state import TrainState, model_state, optimizer_state
from ascend_adapt.native.parallel import mesh as meshes
from ascend_adapt.native.step.trainer import Trainer

RANKS = 2
LATEST_S = 3.0


@dataclass(frozen=True)
class Life:
    """One run: its output before it was killed, and the files that it left."""

    loaded: int
    fell_back: bool
    done: int
    begun: int
    together: bool
    left: str


def is_right(life: Life, next_life: Life) -> bool:
    """Return whether at most the save in progress is lost."""
    return life.done <= next_life.loaded <= life.begun <= life.done + 1


def rank(number: int, store: Path, folder: Path, printed: int) -> None:
    """Resume from the folder, and save repeatedly until killed; rank 0 reports each save."""

    def report(*words: object) -> None:
        if number == 0:
            os.write(printed, (" ".join(map(str, words)) + "\n").encode())

    dist.init_process_group("gloo", store=dist.FileStore(str(store), RANKS), rank=number, world_size=RANKS)
    checkpoint = Checkpoint(save=str(folder), load=str(folder), keep_last=2)
    settings = replace(config(data=RANKS, zero_stage=1), checkpoint=checkpoint)
    trainer = Trainer(settings, meshes.build(settings.parallel, torch.device("cpu")))
    progress, said = load(trainer)
    numbers = [tensor.to_local() for tensor in model_state(trainer).values()]  # type: ignore[attr-defined]
    numbers += [state for states in trainer.optimizer.states for state in states.values()]
    if progress.iteration and not all(bool((one == progress.iteration).all()) for one in numbers):
        report("mixed", progress.iteration)
        os._exit(1)
    report("loaded", progress.iteration, "damaged" if any("damaged" in line for line in said) else "whole")
    saver = Saver(trainer, folder)
    for iteration in range(progress.iteration + 1, sys.maxsize):
        for one in (*numbers, *(step for name, step in optimizer_state(trainer).items() if name.endswith(".step"))):
            one.fill_(iteration)
        report("begun", iteration)
        saver.save(TrainState(iteration, iteration, iteration))
        saver.wait()
        report("done", iteration)


def start(folder: Path, scratch: Path) -> tuple[list[int], int]:
    """Fork the ranks, with torch already imported; return them and the output of rank 0."""
    store = scratch / f"store-{time.monotonic_ns()}"
    read, write = os.pipe()
    ranks = []
    for number in range(RANKS):
        pid = os.fork()
        if pid == 0:
            os.close(read)
            try:
                rank(number, store, folder, write)
            finally:
                os._exit(1)
        ranks.append(pid)
    os.close(write)
    return ranks, read


def lines(stream: int, until: str | None) -> list[list[str]]:
    """Return the lines up to one that begins with ``word``, or all lines."""
    found: list[list[str]] = []
    text = b""
    while piece := os.read(stream, 1 if until else 65536):
        text += piece
        if until and text.endswith(b"\n") and text.splitlines()[-1].startswith(until.encode()):
            break
    for line in text.decode().splitlines():
        found.append(line.split())
    return found


def state_of(folder: Path) -> str:
    """Describe the progress of the save that the kill interrupted."""
    checkpoints = CheckpointFolder(folder)
    aside = next(iter(folder.glob(".saving-*")), None)
    if aside is not None:
        names = {one.name for one in aside.iterdir()}
        if "SHA256SUMS" in names:
            return "complete, not yet renamed"
        if ".metadata" in names:
            return "written, without checksums"
        return "partly written" if names else "an empty folder"
    saved = checkpoints.saved()
    if saved and str(saved[-1]) != checkpoints.latest():
        return "renamed, not yet the latest"
    if any(folder.glob(".removing-*")):
        return "the latest, an older one partly removed"
    return "not begun, or complete"


def live(chance: random.Random, folder: Path, scratch: Path) -> Life:
    """Start a run, and kill both ranks after it has begun to save, at once or one after the other."""
    ranks, stream = start(folder, scratch)
    printed = lines(stream, "begun")
    time.sleep(chance.uniform(0, LATEST_S))
    together = chance.random() < 0.5
    for pid in chance.sample(ranks, len(ranks)):
        os.kill(pid, signal.SIGKILL)
        if not together:
            time.sleep(chance.uniform(0, 0.2))
    for pid in ranks:
        os.waitpid(pid, 0)
    printed += lines(stream, None)
    os.close(stream)
    loaded = next((words for words in printed if words[0] == "loaded"), None)
    if loaded is None:
        raise SystemExit(
            f"a run could not resume: {printed}; files left by the previous kill: {sorted(folder.iterdir())}"
        )
    of = {word: [int(words[1]) for words in printed if words[0] == word] for word in ("done", "begun")}
    at = int(loaded[1])
    return Life(at, loaded[2] == "damaged", max([at, *of["done"]]), max(of["begun"]), together, state_of(folder))


def report(lives: list[Life], seconds: float, command: str) -> str:
    pairs = list(zip(lives, lives[1:], strict=False))
    right = sum(is_right(*pair) for pair in pairs)
    lost = [life.begun - after.loaded for life, after in pairs]
    out = [
        f"`{command}`, {time.strftime('%Y-%m-%d')}, Python {platform.python_version()}, torch {torch.__version__}, "
        f"Linux, {os.cpu_count()} cores, {seconds:.0f} s.",
        "",
        f"- kills with SIGKILL: {len(pairs)}; a complete and consistent checkpoint could be loaded: {len(pairs)}",
        f"- only the save in progress was lost: {right}/{len(pairs)}; saves lost: {sum(lost)}, at most "
        f"{max(lost)} per kill",
        f"- fell back to an older checkpoint than the tracker names: {sum(life.fell_back for life in lives[1:])}",
        f"- completed saves: {sum(life.done - life.loaded for life in lives)}",
        "",
        "| state of the save | kills | saves lost |",
        "|---|---|---|",
    ]
    kills: Counter[str] = Counter(life.left for life, _ in pairs)
    for left, count in kills.most_common():
        gone = sum(loss for loss, (life, _) in zip(lost, pairs, strict=True) if life.left == left)
        out.append(f"| {left} | {count} | {gone} |")
    return "\n".join([*out, ""])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--write", type=Path, help="the page whose table is renewed, between its marks")
    known = parser.parse_args()
    chance, began = random.Random(known.seed), time.monotonic()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch, "saved")
        folder.mkdir()
        # The last run only checks the state after the last kill.
        lives = [live(chance, folder, Path(scratch)) for _ in range(known.runs + 1)]
    for life, after in zip(lives, lives[1:], strict=False):
        if not is_right(life, after):
            print(f"wrong: {life}, then {after}")
    text = report(lives, time.monotonic() - began, f"make torture-checkpoint RUNS={known.runs} SEED={known.seed}")
    print(text)
    if known.write is not None:
        marked_page.put(known.write, text, "make torture-checkpoint")
    return 0 if all(is_right(*pair) for pair in zip(lives, lives[1:], strict=False)) else 1


if __name__ == "__main__":
    sys.exit(main())
