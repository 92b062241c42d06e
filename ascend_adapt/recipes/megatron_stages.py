"""Pipeline stages of Megatron's command line: how many layers each stage has.

Sources: Megatron-LM@core_v0.9.0 and @d98e8a64 megatron/training/arguments.py (validate_args) and, in
megatron/core/transformer, transformer_config.py (__post_init__) and transformer_block.py (get_num_layers_to_build).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ascend_adapt.config.checks import at_least, divides
from ascend_adapt.config.partition import balanced_stages, uneven_ranks
from ascend_adapt.errors import ConfigError
from ascend_adapt.recipes.options import Options
from ascend_adapt.recipes.parallel_sizes import tensor_and_pipeline
from ascend_adapt.recipes.stages import LAYOUT, UNEVEN, Stages, one_way, stages_of_layout

_EACH, _COUNT = "--num-layers-per-virtual-pipeline-stage", "--num-virtual-stages-per-pipeline-rank"
_COUNTED = "--account-for-embedding-in-pipeline-split, --account-for-loss-in-pipeline-split"


def read_megatron_stages(options: Options, deepspeed: Mapping[str, Any]) -> tuple[int, Stages]:
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
    is_uneven = (first, last) != (None, None)
    one_way({UNEVEN: is_uneven, _COUNTED: bool(embedding or loss), LAYOUT: layout is not None})
    sizes = {_EACH: each, _COUNT: count, LAYOUT: layout}
    if len(given := [name for name, value in sizes.items() if value is not None]) > 1:
        raise ConfigError(
            f"{', '.join(given)}: given together, expected one of them: each sets the virtual stages — choose one"
        )
    if layout is not None:
        return stages_of_layout(layout, layers, pipeline)
    if is_uneven and each is not None:
        raise ConfigError(f"{_EACH}: given with an uneven first or last stage, expected {_COUNT} — use that")
    if is_uneven:
        ranks = uneven_ranks(layers, pipeline, first, last)
    elif deepspeed.get("switched_on") and each is None:
        ranks = balanced_stages(layers, pipeline)
    else:
        counted = layers + embedding + loss
        divides("num_layers" + " and embedding" * embedding + " and loss" * loss, counted, "pipeline stages", pipeline)
        ranks = (counted // pipeline,) * pipeline
    virtual = 1 if count is None else count
    if each is not None:
        at_least(_EACH, each, 1)
        divides("layers of a pipeline rank", ranks[0], _EACH, each)
        virtual = ranks[0] // each
    at_least("virtual stages", virtual, 1)
    for of_rank in dict.fromkeys(ranks):
        divides("layers of a pipeline rank", of_rank, "virtual stages", virtual)
    # The embedding and the loss count as a layer of the first and of the last stage.
    stages = [ranks[stage % pipeline] // virtual for stage in range(pipeline * virtual)]
    stages[0] -= embedding
    stages[-1] -= loss
    return virtual, tuple(stages)
