"""Names of the options that change memory use, for each kind of job that --fit can change."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

Path = tuple[str, ...]


@dataclass(frozen=True)
class Names:
    """Options and keys of one kind of job; "" or an empty tuple if it has none.

    The arguments in ``recompute`` and ``sequence`` enable recomputation and sequence parallelism; those in ``zero``
    choose a ZeRO stage. Keys are paths in the job's YAML or JSON files.
    """

    kind: str
    micro: str = ""
    accumulation: str = ""
    total: str = ""
    tensor: str = ""
    pipeline: str = ""
    recompute: Sequence[Sequence[str]] = ()
    """Alternatives, of which the first that the job's version supports is used."""
    zero: Mapping[int, Sequence[str]] = field(default_factory=dict)
    sequence: Sequence[str] = ()
    keys: Mapping[str, Path] = field(default_factory=dict)


DEEPSPEED_KEYS: dict[str, Path] = {
    "micro": ("train_micro_batch_size_per_gpu",),
    "accumulation": ("gradient_accumulation_steps",),
    "total": ("train_batch_size",),
    "zero": ("zero_optimization", "stage"),
}
NEOX = Names(
    "GPT-NeoX",
    keys={
        **DEEPSPEED_KEYS,
        "recompute": ("checkpoint_activations",),
        "sequence": ("sequence_parallel",),
        "tensor": ("model_parallel_size",),
        "pipeline": ("pipe_parallel_size",),
    },
)
_CORE_RECOMPUTE = ("--recompute-granularity", "full", "--recompute-method", "uniform", "--recompute-num-layers", "1")
MEGATRON = Names(
    "Megatron-LM",
    micro="--micro-batch-size",
    total="--global-batch-size",
    tensor="--tensor-model-parallel-size",
    pipeline="--pipeline-model-parallel-size",
    recompute=(_CORE_RECOMPUTE, ("--checkpoint-activations",)),
    zero={1: ("--use-distributed-optimizer",)},
    sequence=("--sequence-parallel",),
)
MEGATRON_DEEPSPEED = Names(
    "Megatron-DeepSpeed",
    micro="--micro-batch-size",
    total="--global-batch-size",
    tensor="--tensor-model-parallel-size",
    pipeline="--pipeline-model-parallel-size",
    recompute=(("--checkpoint-activations", "--deepspeed-activation-checkpointing"),),
    zero={stage: ("--zero-stage", str(stage)) for stage in (1, 2, 3)},
    keys=DEEPSPEED_KEYS,
)
ONEFLOW = Names(
    "OneFlow",
    micro="--micro-batch-size",
    accumulation="--num-accumulation-steps",
    total="--global-batch-size",
    tensor="--tensor-model-parallel-size",
    pipeline="--pipeline-model-parallel-size",
    recompute=(("--checkpoint-activations",),),
)
GLM = Names(
    "GLM",
    micro="--batch-size",
    accumulation="--gradient-accumulation-steps",
    tensor="--model-parallel-size",
    recompute=(("--checkpoint-activations",),),
    keys=DEEPSPEED_KEYS,
)
HUGGING_FACE = Names(
    "Hugging Face Trainer",
    micro="--per-device-train-batch-size",
    accumulation="--gradient-accumulation-steps",
    recompute=(("--gradient-checkpointing", "True"),),
    keys=DEEPSPEED_KEYS,
)
DEEPSPEED = Names("DeepSpeed", keys=DEEPSPEED_KEYS)
