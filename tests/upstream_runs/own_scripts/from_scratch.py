"""Programs that bring their own model: GPTs of one file, PyTorch's examples."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from own_scripts import local_data
from own_scripts.program import program, words_of
from upstream_job import Place, UpstreamJob

# What a program draws on the device (dropout, noise, samples) differs between devices, as it does on a GPU.
DRAWN = {"bound": 0.5}
NANOGPT = [
    "train.py",
    "config/train_shakespeare_char.py",
    *words_of("--max_iters=6 --eval_interval=3 --eval_iters=1 --log_interval=1 --batch_size=4 --block_size=32"),
    *words_of("--n_layer=2 --n_head=2 --n_embd=32 --dropout=0.0 --warmup_iters=0 --gradient_accumulation_steps=2"),
]
LLAMA2_C = words_of(
    "train.py --vocab_source=custom --vocab_size=512 --dim=32 --n_layers=2 --n_heads=2 --n_kv_heads=2 "
    "--max_seq_len=32 --batch_size=4 --max_iters=5 --eval_interval=5 --eval_iters=1 --warmup_iters=0 "
    "--gradient_accumulation_steps=2 --compile=False --dtype=float32"
)


def shakespeare(place: Place, code: Path) -> None:
    """Write input.txt and have nanoGPT's own prepare.py make its tokens."""
    folder = code / "data" / "shakespeare_char"
    local_data.write_text(folder / "input.txt")
    subprocess.run([sys.executable, str(folder / "prepare.py")], check=True, capture_output=True)


def tinystories(place: Place, code: Path) -> None:
    """Write tokens for llama2.c: the first shard is for validation."""
    for name in ("data00.bin", "data01.bin"):
        local_data.write_tokens(code / "data" / "tok512" / name)


NANOGPT_LOSS = r"(?:iter \d+: loss|val loss) ([0-9.]+)"
ONE_FILE = (
    program(
        "nanoGPT",
        [*NANOGPT, "--compile=False", "--dtype=float32"],
        code_base="nanoGPT",
        prepare=shakespeare,
        loss=NANOGPT_LOSS,
    ),
    program(
        "nanoGPT-2-ranks",
        [*NANOGPT, "--compile=False", "--dtype=float32"],
        code_base="nanoGPT",
        prepare=shakespeare,
        loss=NANOGPT_LOSS,
        nproc=2,
    ),
    program("nanoGPT-bf16-compile", NANOGPT, code_base="nanoGPT", prepare=shakespeare, loss=NANOGPT_LOSS, bound=2e-3),
    program(
        "nanoGPT-fp16",
        [*NANOGPT, "--compile=False", "--dtype=float16"],
        code_base="nanoGPT",
        prepare=shakespeare,
        loss=NANOGPT_LOSS,
        bound=2e-3,
    ),
    program(
        "minGPT-chargpt",
        words_of(
            "chargpt.py --trainer.max_iters=21 --trainer.batch_size=4 --data.block_size=32 --model.model_type=gpt-nano "
            "--model.attn_pdrop=0.0 --model.resid_pdrop=0.0 --model.embd_pdrop=0.0"
        ),
        code_base="minGPT",
        inside="projects/chargpt",
        prepare=lambda place, code: local_data.write_text(code / "projects/chargpt/input.txt"),
        path="{code}",
        loss=r"train loss ([0-9.]+)",
    ),
    program(
        "minGPT-adder",
        words_of("adder.py --trainer.max_iters=21 --trainer.batch_size=4"),
        code_base="minGPT",
        inside="projects/adder",
        path="{code}",
        loss=r"train loss ([0-9.]+)",
        **DRAWN,
    ),
    program("llama2.c", LLAMA2_C, code_base="llama2.c", prepare=tinystories, loss=r"\d+ \| loss ([0-9.]+)"),
    program(
        "llama2.c-2-ranks", LLAMA2_C, code_base="llama2.c", prepare=tinystories, loss=r"\d+ \| loss ([0-9.]+)", nproc=2
    ),
)


def words(place: Place, code: Path) -> None:
    """Write the three files of word_language_model."""
    for name in ("train", "valid", "test"):
        local_data.write_text(code / "word_language_model" / "tiny" / f"{name}.txt", 4000)


WORDS = words_of(
    "main.py --accel --data tiny --epochs 1 --emsize 32 --nhid 32 --dropout 0 --batch_size 4 --bptt 16 "
    "--log-interval 4 --lr 0.1"
)
PYTORCH = {"code_base": "pytorch-examples"}
PYTORCH_EXAMPLES = (
    program(
        "pytorch-mnist",
        words_of("main.py --epochs 1 --batch-size 16 --log-interval 1 --save-model"),
        parts=["mnist"],
        inside="mnist",
        prepare=lambda place, code: local_data.write_mnist(code / "data"),
        loss=r"Loss: ([0-9.]+)",
        **PYTORCH,
        **DRAWN,
    ),
    program(
        "pytorch-imagenet",
        words_of("main.py data -a resnet18 --epochs 1 -b 4 -j 1 -p 1 --seed 1 --lr 1e-4"),
        parts=["imagenet"],
        inside="imagenet",
        prepare=lambda place, code: local_data.write_pictures(code / "imagenet" / "data"),
        loss=r"Epoch: .*Loss (\S+)",
        **PYTORCH,
    ),
    program(
        "pytorch-imagenet-2-ranks",
        words_of("main.py data -a resnet18 --epochs 1 -b 4 -j 1 -p 1 --seed 1 --lr 1e-4 --dist-url env://"),
        parts=["imagenet"],
        inside="imagenet",
        prepare=lambda place, code: local_data.write_pictures(code / "imagenet" / "data"),
        loss=r"Epoch: .*Loss (\S+)",
        nproc=2,
        **PYTORCH,
    ),
    *(
        program(
            f"pytorch-word_language_model-{model}",
            [*WORDS, "--model", model],
            parts=["word_language_model"],
            inside="word_language_model",
            prepare=words,
            loss=r"loss +([0-9.]+)",
            **PYTORCH,
        )
        for model in ("LSTM", "Transformer")
    ),
    program(
        "pytorch-ddp",
        ["example.py"],
        parts=["distributed/ddp"],
        inside="distributed/ddp",
        loss=r"training completed in rank (\d)",
        nproc=2,
        **PYTORCH,
    ),
    program(
        "pytorch-multigpu_torchrun",
        words_of("multigpu_torchrun.py 2 1"),
        parts=["distributed/ddp-tutorial-series"],
        inside="distributed/ddp-tutorial-series",
        loss=r"Epoch (\d+) \| Training snapshot",
        nproc=2,
        **PYTORCH,
    ),
    program(
        "pytorch-single_gpu",
        words_of("single_gpu.py 2 1"),
        parts=["distributed/ddp-tutorial-series"],
        inside="distributed/ddp-tutorial-series",
        loss=r"Epoch (\d+) \| Training checkpoint",
        **PYTORCH,
    ),
    program(
        "pytorch-FSDP2",
        ["example.py"],
        parts=["distributed/FSDP2"],
        inside="distributed/FSDP2",
        loss=r"Running on rank (\d)",
        nproc=2,
        **PYTORCH,
    ),
    program(
        "pytorch-FSDP2-mixed-precision",
        words_of("example.py --mixed-precision --explicit-prefetching"),
        parts=["distributed/FSDP2"],
        inside="distributed/FSDP2",
        loss=r"Running on rank (\d)",
        nproc=2,
        **PYTORCH,
    ),
    program(
        "pytorch-minGPT-ddp",
        words_of(
            "main.py data_config.path={shared}/input.txt data_config.block_size=32 data_config.truncate=0.1 "
            "gpt_config.n_layer=2 "
            "gpt_config.n_head=2 gpt_config.n_embd=32 trainer_config.max_epochs=1 trainer_config.batch_size=64 "
            "trainer_config.data_loader_workers=0 hydra.run.dir=."
        ),
        parts=["distributed/minGPT-ddp"],
        inside="distributed/minGPT-ddp/mingpt",
        prepare=lambda place, code: local_data.write_text(place.shared / "input.txt"),
        loss=r"(?:Train|Eval) Loss ([0-9.]+)",
        nproc=2,
        **PYTORCH,
        **DRAWN,
    ),
    program(
        "pytorch-tensor_parallel",
        ["tensor_parallel_example.py"],
        parts=["distributed/tensor_parallelism"],
        inside="distributed/tensor_parallelism",
        loss=r"Tensor Parallel iter (\d+) completed",
        nproc=2,
        **PYTORCH,
    ),
    program(
        "pytorch-vae",
        words_of("main.py --epochs 1 --batch-size 16 --log-interval 1"),
        parts=["vae"],
        inside="vae",
        prepare=lambda place, code: (
            local_data.write_mnist(code / "data"),
            (code / "vae" / "results").mkdir(exist_ok=True),
        ),
        loss=r"(?:Loss|loss): ([0-9.]+)",
        **PYTORCH,
        **DRAWN,
    ),
    program(
        "pytorch-dcgan",
        words_of(
            "main.py --dataset fake --dry-run --batchSize 4 --imageSize 64 --ngf 8 --ndf 8 --workers 1 "
            "--accel --manualSeed 1 --outf ."
        ),
        parts=["dcgan"],
        inside="dcgan",
        loss=r"Loss_[DG]: ([0-9.]+)",
        **PYTORCH,
        **DRAWN,
    ),
)
JOBS: tuple[UpstreamJob, ...] = (*ONE_FILE, *PYTORCH_EXAMPLES)
