"""Balance of pipeline stages: the last stage also computes the head, so other numbers of layers may shorten a step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ascend_adapt.config.flops import head_flops, layer_flops
from ascend_adapt.config.train_config import TrainConfig

Stages = tuple[int, ...]

_LEAST_GAIN = 0.03
"""Share of a step that other stages must save to be worth a note."""


def unbalanced(config: TrainConfig) -> str | None:
    """Return a note if other stages would shorten a step, by its FLOPs and the 1F1B schedule; else None."""
    parallel = config.parallel
    if parallel.pipeline == 1 or config.cloze is not None or config.eval_only:
        return None
    # Recomputation runs the forward pass of the layers again, but not that of the head.
    passes = 4 if parallel.recompute == "full" else 3
    head = 3 * head_flops(config.model) / (passes * layer_flops(config.model, config.data.seq_length))

    def time(stages: Stages) -> float:
        """Return the time of a step, relative to that of a micro batch in one layer."""
        costs = [*stages[:-1], stages[-1] + head]
        ranks = [sum(costs[rank :: parallel.pipeline]) for rank in range(parallel.pipeline)]
        # While the slowest rank waits for the others, they run one of their virtual stages each.
        bubble = (sum(ranks) - max(ranks)) / parallel.virtual_stages
        return config.batch.accumulation * max(ranks) + bubble

    others = _candidates(config.model.num_layers, parallel.pipeline, parallel.virtual_stages, head)
    # Of equal estimates, the one with the largest first stage is best: that stage starts first and ends last.
    best = min((parallel.stages, *others), key=lambda stages: (time(stages), -stages[0]))
    gain = 1 - time(best) / time(parallel.stages)
    if gain <= _LEAST_GAIN:
        return None
    return (
        f"pipeline stages: {_listed(parallel.stages)} layers, but the last stage also computes the head, as much as "
        f"{head:.1f} layers; expected {_listed(best)}, which would shorten a step by about {gain:.0%} or more — pass "
        f"{_options(best, parallel.virtual_stages)}"
    )


def _candidates(layers: int, pipeline: int, virtual: int, head: float) -> Iterator[Stages]:
    """Yield stages that Megatron-core's options can request, for each size of the last one."""
    stages = pipeline * virtual
    for last in range(layers - stages + 1, 0, -1):
        rest = layers - last
        if virtual == 1:
            for middle in {rest // (stages - 1), -(-rest // (stages - 1))}:
                first = rest - (stages - 2) * middle
                if first > 0:
                    yield (first, *(middle,) * (stages - 2), last)
            continue
        each, more = divmod(rest, stages - 1)
        sizes = [*(each,) * (stages - 1), last]
        for _ in range(more):
            # One more layer for the rank that computes least, in its last stage of this size.
            loads = {rank: sum(sizes[rank::pipeline]) + head * (rank == pipeline - 1) for rank in range(pipeline)}
            free = [stage for stage in range(stages - 1) if sizes[stage] == each]
            sizes[min(free, key=lambda stage: (loads[stage % pipeline], -stage))] += 1
        yield tuple(sizes)


def _listed(stages: Sequence[int]) -> str:
    return ", ".join(map(str, stages))


def _options(stages: Stages, virtual: int) -> str:
    if virtual == 1:
        return f"--decoder-first-pipeline-num-layers {stages[0]} --decoder-last-pipeline-num-layers {stages[-1]}"
    layout = "|".join(f"t*{layers}" for layers in stages)
    return f"--pipeline-model-parallel-layout 'E{layout}L' instead of the options for virtual stages"
