"""Pipeline stages of unequal size, by Megatron-core's options, which every dialect accepts.

Sources: Megatron-LM@d98e8a64 megatron/core/transformer/transformer_config.py (__post_init__) and
pipeline_parallel_layer_layout.py.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from ascend_adapt.config.checks import divides
from ascend_adapt.config.partition import uneven_ranks
from ascend_adapt.errors import ConfigError
from ascend_adapt.recipes.command_line import OwnOptions

Stages = tuple[int, ...]

LAYOUT = "--pipeline-model-parallel-layout"
UNEVEN = "--decoder-first-pipeline-num-layers, --decoder-last-pipeline-num-layers"
_REPEATED = (re.compile(r"\(([^)]+)\)\*(\d+)"), re.compile(r"(.)\*(\d+)"))
"""Repetitions in a layout: first of a group in parentheses, then of a single character."""


def read_stages(
    own: OwnOptions, layers: int, pipeline: int, otherwise: Callable[[int, int], Stages]
) -> tuple[int, Stages]:
    """Return the number of virtual stages of a pipeline rank, and the number of layers of each stage in model order.

    Without options for it, ``otherwise`` divides the layers over the pipeline ranks.

    Raises:
        ConfigError: the options contradict each other, or the layers cannot be divided as requested.
    """
    names = ("decoder_first_pipeline_num_layers", "decoder_last_pipeline_num_layers", "pipeline_model_parallel_layout")
    first, last, layout = (own.stages.get(name) for name in names)
    is_uneven = (first, last) != (None, None)
    one_way({UNEVEN: is_uneven, LAYOUT: layout is not None})
    if layout is not None:
        return stages_of_layout(layout, layers, pipeline)
    return 1, uneven_ranks(layers, pipeline, first, last) if is_uneven else otherwise(layers, pipeline)


def one_way(given: dict[str, bool]) -> None:
    """Check that at most one way to divide the layers is given.

    Raises:
        ConfigError: several are.
    """
    if len(names := [name for name, is_given in given.items() if is_given]) > 1:
        raise ConfigError(f"{', '.join(names)}: several ways to divide the layers, expected one — choose one")


def stages_of_layout(layout: str, layers: int, pipeline: int) -> tuple[int, Stages]:
    """Return the virtual stages of a rank and the layers of each stage of a layout such as "Et*3|(tt|)*2,tL".

    Raises:
        ConfigError: the layout has other layers than the model, or does not fit the pipeline size.
    """
    flat = layout.replace(",", "")
    for pattern in _REPEATED:
        flat = pattern.sub(lambda found: found[1] * int(found[2]), flat)
    if unknown := set(flat) - set("EtL|"):
        raise ConfigError(
            f"{LAYOUT}: {layout!r} has {', '.join(map(repr, sorted(unknown)))}, expected E (embedding), t (layer), L "
            "(loss) and | between stages — the native trainer has no other layers"
        )
    stages = flat.split("|")
    divides(f"stages of {LAYOUT}", len(stages), "pipeline stages", pipeline)
    found = "".join(stages)
    # The native trainer has the embedding in the first stage, and the head and the loss in the last one.
    if found != f"E{'t' * layers}L" or "E" not in stages[0] or "L" not in stages[-1]:
        raise ConfigError(
            f"{LAYOUT}: {layout!r} has {found.count('t')} layers, {found.count('E')} E and {found.count('L')} L, "
            f"expected E in the first stage, the model's {layers} layers, and L in the last stage — correct it"
        )
    return len(stages) // pipeline, tuple(stage.count("t") for stage in stages)
