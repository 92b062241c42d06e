"""GLM's shell files: read the command that its scripts would start, without starting it.

    scripts/ds_pretrain_nvidia.sh config/ds_block_10B.sh
    scripts/ds_finetune_superglue.sh config_tasks/model_blocklm_10B.sh config_tasks/task_copa.sh
    config/ds_block_10B.sh

bash runs the script with functions in place of the launchers, which record their arguments. A configuration file
without a script is sourced, and its variables are read as the scripts read them.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path

from ascend_adapt import regular_files
from ascend_adapt.errors import ConfigError, one_line
from ascend_adapt.whole_numbers import whole_number

PROGRAMS = ("pretrain_glm.py", "finetune_glm.py")
_SECONDS = 60
_VARIABLES = "gpt_options MODEL_ARGS TRAIN_ARGS COMMON_ARGS TASK_NAME DATA_PATH MAX_SEQ_LEN EPOCH_SINGLE LR_SINGLE"
# The scripts also make a folder for logs, and write to it.
_RECORD = """
record() { printf '%s\\0' "$@" > "$RECORDED"; }
deepspeed() { record "$@"; }; python() { record "$@"; }; python3() { record "$@"; }; torchrun() { record "$@"; }
mkdir() { :; }; tee() { cat > /dev/null; }
script=$1; shift; source "$script" "$@" > /dev/null
"""
_SOURCE = """
MP_SIZE=${MP_SIZE:-1}
for file in "$@"; do source "$file" > /dev/null; done
for name in $VARIABLES; do printf '%s\\0' "${!name}"; done > "$RECORDED"
"""


@dataclass(frozen=True)
class Started:
    """The command that a script starts: the options of GLM's program, and the relevant options of the launcher."""

    words: tuple[str, ...]
    ranks_per_node: int | None = None
    nodes: int | None = None
    hostfile: str | None = None


def started(argv: Sequence[str]) -> Started:
    """Return the options that the shell files at the start of ``argv`` set, followed by the rest of ``argv``.

    Raises:
        ConfigError: a file is missing, or sets none of GLM's options.
    """
    files = list(takewhile(lambda word: not word.startswith("--"), argv))
    own = tuple(argv[len(files) :])
    if not files:
        return Started(own)
    if Path(files[0]).name in PROGRAMS:
        return Started(tuple(argv[1:]))
    for file in files:
        if not Path(file).is_file():
            raise ConfigError(f"{file}: no such file, expected GLM's script or configuration — correct the path")
    text = regular_files.read_text(files[0], errors="replace")
    if any(program in text for program in PROGRAMS):
        return _of_launcher(files, _run(_RECORD, files), own)
    return Started((*_of_configuration(files, _run(_SOURCE, files)), *own))


def _of_launcher(files: Sequence[str], words: Sequence[str], own: tuple[str, ...]) -> Started:
    place = next((place for place, word in enumerate(words) if Path(word).name in PROGRAMS), None)
    if place is None:
        raise ConfigError(f"{files[0]}: starts none of {', '.join(PROGRAMS)}, expected GLM's script — correct it")
    launcher = words[:place]

    def option(*names: str) -> str | None:
        return next((launcher[at + 1] for at, word in enumerate(launcher[:-1]) if word in names), None)

    ranks, nodes, hostfile = (
        option("--num_gpus", "--nproc_per_node"),
        option("--num_nodes", "--nnodes"),
        option("--hostfile"),
    )
    # The hostfile of the scripts is an example, which DeepSpeed ignores if it is missing.
    return Started(
        (*words[place + 1 :], *own),
        whole_number(ranks),
        whole_number(nodes),
        hostfile if hostfile and Path(hostfile).is_file() else None,
    )


def _of_configuration(files: Sequence[str], values: Sequence[str]) -> list[str]:
    found = dict(zip(_VARIABLES.split(), values, strict=True))
    if found["gpt_options"]:
        return found["gpt_options"].split()
    words = [word for name in ("MODEL_ARGS", "TRAIN_ARGS", "COMMON_ARGS") for word in found[name].split()]
    if not words:
        raise ConfigError(
            f"{', '.join(files)}: set neither gpt_options nor MODEL_ARGS, expected a configuration of GLM — correct it"
        )
    options = {
        "--task": "TASK_NAME",
        "--data-dir": "DATA_PATH",
        "--seq-length": "MAX_SEQ_LEN",
        "--epochs": "EPOCH_SINGLE",
        "--lr": "LR_SINGLE",
    }
    task = [word for option, name in options.items() if found[name] for word in (option, found[name])]
    return [*(["--finetune", "--cloze-eval"] if task else []), *task, *words]


def _run(script: str, files: Sequence[str]) -> list[str]:
    with tempfile.TemporaryDirectory() as folder:
        recorded = Path(folder, "words")
        try:
            ended = subprocess.run(
                ["bash", "-c", script, "bash", *(str(Path(file).absolute()) for file in files)],
                env={**os.environ, "RECORDED": str(recorded), "VARIABLES": _VARIABLES},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=_SECONDS,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise ConfigError(
                f"{files[0]}: bash cannot run it ({one_line(error)}) — pass its options on the command line"
            ) from error
        if not recorded.exists():
            why = ended.stderr.strip().splitlines()[-1:] or ["starts no program"]
            raise ConfigError(f"{files[0]}: {why[0]}, expected GLM's script or configuration — correct it")
        return regular_files.read_text(recorded).split("\0")[:-1]
