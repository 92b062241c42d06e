"""`ascend-run --native DIALECT`: prepares a native run from a dialect's arguments."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ascend_adapt.errors import LaunchError, not_installed
from ascend_adapt.launch.one_host.termination import GRACE_S, SAVING_GRACE_S
from ascend_adapt.launch.request import Request

if TYPE_CHECKING:
    from ascend_adapt.config.train_config import TrainConfig
    from ascend_adapt.recipes.recipe import Recipe

_FOR_OTHER_CODE = ("cuda_code",)
"""Plugins whose patches are for code that says "cuda". In a native run only the trainer runs."""


@dataclass(frozen=True)
class NativeRun:
    """A native run whose world size is not yet known: the request and the recipe."""

    request: Request
    recipe: Recipe

    def configured(self, world_size: int) -> Configured:
        """Return the configuration for ``world_size`` ranks.

        Raises:
            ConfigError: the dialect's arguments are invalid or do not match the world size.
        """
        from ascend_adapt.config.profile_config import Profile, read_profile
        from ascend_adapt.config.stage_balance import unbalanced
        from ascend_adapt.config.text_samples import read_text_samples

        config, notes = self.recipe.build(world_size)
        asked = self.request
        profile = Profile() if asked.profile is None else read_profile(asked.profile, asked.profile_ranks)
        exit_signals = (*config.exit_signals, *asked.exit_signals)
        config = dataclasses.replace(config, compile=asked.compile, profile=profile, exit_signals=exit_signals)
        if asked.sample_prompts is not None:
            tokens = {} if asked.sample_tokens is None else {"tokens": asked.sample_tokens}
            samples = read_text_samples(asked.sample_prompts, **tokens)
            config = dataclasses.replace(config, text_samples=samples)
        if asked.eval_only:
            config = config.for_evaluation()
        if (note := unbalanced(config)) is not None:
            notes = [*notes, note]
        return Configured(config, tuple(notes))


@dataclass(frozen=True)
class Configured:
    """The configuration of a native run, and notes to print about it."""

    config: TrainConfig
    notes: tuple[str, ...]

    @property
    def env(self) -> dict[str, str]:
        """Environment variables that carry the configuration to each rank, on every host."""
        from ascend_adapt.config.yaml_file import to_dict

        return {"ASCEND_ADAPT_NATIVE_CONFIG": json.dumps(to_dict(self.config))}

    def check_data(self, may_be_elsewhere: bool = False) -> list[str]:
        """Check that the token files have enough samples for the run; return notes to print.

        ``may_be_elsewhere``: the plan may be for another host, so a missing file is a note and not an error.

        Raises:
            DataError: the data is missing, invalid or too short.
            LaunchError: a package that reads the data is not installed.
        """
        missing = [name for name in ("numpy", "torch") if importlib.util.find_spec(name) is None]
        if missing and may_be_elsewhere:
            return [f"data: not checked, {' and '.join(missing)} not installed"]
        if missing:
            raise LaunchError(not_installed(missing[0], "--native", "native"))
        from ascend_adapt.native.samples.preflight import check_data, missing_files

        absent = missing_files(self.config)
        if may_be_elsewhere and absent:
            return [f"data: not checked, {absent[0]} is not on this host"]
        check_data(self.config)
        return []

    def to_json(self) -> dict[str, Any]:
        """Return the configuration, parallel layout and estimated memory per rank, which --dry-run adds to the plan."""
        from ascend_adapt.config.memory_estimate import memory_bytes, rank_parameters, total_parameters
        from ascend_adapt.config.yaml_file import to_dict

        parallel = self.config.parallel
        held = [memory_bytes(self.config, stage) for stage in range(parallel.pipeline)]
        stages = [rank // (parallel.tensor * parallel.data) for rank in range(parallel.world_size)]
        layout = [
            {
                "rank": rank,
                "pipeline": stage,
                "data": rank // parallel.tensor % parallel.data,
                "tensor": rank % parallel.tensor,
                "layers": _layers(parallel.stages, stage, parallel.pipeline),
            }
            for rank, stage in enumerate(stages)
        ]
        return {
            "config": to_dict(self.config),
            "layout": {
                "data": parallel.data,
                "tensor": parallel.tensor,
                "pipeline": parallel.pipeline,
                "ranks": layout,
            },
            "parameters": {
                "total": total_parameters(self.config.model),
                "per_rank": [rank_parameters(self.config.model, parallel, stage) for stage in range(parallel.pipeline)],
            },
            "memory_bytes": [{"rank": rank, **held[stage]} for rank, stage in enumerate(stages)],
        }


def prepare(request: Request) -> NativeRun:
    """Return the requested native run; the dialect's hosts and ranks apply unless options of ascend-run set them.

    Raises:
        SettingsError: the dialect is unknown, or one of its arguments is unknown or invalid.
    """
    from ascend_adapt.recipes import dialects

    recipe = dialects.read(request.native or "", request.arguments)
    asked = dataclasses.replace(
        request,
        arguments=(),
        disable=(*request.disable, *_FOR_OTHER_CODE),
        nproc=request.nproc or recipe.ranks_per_node,
        nodes=request.nodes or recipe.nodes,
        node_ips=request.node_ips or recipe.node_ips,
        hostfile=request.hostfile or recipe.hostfile,
        include=request.include or recipe.include,
        exclude=request.exclude or recipe.exclude,
        grace=request.grace if request.grace is not None else SAVING_GRACE_S if recipe.save else GRACE_S,
    )
    return NativeRun(asked, recipe)


def _layers(stages: tuple[int, ...], pipeline_rank: int, pipeline: int) -> list[list[int]]:
    """Return the first and last layer of each stage on a pipeline rank that has layers."""
    mine = [stage for stage in range(pipeline_rank, len(stages), pipeline) if stages[stage]]
    return [[sum(stages[:stage]), sum(stages[: stage + 1]) - 1] for stage in mine]
