"""Checkpoints of the native trainer: torch.distributed.checkpoint, with canonical names prefixed by ``model.``.

latest_checkpointed_iteration.txt
iter_0000100/progress.json, SHA256SUMS, .metadata, *.distcp
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path

from ascend_adapt import regular_files
from ascend_adapt.checkpoint.canonical import parameters
from ascend_adapt.checkpoint.dialects.megatron import LATEST
from ascend_adapt.checkpoint.distributed import METADATA, DistributedTensors, Entry, write_distributed
from ascend_adapt.checkpoint.source import Given, Rule, RuleReader, Source, refuse_leftover
from ascend_adapt.checkpoint.trackers import tracked_name
from ascend_adapt.checkpoint.writing import Output
from ascend_adapt.config.yaml_file import model_from_dict, run_arguments
from ascend_adapt.errors import CheckpointError, ConfigError, one_line
from ascend_adapt.whole_numbers import whole_number

PROGRESS, PREFIX = "progress.json", "model."


def iteration_folder(path: Path) -> Path | None:
    """Return the folder of a checkpoint: ``path``, the folder that its tracker names, the latest in it, or None."""
    if (path / PROGRESS).is_file():
        return path
    tracker = path / LATEST
    named = whole_number(tracked_name(tracker)) if tracker.is_file() else None
    if named is not None and (path / f"iter_{named:07d}" / PROGRESS).is_file():
        return path / f"iter_{named:07d}"
    found = sorted(path.glob(f"iter_*/{PROGRESS}")) if path.is_dir() else []
    return found[-1].parent if found else None


def is_here(path: Path) -> bool:
    """Return whether a folder holds such a checkpoint."""
    return iteration_folder(path) is not None


def open_source(path: Path, _given: Given) -> Source:
    """Return the checkpoint.

    Raises:
        CheckpointError: the checkpoint cannot be read or is incomplete.
    """
    folder = iteration_folder(path)
    if folder is None:
        raise CheckpointError(f"{path}: has no {PROGRESS}, expected a native trainer checkpoint")
    try:
        then = json.loads(regular_files.read_text(folder / PROGRESS))
        model = model_from_dict(then["config"]["model"])
        parallel = then["config"].get("parallel", {})
        arguments = run_arguments(then["config"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError, ConfigError) as error:
        raise CheckpointError(
            f"{folder / PROGRESS}: cannot be read ({one_line(error)}), expected the progress of a native run — choose "
            "another checkpoint"
        ) from error
    if not (folder / METADATA).is_file():
        raise CheckpointError(f"{folder}: has no {METADATA}, expected a complete checkpoint — restore it")
    stored = DistributedTensors(folder)
    names = [one.name for one in parameters(model)]
    rules = [Rule((name,), (name,)) for name in names]
    saved = [name.removeprefix(PREFIX) for name in stored.tensors if name.startswith(PREFIX)]
    refuse_leftover(saved, rules, folder)
    sizes = {f"{axis}_parallel": parallel[axis] for axis in ("tensor", "pipeline", "data") if axis in parallel}
    return Source(
        "native",
        folder,
        model,
        RuleReader(rules, lambda rule: [stored(PREFIX + rule.theirs[0])], parameters(model), folder),
        stored.tensors[PREFIX + names[0]].properties.dtype,
        iteration=then.get("iteration"),
        layout={
            **sizes,
            "files": len(list(folder.glob("*.distcp"))),
            "optimizer": any(name.startswith("optimizer.") for name in stored.tensors),
        },
        arguments=arguments,
    )


def write(output: Output, folder: Path) -> Path:
    """Write weights as iteration 0 into the empty ``folder``, and return the folder of that iteration."""
    target = folder / "iter_0000000"
    target.mkdir()

    def entries() -> Iterator[Entry]:
        for one in parameters(output.model):
            tensor = output.read(one.name)
            output.done(tensor.nbytes)
            yield Entry(PREFIX + one.name, tensor)

    write_distributed(target, entries())
    progress = {
        "iteration": 0,
        "consumed_samples": 0,
        "scheduled": 0,
        "loss_scale": {},
        "config": {"model": dataclasses.asdict(output.model)},
    }
    (target / PROGRESS).write_text(json.dumps(progress, indent=1), encoding="utf-8")
    (folder / LATEST).write_text("0", encoding="utf-8")
    return target
