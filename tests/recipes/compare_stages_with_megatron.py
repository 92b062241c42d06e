"""Compare the pipeline stages that Megatron-core itself makes of its options with the recipe's.

    python tests/recipes/compare_stages_with_megatron.py CHECKOUT

CHECKOUT is Megatron-LM with Megatron-core 0.19.0. Exit code 1 if any stages differ.
"""

from __future__ import annotations

import itertools
import sys
from unittest.mock import MagicMock, patch

import torch

from ascend_adapt.errors import ConfigError
from ascend_adapt.recipes.megatron_stages import read_megatron_stages
from ascend_adapt.recipes.options import Options, version

# The recipe's names, and those of upstream's TransformerConfig.
NAMES = {
    "num_layers": "num_layers",
    "pipeline_model_parallel_size": "pipeline_model_parallel_size",
    "num_virtual_stages_per_pipeline_rank": "virtual_pipeline_model_parallel_size",
    "decoder_first_pipeline_num_layers": "num_layers_in_first_pipeline_stage",
    "decoder_last_pipeline_num_layers": "num_layers_in_last_pipeline_stage",
    "account_for_embedding_in_pipeline_split": "account_for_embedding_in_pipeline_split",
    "account_for_loss_in_pipeline_split": "account_for_loss_in_pipeline_split",
    "pipeline_model_parallel_layout": "pipeline_model_parallel_layout",
}
SIZES = (
    (6, 8, 11, 12, 24),
    (2, 3, 4),
    (None, 2, 3),
    (None, 0, 1, 2, 4, 6),
    (None, 1, 3, 4, 9),
    (False, True),
    (False, True),
    (None,),
)
LAYOUTS = (
    *("Et*7|t*6|t*6|t*5L", "E|(tt|)*12,L|", "E,t*4|(tt|)*5,t*10|L", "Et*12|t*12L", "Et*12|t*11L", "t*12|Et*12L"),
    *("Et|t*22|tL|", "E|t*24|L|", "|Et*12|t*12L|"),
)
CASES = [
    *itertools.product(*SIZES),
    *itertools.product((24,), (2, 4), (None,), (None,), (None,), (False,), (False,), LAYOUTS),
]


def upstreams(given: dict[str, object]) -> tuple[int, ...] | None:
    """Return Megatron-core's own layers of each stage in model order; None if it rejects them, or some are below 0."""
    from megatron.core import parallel_state
    from megatron.core.transformer.transformer_block import get_num_layers_to_build
    from megatron.core.transformer.transformer_config import TransformerConfig

    named = {theirs: given[ours] for ours, theirs in NAMES.items()}
    try:
        config = TransformerConfig(**named, hidden_size=8, num_attention_heads=1, pipeline_dtype=torch.float32)
        virtual, stages = config.virtual_pipeline_model_parallel_size, []
        for chunk, rank in itertools.product(range(virtual or 1), range(config.pipeline_model_parallel_size)):
            with (
                patch.object(parallel_state, "get_virtual_pipeline_model_parallel_world_size", lambda: virtual),
                patch.object(parallel_state, "get_pipeline_model_parallel_rank", lambda rank=rank: rank),
            ):
                stages.append(get_num_layers_to_build(config, None if virtual is None else chunk, rank))
    except (ValueError, AssertionError):
        return None
    return tuple(stages) if min(stages) >= 0 else None


def ours(given: dict[str, object]) -> tuple[int, ...] | None:
    """Return the recipe's layers of each stage, None if it rejects the options."""
    options = Options(version("megatron", "newest"), {name: one for name, one in given.items() if one is not None}, {})
    try:
        return read_megatron_stages(options, {})[1]
    except ConfigError:
        return None


def main(checkout: str) -> int:
    """Compare every case; return the exit code."""
    sys.path.insert(0, checkout)
    # Megatron-core imports triton, and compiles functions, when it is imported.
    sys.modules |= {name: MagicMock(__version__="3.5.0") for name in ("triton", "triton.language")}
    torch.compile = lambda function=None, **_: function or (lambda inner: inner)
    equal = rejected = differing = stricter = 0
    for values in CASES:
        given = dict(zip(NAMES, values, strict=True))
        theirs, mine = upstreams(given), ours(given)
        equal += theirs == mine is not None
        rejected += theirs is mine is None
        # The native trainer has the embedding in the first stage and the loss in the last one.
        is_stricter = mine is None and theirs is not None and given["pipeline_model_parallel_layout"] is not None
        stricter += is_stricter
        if theirs != mine and not is_stricter:
            differing += 1
            print(f"{given}: upstream {theirs}, here {mine}")
    print(
        f"{len(CASES)} cases: {equal} have equal stages, {rejected} can be built by neither, {stricter} layouts are "
        f"rejected here, {differing} differ"
    )
    return int(differing > 0 or not equal)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
