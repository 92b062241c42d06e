"""Pretrain GPT-2 with DeepSpeed pipeline parallelism, on the accelerator that DeepSpeed finds.

Start it with torchrun or deepspeed, one process per device. Arguments are named as in Megatron; the rest of the
training recipe is in the DeepSpeed configuration, where "auto" means the value given here.
"""

import argparse
import json
import math
import os
import sys
import time
from pathlib import Path

import deepspeed
from deepspeed import comm as dist
from deepspeed.accelerator import get_accelerator
from deepspeed.pipe import PipelineModule
from deepspeed.runtime.pipe.engine import PipelineEngine
from gpt2 import gpt2_pipeline
from indexed_dataset import IndexedDataset, IndexedDatasetError
from token_windows import TokenWindows, split_documents


def parse_args() -> argparse.Namespace:
    """Parse the command line and reject contradictory options."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    model = parser.add_argument_group("model")
    model.add_argument("--num-layers", type=positive_int, default=4, help="transformer layers")
    model.add_argument("--hidden-size", type=positive_int, default=128, help="width of the hidden states")
    model.add_argument("--num-attention-heads", type=positive_int, default=4, help="attention heads in each layer")
    model.add_argument("--seq-length", type=positive_int, default=128, help="tokens per sample")
    model.add_argument("--vocab-size", type=positive_int, default=50257, help="vocabulary size of the tokenizer")
    model.add_argument(
        "--make-vocab-size-divisible-by",
        type=positive_int,
        default=128,
        help="multiple that the vocabulary is padded to",
    )
    model.add_argument("--pipeline-model-parallel-size", type=positive_int, default=1, help="pipeline stages")

    data = parser.add_argument_group("data")
    data.add_argument(
        "--data-path",
        required=True,
        default=argparse.SUPPRESS,
        metavar="PREFIX",
        help="the token files PREFIX.bin and PREFIX.idx",
    )
    data.add_argument("--split", type=proportions, default="949,50,1", help="documents for training, validation, test")

    training = parser.add_argument_group("training")
    training.add_argument(
        "--deepspeed_config",
        type=Path,
        default=Path(__file__).with_name("ds_config.json"),
        metavar="FILE",
        help="the DeepSpeed configuration",
    )
    training.add_argument("--micro-batch-size", type=positive_int, default=4, help="samples in one pipeline pass")
    training.add_argument("--global-batch-size", type=positive_int, default=8, help="samples in one iteration")
    training.add_argument("--train-iters", type=positive_int, default=100, help="maximum number of iterations")
    training.add_argument("--lr", type=float, default=3e-3, help="learning rate after warmup")
    training.add_argument("--seed", type=int, default=1234, help="seed of the initial weights and the order of samples")
    training.add_argument("--log-interval", type=positive_int, default=5, help="iterations between log lines")
    training.add_argument("--eval-interval", type=positive_int, default=10, help="iterations between validations")
    training.add_argument("--eval-iters", type=positive_int, default=4, help="global batches in one validation")
    training.add_argument(
        "--exit-loss-drop",
        type=float,
        metavar="X",
        help="stop once the validation loss is X below its first value; fail if this is never reached",
    )
    # The deepspeed launcher adds --local_rank; every launcher also sets LOCAL_RANK, which is read here.
    parser.add_argument("--local_rank", type=int, default=-1, help=argparse.SUPPRESS)
    args = parser.parse_args()

    world_size = int(os.environ.get("WORLD_SIZE", "0"))
    if not world_size:
        parser.error("WORLD_SIZE is not set, expected a launcher to set it — start with torchrun or deepspeed")
    if world_size % args.pipeline_model_parallel_size:
        parser.error(
            f"--pipeline-model-parallel-size: {args.pipeline_model_parallel_size}, "
            f"expected a divisor of the {world_size} processes"
        )
    data_parallel_size = world_size // args.pipeline_model_parallel_size
    if args.global_batch_size % (args.micro_batch_size * data_parallel_size):
        parser.error(
            f"--global-batch-size: {args.global_batch_size}, expected a multiple of --micro-batch-size "
            f"{args.micro_batch_size} times {data_parallel_size} data-parallel processes"
        )
    if args.hidden_size % args.num_attention_heads:
        parser.error(
            f"--hidden-size: {args.hidden_size}, expected a multiple of "
            f"--num-attention-heads {args.num_attention_heads}"
        )
    if args.num_layers < args.pipeline_model_parallel_size:
        parser.error(
            f"--num-layers: {args.num_layers}, expected at least one for each of "
            f"{args.pipeline_model_parallel_size} pipeline stages"
        )
    if not args.deepspeed_config.is_file():
        parser.error(f"--deepspeed_config: {args.deepspeed_config} is not a file")
    return args


def positive_int(text: str) -> int:
    """Convert `text` to a positive integer."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text}, expected 1 or more")
    return number


def proportions(text: str) -> list[float]:
    """Convert a Megatron split such as "949,50,1" to numbers."""
    numbers = [float(part) for part in text.split(",")]
    if not 2 <= len(numbers) <= 3 or min(numbers[:2]) <= 0 or min(numbers) < 0:
        raise argparse.ArgumentTypeError(f"{text}, expected proportions for training and validation, such as 949,50,1")
    return numbers


def read_deepspeed_config(args: argparse.Namespace) -> dict:
    """The DeepSpeed configuration with the command line's values in place of "auto"."""
    values = {
        "train_batch_size": args.global_batch_size,
        "train_micro_batch_size_per_gpu": args.micro_batch_size,
        "lr": args.lr,
        "warmup_max_lr": args.lr,
        "total_num_steps": args.train_iters,
    }

    def fill(section: dict) -> dict:
        if unknown := [key for key, value in section.items() if value == "auto" and key not in values]:
            sys.exit(
                f'{args.deepspeed_config}: "{unknown[0]}" is "auto", expected a value — '
                f"only {', '.join(values)} are taken from the command line"
            )
        return {key: values[key] if value == "auto" else value for key, value in section.items()}

    try:
        return json.loads(args.deepspeed_config.read_text(encoding="utf-8"), object_hook=fill)
    except json.JSONDecodeError as error:
        sys.exit(f"{args.deepspeed_config}: not JSON, {error}")


def open_data(args: argparse.Namespace, model: PipelineModule) -> tuple[TokenWindows, TokenWindows]:
    """The training and the validation windows."""
    try:
        dataset = IndexedDataset(args.data_path)
    except IndexedDatasetError as error:
        sys.exit(f"--data-path: {error}")
    splits = []
    for name, documents in zip(("training", "validation"), split_documents(len(dataset), args.split), strict=False):
        windows = TokenWindows(
            dataset,
            documents,
            seq_length=args.seq_length,
            micro_batch_size=args.micro_batch_size,
            data_parallel_rank=model.mpu().get_data_parallel_rank(),
            data_parallel_size=model.mpu().get_data_parallel_world_size(),
            seed=args.seed,
        )
        if not len(windows):
            sys.exit(
                f"--data-path: no {name} sample in {args.data_path}, expected more than --seq-length "
                f"{args.seq_length} tokens — pass more text or another --split"
            )
        splits.append(windows)
    return tuple(splits)


def build_model(args: argparse.Namespace) -> PipelineModule:
    """This rank's pipeline stage."""
    multiple = args.make_vocab_size_divisible_by
    return gpt2_pipeline(
        num_layers=args.num_layers,
        hidden_size=args.hidden_size,
        num_attention_heads=args.num_attention_heads,
        seq_length=args.seq_length,
        padded_vocab_size=math.ceil(args.vocab_size / multiple) * multiple,
        num_stages=args.pipeline_model_parallel_size,
        seed=args.seed,
    )


def weight_decay_groups(model: PipelineModule) -> list[dict]:
    """Optimizer groups without weight decay for biases and LayerNorm weights."""
    parameters = list(model.parameters())
    return [
        {"params": [parameter for parameter in parameters if parameter.ndim > 1]},
        {"params": [parameter for parameter in parameters if parameter.ndim <= 1], "weight_decay": 0.0},
    ]


def is_last_rank() -> bool:
    """Whether this rank is the one of the last stage that prints."""
    return dist.get_rank() == dist.get_world_size() - 1


def print_last(message: str) -> None:
    """Print on one rank of the last stage."""
    if is_last_rank():
        print(message, flush=True)


def validate(engine: PipelineEngine, windows: TokenWindows, eval_iters: int, iteration: int) -> float:
    """The mean loss over the first `eval_iters` batches of `windows`, the same number on every rank."""
    batches = iter(windows)
    loss = sum(engine.eval_batch(batches).item() for _ in range(eval_iters)) / eval_iters
    print_last(
        f" validation loss at iteration {iteration} | lm loss value: {loss:.6E} | "
        f"lm loss PPL: {math.exp(min(loss, 20)):.6E} |"
    )
    return loss


def train(engine: PipelineEngine, train_data: TokenWindows, valid_data: TokenWindows, args: argparse.Namespace) -> None:
    """Train and validate until --train-iters or the requested loss; exits with 1 if that was never reached."""
    first_loss = valid_loss = validate(engine, valid_data, args.eval_iters, iteration=0)
    batches = iter(train_data)
    losses, seconds = [], []
    for iteration in range(1, args.train_iters + 1):
        started = time.perf_counter()
        losses.append(engine.train_batch(batches).item())
        seconds.append(time.perf_counter() - started)

        if iteration % args.log_interval == 0:
            milliseconds = 1000 * sum(seconds[-args.log_interval :]) / args.log_interval
            loss = sum(losses[-args.log_interval :]) / args.log_interval
            print_last(
                f" iteration {iteration:8d}/{args.train_iters:8d} | "
                f"consumed samples: {iteration * args.global_batch_size:12d} | "
                f"elapsed time per iteration (ms): {milliseconds:.1f} | "
                f"learning rate: {engine.get_lr()[0]:.3E} | lm loss: {loss:.6E} |"
            )

        if iteration % args.eval_interval == 0 or iteration == args.train_iters:
            valid_loss = validate(engine, valid_data, args.eval_iters, iteration)
            if args.exit_loss_drop is not None and first_loss - valid_loss >= args.exit_loss_drop:
                break

    tokens = iteration * args.global_batch_size * args.seq_length
    fall = first_loss - valid_loss
    print_last(f" validation loss: first {first_loss:.4f}, last {valid_loss:.4f}, fell by {fall:.4f}")
    print_last(f" training: {iteration} iterations, {sum(seconds):.1f} seconds, {tokens / sum(seconds):.0f} tokens/s")
    if args.exit_loss_drop is not None and not fall >= args.exit_loss_drop:  # True also if the loss is NaN
        sentence = (
            f"--exit-loss-drop: the validation loss fell by {fall:.4f} in "
            f"{args.train_iters} iterations, expected {args.exit_loss_drop:g} — raise --train-iters or --lr"
        )
        sys.exit(sentence if is_last_rank() else 1)


def main() -> None:
    """Set up the ranks, the model, the data and the engine, and train."""
    args = parse_args()
    get_accelerator().set_device(int(os.environ["LOCAL_RANK"]))
    deepspeed.init_distributed()
    model = build_model(args)
    train_data, valid_data = open_data(args, model)
    engine, *_ = deepspeed.initialize(
        model=model, model_parameters=weight_decay_groups(model), config=read_deepspeed_config(args)
    )
    train(engine, train_data, valid_data, args)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
