"""Pipeline stages of Megatron's command line: how many layers each stage has.

Sources: Megatron-LM@core_v0.9.0 and @d98e8a64 megatron/training/arguments.py (validate_args), megatron/core/transformer/
transformer_config.py (__post_init__), transformer_block.py (get_num_layers_to_build), pipeline_parallel_layer_layout.py.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from ascend_adapt.config.checks import at_least, divides
from ascend_adapt.config.partition import balanced_stages, uneven_ranks
from ascend_adapt.errors import ConfigError
from ascend_adapt.recipes.options import Options
from ascend_adapt.recipes.parallel_sizes import tensor_and_pipeline

Stages = tuple[int, ...]

_EACH, _COUNT = "--num-layers-per-virtual-pipeline-stage", "--num-virtual-stages-per-pipeline-rank"
_LAYOUT = "--pipeline-model-parallel-layout"
_REPEATED = (re.compile(r"\(([^)]+)\)\*(\d+)"), re.compile(r"(.)\*(\d+)"))
"""Repetitions in a layout: first of a group in parentheses, then of a single character."""


def read_stages(options: Options, deepspeed: Mapping[str, Any]) -> tuple[int, Stages]:
    """Return the number of virtual stages of a pipeline rank, and the number of layers of each stage in model order.

    Raises:
        ConfigError: the options contradict each other, or the layers cannot be divided as requested.
    """
    pipeline, layers = tensor_and_pipeline(options)[1], options.size("num_layers")
    first, last = options("decoder_first_pipeline_num_layers"), options("decoder_last_pipeline_num_layers")
    embedding = int(options("account_for_embedding_in_pipeline_split", False))
    loss = int(options("account_for_loss_in_pipeline_split", False))
    each, count = options("num_layers_per_virtual_pipeline_stage"), options("num_virtual_stages_per_pipeline_rank")
    layout = options("pipeline_model_parallel_layout")
    ways = {
        "--decoder-first-pipeline-num-layers, --decoder-last-pipeline-num-layers": (first, last) != (None, None),
        "--account-for-embedding-in-pipeline-split, --account-for-loss-in-pipeline-split": embedding or loss,
        _LAYOUT: layout is not None,
    }
    if len(given := [names for names, is_given in ways.items() if is_given]) > 1:
        raise ConfigError(f"{', '.join(given)}: several ways to divide the layers, expected one — choose one")
    sizes = {_EACH: each, _COUNT: count, _LAYOUT: layout}
    if len(given := [name for name, value in sizes.items() if value is not None]) > 1:
        raise ConfigError(f"{', '.join(given)}: each sets the virtual stages, expected one — choose one")
    if layout is not None:
        return _of_layout(layout, layers, pipeline)
    is_uneven = (first, last) != (None, None)
    if is_uneven and each is not None:
        raise ConfigError(f"{_EACH}: given with an uneven first or last stage, expected {_COUNT} — use that")
    if deepspeed.get("switched_on") and each is None:
        return 1, balanced_stages(layers, pipeline)
    counted = layers + embedding + loss
    if is_uneven:
        ranks = uneven_ranks(layers, pipeline, first, last)
    else:
        divides("num_layers" + " and embedding" * embedding + " and loss" * loss, counted, "pipeline stages", pipeline)
        ranks = (counted // pipeline,) * pipeline
    virtual = 1 if count is None else count
    at_least("virtual stages", virtual, 1)
    if each is not None:
        at_least(_EACH, each, 1)
        divides("layers of a pipeline rank", ranks[0], _EACH, each)
        virtual = ranks[0] // each
    for of_rank in dict.fromkeys(ranks):
        divides("layers of a pipeline rank", of_rank, "virtual stages", virtual)
    stages = [ranks[stage % pipeline] // virtual for stage in range(pipeline * virtual)]
    stages[0] -= embedding
    stages[-1] -= loss
    return virtual, tuple(stages)


def _of_layout(layout: str, layers: int, pipeline: int) -> tuple[int, Stages]:
    """Return the virtual stages and layers of a layout such as "Et*3|(tt|)*2,tL"."""
    flat = layout.replace(",", "")
    for pattern in _REPEATED:
        flat = pattern.sub(lambda found: found[1] * int(found[2]), flat)
    if unknown := set(flat) - set("EtL|"):
        raise ConfigError(
            f"{_LAYOUT}: {layout!r} has {', '.join(map(repr, sorted(unknown)))}, expected E (embedding), t (layer), L "
            "(loss) and | between stages — the native trainer has no other layers"
        )
    stages = flat.split("|")
    divides(f"stages of {_LAYOUT}", len(stages), "pipeline stages", pipeline)
    found = "".join(stages)
    if found != f"E{'t' * layers}L":
        raise ConfigError(
            f"{_LAYOUT}: {layout!r} has {found.count('t')} layers, {found.count('E')} E and {found.count('L')} L, "
            f"expected E first, the {layers} layers of --num-layers and L last — correct it"
        )
    return len(stages) // pipeline, tuple(stage.count("t") for stage in stages)
