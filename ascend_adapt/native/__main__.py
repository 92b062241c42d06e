"""Entry point of each rank of a native run: `python -m ascend_adapt.native [config.yaml]`.

`ascend-run --native` passes the configuration in ASCEND_ADAPT_NATIVE_CONFIG; the argument is the config.yaml of an
earlier run.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import yaml

from ascend_adapt import bounded_yaml, regular_files, standard_streams, switches
from ascend_adapt.config.train_config import TrainConfig
from ascend_adapt.config.yaml_file import from_dict, to_dict
from ascend_adapt.errors import ConfigError, TrainingError, one_line
from ascend_adapt.native.checkpoint.folder import write_durably
from ascend_adapt.whole_numbers import of_variable

VARIABLE = "ASCEND_ADAPT_NATIVE_CONFIG"


def main(argv: Sequence[str], environ: Mapping[str, str]) -> None:
    """Train as configured, and write the configuration to the run directory. Ctrl-C ends it with exit code 130.

    Raises:
        ConfigError: the configuration is missing or invalid.
        TrainingError: the run directory is not writable; ``loop.train`` raises further errors.
    """
    standard_streams.prepare()
    debug = switches.is_on(environ, "ASCEND_ADAPT_DEBUG")
    try:
        _train(argv, environ)
    except KeyboardInterrupt:
        if debug:
            raise
        rank = environ.get("RANK", "0")
        print(
            f"ascend_adapt: rank {rank}: interrupted by SIGINT, which saves no checkpoint; SIGTERM saves one",
            file=sys.stderr,
        )
        sys.exit(128 + signal.SIGINT)


def _train(argv: Sequence[str], environ: Mapping[str, str]) -> None:
    config = _configuration(argv, environ)
    run_dir = Path(environ.get("ASCEND_ADAPT_RUN_DIR", config.checkpoint.save or "runs/native"))
    rank = of_variable(environ, "RANK", 0)
    if rank == 0:
        _write_config(config, run_dir)
    # Importing torch takes seconds; an invalid configuration should fail before it.
    from ascend_adapt.native import device, loop
    from ascend_adapt.native.finetuning.run import FinetuningRun
    from ascend_adapt.native.metrics.progress_pipe import ProgressPipe
    from ascend_adapt.native.metrics.run_log import RunLog

    progress = ProgressPipe.of(environ, config.iterations)
    log = RunLog(config, run_dir, rank=rank, device_name=device.name(device.of_this_rank()), progress=progress)
    try:
        loop.train(config, run_dir, log, kind=FinetuningRun if config.cloze else loop.TrainingRun)
    finally:
        log.close()


def _write_config(config: TrainConfig, run_dir: Path) -> None:
    try:
        run_dir.mkdir(parents=True, exist_ok=True)
        write_durably(run_dir / "config.yaml", yaml.safe_dump(to_dict(config), sort_keys=False))
    except OSError as error:
        raise TrainingError(
            f"{run_dir}: config.yaml cannot be written ({error.strerror}), expected a writable folder with free space "
            "— free space, or choose another folder with --log-dir"
        ) from error


def _configuration(argv: Sequence[str], environ: Mapping[str, str]) -> TrainConfig:
    if argv:
        try:
            content = bounded_yaml.load(regular_files.read_text(argv[0]))
        except OSError as error:
            raise ConfigError(f"{argv[0]}: {error.strerror} — pass the config.yaml of a native run") from error
        except ValueError as error:
            raise ConfigError(
                f"{argv[0]}: is not valid YAML ({one_line(error)}) — pass the config.yaml of a native run"
            ) from error
        return from_dict(content)
    if VARIABLE not in environ:
        raise ConfigError("python -m ascend_adapt.native: no configuration — start it with ascend-run --native DIALECT")
    return from_dict(json.loads(environ[VARIABLE]))


if __name__ == "__main__":
    main(sys.argv[1:], os.environ)
