"""Trainers with their own command line: LLM pretraining and fine-tuning, pictures, Lightning, DeepSpeed's examples."""

from __future__ import annotations

import gzip
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from own_scripts import local_data
from own_scripts.from_scratch import DRAWN
from own_scripts.hugging_face_examples import ALPACA, LOSSES, STEPS, TRAINER_LOSS, models
from own_scripts.program import program, words_of
from upstream_job import Place, python_path

CHECKSUMS = str(Path(__file__).parent / "cifar")
SCRATCH = "LLMs-from-scratch"


def book(place: Place, code: Path) -> None:
    """Write the texts that the scripts of LLMs-from-scratch download."""
    local_data.write_text(code / "ch05/01_main-chapter-code/the-verdict.txt", 2600)
    local_data.write_text(code / "ch05/03_bonus_pretraining_on_gutenberg/gutenberg/data/one.txt", 6000)


def vicuna(place: Place, code: Path) -> None:
    """Write conversations as FastChat reads them."""
    models("llama")(place, code)
    rows = [
        {"id": str(number), "conversations": [{"from": "human", "value": one[:40]}, {"from": "gpt", "value": one[40:]}]}
        for number, one in enumerate(local_data.sentences(16, 100))
    ]
    (place.shared / "vicuna.json").write_text(json.dumps(rows))


def stories(place: Place, code: Path) -> None:
    """Write the tiny model's configuration and data for picotron."""
    models("llama")(place, code)
    local_data.write_jsonl(
        place.shared / "stories" / "train.jsonl", [{"text": one} for one in local_data.sentences(64, 200)]
    )
    (code / "hf_model_safetensors").mkdir(exist_ok=True)
    shutil.copy(place.shared / "llama" / "model.safetensors", code / "hf_model_safetensors")
    base = json.loads((code / "template" / "base_config.json").read_text())
    base["model"].update(
        name=str(place.shared / "llama"), num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2
    )
    base["model"]["use_fused_adam"] = True
    base["training"].update(total_train_steps=4, seq_length=32, micro_batch_size=2, num_samples=64)
    base["dataset"]["name"] = str(place.shared / "stories")
    base["environment"].update(FLASH_ATTEN="0", HF_TOKEN="none")
    base["logging"]["run_name"] = "tiny"
    for name, ranks in (("one.json", {}), ("two.json", {"tp_size": 2}), ("pp.json", {"pp_size": 2})):
        (code / name).write_text(json.dumps({**base, "distributed": {**base["distributed"], **ranks}}))


def enwik8(place: Place, code: Path) -> None:
    """Write 95 MB of text, repeated: the script takes its validation part from the last 5 MB."""
    path = place.shared / "enwik8.gz"
    if not path.exists():
        text = local_data.text().encode()
        with gzip.open(path, "wb", compresslevel=1) as file:
            for _ in range(95_000_000 // len(text) + 1):
                file.write(text)
    (code / "data").mkdir(exist_ok=True)
    (code / "data" / "enwik8.gz").symlink_to(path)


def wikitext(place: Place, code: Path, inside: str) -> None:
    """Write wikitext-2 where HelloDeepSpeed names it."""
    write_roberta_tokenizer(place.shared / "roberta")
    folder = code / inside / "wikitext"
    local_data.write_jsonl(folder / "train.jsonl", [{"text": one} for one in local_data.sentences(64, 200)])
    (folder / "README.md").write_text(
        "---\nconfigs:\n- config_name: wikitext-2-v1\n  data_files:\n  - split: train\n    path: train.jsonl\n---\n"
    )


def write_roberta_tokenizer(folder: Path) -> None:
    """Write a tokenizer with RoBERTa's special tokens; unlike added tokens, they count in its ``vocab_size``."""
    from tokenizers import ByteLevelBPETokenizer
    from transformers import PreTrainedTokenizerFast

    special = {"bos_token": "<s>", "pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"}
    special |= {"mask_token": "<mask>", "cls_token": "<s>", "sep_token": "</s>"}
    trained = ByteLevelBPETokenizer()
    trained.train_from_iterator(
        [local_data.text()], vocab_size=512, special_tokens=sorted(set(special.values())), show_progress=False
    )
    PreTrainedTokenizerFast(tokenizer_object=trained._tokenizer, **special).save_pretrained(folder)


def stsb(place: Place, code: Path) -> None:
    """Write pairs of sentences with a score, where the script names them."""
    models("bert")(place, code)
    folder = code / "examples/sentence_transformer/training/sts/sentence-transformers/stsb"
    rows = [
        {"sentence1": a[:40], "sentence2": a[40:], "score": number % 5 / 4}
        for number, a in enumerate(local_data.sentences(32, 80))
    ]
    for split in ("train", "validation", "test"):
        local_data.write_jsonl(folder / f"{split}.jsonl", rows if split == "train" else rows[:8])


def vae(place: Place, code: Path) -> None:
    """Write pictures and a tiny autoencoder where DiT names the real one."""
    import torch
    from diffusers import AutoencoderKL

    local_data.write_pictures(code / "pictures", ("train",), each=4)
    torch.manual_seed(1)
    made = AutoencoderKL(
        block_out_channels=(8, 8, 8, 8),
        down_block_types=("DownEncoderBlock2D",) * 4,
        up_block_types=("UpDecoderBlock2D",) * 4,
        latent_channels=4,
        norm_num_groups=4,
    )
    made.save_pretrained(code / "stabilityai" / "sd-vae-ft-ema")


ENTIRE = (
    program(
        "LLMs-from-scratch-DDP-torchrun",
        ["DDP-script-torchrun.py"],
        code_base=SCRATCH,
        parts=["appendix-A/01_main-chapter-code"],
        inside="appendix-A/01_main-chapter-code",
        loss=r"Train/Val Loss: ([0-9.]+)",
        nproc=2,
    ),
    program(
        "LLMs-from-scratch-DDP-torchrun-1-rank",
        ["DDP-script-torchrun.py"],
        code_base=SCRATCH,
        parts=["appendix-A/01_main-chapter-code"],
        inside="appendix-A/01_main-chapter-code",
        loss=r"Train/Val Loss: ([0-9.]+)",
    ),
    program(
        "LLMs-from-scratch-pretraining_simple",
        words_of(
            "pretraining_simple.py --debug True --n_epochs 1 --eval_freq 1 --print_sample_iter 100 --batch_size 2"
        ),
        code_base=SCRATCH,
        parts=["ch05/03_bonus_pretraining_on_gutenberg", "pkg"],
        inside="ch05/03_bonus_pretraining_on_gutenberg",
        prepare=book,
        path="{code}/pkg",
        loss=r"Train loss ([0-9.]+)",
        **DRAWN,
    ),
    program(
        "LLMs-from-scratch-instruction_finetuning",
        words_of("gpt_instruction_finetuning.py --test_mode"),
        code_base=SCRATCH,
        parts=["ch07/01_main-chapter-code"],
        inside="ch07/01_main-chapter-code",
        prepare=lambda place, code: (code / "ch07/01_main-chapter-code/instruction-data.json").write_text(
            json.dumps(ALPACA * 4)
        ),
        loss=r"(?:Training|Validation) loss: ([0-9.]+)",
        **DRAWN,
    ),
    program(
        "FastChat-train",
        [
            *words_of(
                "fastchat/train/train.py --model_name_or_path {shared}/llama --data_path "
                "{shared}/vicuna.json --output_dir out"
            ),
            *words_of(
                "--model_max_length 200 --lazy_preprocess True --bf16 True --tf32 True --gradient_checkpointing True"
            ),
            *STEPS,
            *["--fsdp", "full_shard auto_wrap", "--fsdp_transformer_layer_cls_to_wrap", "LlamaDecoderLayer"],
        ],
        nproc=2,
        code_base="FastChat",
        parts=["fastchat"],
        prepare=vicuna,
        path="{code}",
        loss=TRAINER_LOSS,
        bound=1e-2,
    ),
    program(
        "OpenRLHF-train_sft",
        words_of(
            "-m openrlhf.cli.train_sft --model.model_name_or_path {shared}/qwen2 --data.dataset "
            "{shared}/alpaca.jsonl --data.input_key instruction "
            "--data.output_key output --data.max_len 64 --train.batch_size 8 --train.micro_batch_size 4 "
            "--train.max_epochs 1 --adam.lr 1e-3 "
            "--ds.attn_implementation sdpa --ds.zero_stage 2 --ckpt.output_dir out"
        ),
        code_base="OpenRLHF",
        prepare=lambda place, code: (
            models("qwen2")(place, code),
            local_data.write_jsonl(place.shared / "alpaca.jsonl", ALPACA),
        ),
        path="{code}",
        nproc=2,
        loss=r"gpt_loss=([0-9.]+)",
        bound=2e-2,
    ),
    program(
        "TinyLlama-sft",
        words_of(
            "finetune.py --model_name_or_path {shared}/llama --output_dir out --logging_steps 1 "
            "--save_strategy no --do_train --dataset {shared}/alpaca.jsonl "
            "--dataset_format input-output --source_max_len 16 --target_max_len 32 "
            "--per_device_train_batch_size 4 --max_steps 4 --learning_rate 1e-3 "
            "--report_to none --remove_unused_columns False --gradient_accumulation_steps 1"
        ),
        code_base="TinyLlama",
        inside="sft",
        prepare=lambda place, code: (
            models("llama")(place, code),
            local_data.write_jsonl(
                place.shared / "alpaca.jsonl",
                [{"input": one["instruction"], "output": one["output"]} for one in ALPACA],
            ),
        ),
        **LOSSES,
    ),
    program(
        "TinyLlama-pretrain",
        words_of("pretrain/tinyllama.py --devices 1 --train_data_dir data"),
        code_base="TinyLlama",
        loss=r"loss ([0-9.]+)",
    ),
    program(
        "RWKV-v7",
        words_of("rwkv7_train_simplified.py"),
        code_base="RWKV-LM",
        parts=["RWKV-v7/train_temp"],
        inside="RWKV-v7/train_temp",
        loss=r"loss ([0-9.]+)",
        enough=2,
    ),
    *(
        program(
            f"picotron{suffix}",
            ["train.py", "--config", configuration],
            code_base="picotron",
            prepare=stories,
            nproc=ranks,
            loss=r"Loss: +([0-9.]+)",
            bound=1e-2,
        )
        for suffix, configuration, ranks in (
            ("", "one.json", 1),
            ("-tp-2-ranks", "two.json", 2),
            ("-pp-2-ranks", "pp.json", 2),
        )
    ),
    program(
        "x-transformers-enwik8",
        ["train_enwik8.py", "--num_batches=2", "--seq_len=128", "--batch_size=1", "--gradient_accumulate_every=1"],
        code_base="x-transformers",
        prepare=enwik8,
        loss=r"(?:training|validation) loss: ([0-9.]+)",
        **DRAWN,  # no seed
    ),
)
LLM_TRAINERS = (
    program(
        "nanochat-base_train",
        words_of(
            "-m scripts.base_train --depth=2 --aspect-ratio=32 --head-dim=32 --max-seq-len=64 "
            "--device-batch-size=1 --total-batch-size=64 "
            "--num-iterations=3 --eval-every=-1 --eval-tokens=64 --core-metric-every=-1 --sample-every=-1 "
            "--warmup-steps=0"
        ),
        code_base="nanochat",
        prepare=lambda place, code: climbmix(place, code),
        path="{code}",
        variables={"NANOCHAT_BASE_DIR": "{shared}/nanochat"},
        loss=r"loss: ([0-9.]+)",
        bound=1e-2,
    ),
    program(
        "litgpt-pretrain",
        words_of(
            "-m litgpt pretrain pythia-14m --tokenizer_dir {shared}/llama --data TextFiles "
            "--data.train_data_path {shared}/texts --data.num_workers 1 "
            "--train.max_tokens 256 --train.micro_batch_size 1 --train.global_batch_size 1 "
            "--train.max_seq_length 32 --out_dir out "
            "--precision 32-true --eval.max_iters 1 --train.log_interval 1 --train.lr_warmup_steps 1"
        ),
        prepare=lambda place, code: (
            models("llama")(place, code),
            [local_data.write_text(place.shared / "texts" / f"{number}.txt", 4000) for number in range(3)],
        ),
        needs=("litgpt",),
        loss=r"loss train: ([0-9.]+)",
        **DRAWN,  # it draws its weights on the device
    ),
    program(
        "axolotl-lora",
        ["-m", "axolotl.cli.train", "tiny.yml"],
        prepare=lambda place, code: axolotl(place, code),
        needs=("axolotl",),
        loss=TRAINER_LOSS,
        bound=1e-2,
    ),
)


def climbmix(place: Place, code: Path) -> None:
    """Write nanochat's documents and have its own tok_train.py make the tokenizer."""
    import pyarrow
    from pyarrow import parquet

    base = place.shared / "nanochat"
    data = base / "base_data_climbmix"
    data.mkdir(parents=True, exist_ok=True)
    for name in ("shard_00000", "shard_06542"):
        table = pyarrow.table({"text": local_data.sentences(128, 150)})
        parquet.write_table(table, data / f"{name}.parquet", row_group_size=64)
    if not (base / "tokenizer").exists():
        command = [sys.executable, "-m", "scripts.tok_train", "--vocab-size=512", "--max-chars=20000"]
        environ = {**os.environ, "NANOCHAT_BASE_DIR": str(base), "PYTHONPATH": python_path(os.environ, str(code))}
        subprocess.run(command, check=True, cwd=code, env=environ, capture_output=True)


def axolotl(place: Place, code: Path) -> None:
    """Write axolotl's examples/llama-3/lora-1b.yml for a tiny model."""
    models("llama")(place, code)
    local_data.write_jsonl(place.shared / "alpaca.jsonl", ALPACA)
    (code / "tiny.yml").write_text(
        f"""\
base_model: {place.shared / "llama"}
datasets:
  - path: {place.shared / "alpaca.jsonl"}
    ds_type: json
    type: alpaca
output_dir: ./outputs/lora-out
dataset_prepared_path: ./prepared
adapter: lora
sequence_len: 64
sample_packing: false
lora_r: 4
lora_alpha: 8
lora_dropout: 0.0
lora_target_modules: [q_proj, v_proj]
gradient_accumulation_steps: 1
micro_batch_size: 4
max_steps: 4
optimizer: adamw_torch
lr_scheduler: cosine
learning_rate: 0.001
bf16: auto
tf32: false
logging_steps: 1
save_strategy: "no"
special_tokens:
  pad_token: "<pad>"
"""
    )


PICTURES = (
    program(
        "timm-train",
        words_of(
            "train.py --data-dir pictures --model resnet18 --num-classes 2 --img-size 64 -b 4 --epochs 1 -j "
            "1 --log-interval 1 --opt adamw --amp"
        ),
        code_base="pytorch-image-models",
        prepare=lambda place, code: local_data.write_pictures(code / "pictures", ("train", "val")),
        loss=r"Loss: +([0-9.e-]+)",
        bound=2e-2,
    ),
    program(
        "timm-train-2-ranks",
        words_of(
            "train.py --data-dir pictures --model resnet18 --num-classes 2 --img-size 64 -b 2 --epochs 1 -j "
            "1 --log-interval 1 --seed 1"
        ),
        code_base="pytorch-image-models",
        prepare=lambda place, code: local_data.write_pictures(code / "pictures", ("train", "val")),
        loss=r"Loss: +([0-9.e-]+)",
        nproc=2,
        bound=1e-3,
    ),
    program(
        "open_clip-synthetic",
        words_of(
            "-m open_clip_train.main --dataset-type synthetic --train-data none --train-num-samples 8 "
            "--batch-size 4 --model ViT-S-32-alt --epochs 1 "
            "--workers 1 --precision fp32 --log-every-n-steps 1 --warmup 1"
        ),
        code_base="open_clip",
        parts=["src"],
        inside="src",
        path="{code}/src",
        loss=r"Loss: ([0-9.]+)",
        bound=1e-3,
    ),
    program(
        "DiT",
        words_of(
            "train.py --data-path pictures/train --model DiT-S/8 --image-size 256 --epochs 1 "
            "--global-batch-size 4 --num-classes 2 --num-workers 1 --log-every 1"
        ),
        code_base="DiT",
        prepare=vae,
        loss=r"Train Loss: ([0-9.]+)",
        **DRAWN,
    ),
)
LIGHTNING = {"code_base": "pytorch-lightning"}
LIGHTNING_EXAMPLES = (
    *(
        program(
            f"lightning-fabric-image_classifier-{which}",
            [f"train_{which}.py", *words_of("--epochs 1 --batch-size 16")],
            parts=["examples/fabric/image_classifier"],
            inside="examples/fabric/image_classifier",
            prepare=lambda place, code: local_data.write_mnist(code / "Datasets"),
            loss=r"(?:Loss|loss): ([0-9.]+)",
            **LIGHTNING,
            **DRAWN,
        )
        for which in ("fabric", "torch")
    ),
    program(
        "lightning-autoencoder",
        words_of(
            "autoencoder.py --trainer.max_epochs=1 --trainer.limit_train_batches=3 "
            "--trainer.limit_val_batches=1 --trainer.limit_test_batches=1 --data.batch_size=8"
        ),
        parts=["examples/pytorch/basics"],
        inside="examples/pytorch/basics",
        prepare=lambda place, code: [
            local_data.write_mnist(code / "examples" / folder, 60000) for folder in ("Datasets", "pytorch/basics/data")
        ],
        loss=r"test_loss[^0-9]*([0-9.]+)",
        **LIGHTNING,
        **DRAWN,
    ),
    program(
        "lightning-bug_report_model",
        ["bug_report_model.py"],
        parts=["examples/pytorch/bug_report"],
        inside="examples/pytorch/bug_report",
        loss=r"test_loss *\S* *(-?[0-9.]+)",
        bound=10.0,  # no seed: nothing to compare
        **LIGHTNING,
    ),
)
DEEPSPEED = {"code_base": "DeepSpeedExamples"}
HELLO = "training/HelloDeepSpeed"
DEEPSPEED_EXAMPLES = (
    *(
        program(
            f"DeepSpeed-{name}",
            [
                *words,
                *words_of(
                    "--checkpoint_dir out --tokenizer {shared}/roberta --num_layers 2 --num_heads 2 --ff_dim "
                    "64 --h_dim 32 --max_seq_length 64"
                ),
                *words_of("--batch_size 4 --num_iterations 4 --checkpoint_every 100 --log_every 1 --dropout 0.0"),
            ],
            parts=[HELLO],
            inside=HELLO,
            prepare=lambda place, code: wikitext(place, code, HELLO),
            nproc=ranks,
            loss=r"Loss: ([0-9.]+)",
            bound=bound,
            **DEEPSPEED,
        )
        for name, words, ranks, bound in (
            ("Hello-train_bert", ["train_bert.py", "--local_rank", "0"], 1, 1e-4),
            ("Hello-train_bert_ds", ["deepspeed", "--num_gpus", "2", "train_bert_ds.py"], 2, 1e-2),
        )
    ),
    program(
        "DeepSpeed-cifar",
        words_of(
            "deepspeed --num_gpus 2 cifar10_deepspeed.py --deepspeed --epochs 1 --log-interval 1 --dtype fp32 --stage 1"
        ),
        parts=["training/cifar"],
        inside="training/cifar",
        prepare=lambda place, code: local_data.write_cifar(code / "training/cifar/data", each=20),
        path=CHECKSUMS,
        nproc=2,
        loss=r"loss: +([0-9.]+)",
        **DEEPSPEED,
        **DRAWN,  # no seed
    ),
    program(
        "DeepSpeed-pipeline_parallelism",
        words_of("deepspeed --num_gpus 2 train.py --deepspeed_config=ds_config.json -p 2 --steps=2"),
        parts=["training/pipeline_parallelism"],
        inside="training/pipeline_parallelism",
        prepare=lambda place, code: pipeline(place, code),
        path=CHECKSUMS,
        nproc=2,
        loss=r"loss: +([0-9.]+)",
        **DEEPSPEED,
    ),
)


def pipeline(place: Place, code: Path) -> None:
    """Write pictures where the script looks for them, and a configuration with a small batch."""
    local_data.write_cifar(Path("/tmp/cifar10-data"), each=16)
    path = code / "training/pipeline_parallelism/ds_config.json"
    path.write_text(
        json.dumps(
            {
                **json.loads(path.read_text()),
                "train_batch_size": 4,
                "train_micro_batch_size_per_gpu": 2,
                "steps_per_print": 1,
            }
        )
    )


SENTENCES = (
    program(
        "sentence-transformers-stsb",
        ["training_stsbenchmark.py", "{shared}/bert"],
        code_base="sentence-transformers",
        parts=["examples/sentence_transformer/training/sts"],
        inside="examples/sentence_transformer/training/sts",
        prepare=stsb,
        loss=r"'train_loss': '?([0-9.]+)",
        bound=2e-2,
    ),
)
JOBS = (*ENTIRE, *LLM_TRAINERS, *PICTURES, *LIGHTNING_EXAMPLES, *DEEPSPEED_EXAMPLES, *SENTENCES)
