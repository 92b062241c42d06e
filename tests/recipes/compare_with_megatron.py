"""Compare what Megatron itself derives from a command line with what the recipe does.

    python tests/recipes/compare_with_megatron.py VERSION CHECKOUT

VERSION is v2.5, bigscience, deepspeed or core_v0.9.0, CHECKOUT has its commit. Each command line below that the
version knows goes through upstream's own parse_args and checks, as on 8 devices. Exit code 1 if any value differs.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
from pathlib import Path

from record_upstream_options import load

from ascend_adapt.config.train_config import TrainConfig
from ascend_adapt.errors import ConfigError
from ascend_adapt.recipes import megatron

RANKS = 8
SIZES = (
    "--num-layers 24 --hidden-size 1024 --num-attention-heads 16 --seq-length 1024 --max-position-embeddings 1024 "
    "--micro-batch-size 4 --lr 0.00015 --min-lr 1e-5 --data-path d --vocab-file v --tokenizer-type GPT2BPETokenizer"
)
COMMAND_LINES = [
    f"{SIZES} --train-iters 5000 --global-batch-size 64 --lr-warmup-fraction .01 --fp16 --split 949,50,1",
    f"{SIZES} --train-iters 500 --tensor-model-parallel-size 2 --pipeline-model-parallel-size 2 --bf16",
    f"{SIZES} --train-iters 500 --tensor-model-parallel-size 4 --ffn-hidden-size 3000 --kv-channels 32",
    f"{SIZES} --train-samples 100000 --global-batch-size 256 --rampup-batch-size 32 32 10000 --lr-decay-samples 90000",
    f"{SIZES} --train-iters 500 --pipeline-model-parallel-size 4 --num-layers-per-virtual-pipeline-stage 3 "
    "--global-batch-size 64",
    f"{SIZES} --train-iters 500 --swiglu --normalization RMSNorm --disable-bias-linear --recompute-activations",
    f"{SIZES} --train-iters 500 --use-rotary-position-embeddings --untie-embeddings-and-output-weights "
    "--use-distributed-optimizer --tensor-model-parallel-size 2 --sequence-parallel",
]


def upstreams(args) -> dict[str, object]:
    recompute = "full" if getattr(args, "checkpoint_activations", False) else None
    return {
        "layout": (args.tensor_model_parallel_size, args.pipeline_model_parallel_size, args.data_parallel_size),
        "virtual": getattr(args, "virtual_pipeline_model_parallel_size", None) or 1,
        "batch": (args.micro_batch_size, args.global_batch_size),
        "sizes": (args.ffn_hidden_size, args.kv_channels, args.seq_length, args.max_position_embeddings),
        "data": (args.split.replace(" ", ""), args.dataloader_type, args.seed),
        "dtype": {"torch.float32": "fp32", "torch.float16": "fp16", "torch.bfloat16": "bf16"}[str(args.params_dtype)],
        "fused_gelu": args.bias_gelu_fusion and not getattr(args, "swiglu", False),
        "rates": (args.lr, args.min_lr, args.lr_decay_style, args.weight_decay, args.clip_grad),
        "sequence": bool(getattr(args, "sequence_parallel", False)),
        "recompute": recompute or getattr(args, "recompute_granularity", None) or "none",
        "length": (args.train_iters, args.train_samples),
    }


def ours(config: TrainConfig) -> dict[str, object]:
    model, parallel, schedule = config.model, config.parallel, config.schedule
    return {
        "layout": (parallel.tensor, parallel.pipeline, parallel.data),
        "virtual": parallel.virtual_stages,
        "batch": (config.batch.micro, config.batch.total),
        "sizes": (model.ffn_hidden_size, model.head_dim, config.data.seq_length, model.max_positions),
        "data": (config.data.split.replace(" ", ""), config.data.sampler, config.data.seed),
        "dtype": config.precision.dtype,
        "fused_gelu": model.activation == "gelu_tanh",
        "rates": (
            schedule.lr,
            schedule.min_lr,
            schedule.style,
            config.optimizer.weight_decay,
            config.optimizer.clip_grad,
        ),
        "sequence": parallel.sequence,
        "recompute": parallel.recompute,
        "length": (None if config.train_samples else config.iterations, config.train_samples),
    }


def derived(module, command_line: str):
    """Return upstream's arguments, checked by itself."""
    sys.argv = ["pretrain_gpt.py", *command_line.split()]
    os.environ.update(RANK="0", WORLD_SIZE=str(RANKS), CUDA_DEVICE_MAX_CONNECTIONS="1")
    with contextlib.redirect_stdout(io.StringIO()):
        args = module.parse_args()
        if hasattr(module, "validate_args"):
            module.validate_args(args)
    return args


def main(version: str, checkout: Path) -> int:
    module = load(checkout, "megatron")
    # Of a module that is a stand-in: what checkpoints are written as.
    module.update_use_dist_ckpt = lambda args: setattr(args, "use_dist_ckpt", args.ckpt_format != "torch")
    compared, differing = 0, 0
    for command_line in COMMAND_LINES:
        own = [*command_line.split(), "--vocab-size", "50257", "--upstream-version", version]
        try:
            config, _ = megatron.read(own).build(RANKS)
        except ConfigError as error:
            print(f"not compared: {error}")
            continue
        theirs = upstreams(derived(module, command_line))
        compared += 1
        for name, value in ours(config).items():
            if value != theirs[name]:
                differing += 1
                print(f"{command_line[len(SIZES) :]}: {name}: upstream {theirs[name]}, here {value}")
    print(f"{version}: {compared} command lines compared, {differing} values differ")
    return int(differing > 0 or not compared)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], Path(sys.argv[2])))
