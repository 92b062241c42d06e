"""The example scripts of Hugging Face's libraries, and fine-tuning programs built on them."""

from __future__ import annotations

import json
from pathlib import Path

from own_scripts import local_data
from own_scripts.program import program, words_of
from upstream_job import Place

TRAINER_LOSS = r"'loss': '?([0-9.]+)"
LOSSES = {"loss": TRAINER_LOSS, "bound": 2e-4}
STEPS = words_of(
    "--max_steps 4 --logging_steps 1 --report_to none --save_strategy no --per_device_train_batch_size 4 "
    "--learning_rate 1e-3"
)

# What `datasets` reads of a local folder with the name of one on the Hub.
ALPACA = [
    {"instruction": f"Continue number {number}.", "input": "", "output": text, "text": text}
    for number, text in enumerate(local_data.sentences(32, 120))
]
CHATS = [
    {"messages": [{"role": "user", "content": one[:40]}, {"role": "assistant", "content": one[40:]}]}
    for one in local_data.sentences(32, 120)
]
PREFERENCES = [
    {
        "prompt": [{"role": "user", "content": one[:40]}],
        "chosen": [{"role": "assistant", "content": one[40:100]}],
        "rejected": [{"role": "assistant", "content": one[100:]}],
    }
    for one in local_data.sentences(32, 160)
]


def models(*kinds: str):
    """Return what writes these models into the shared folder."""

    def prepare(place: Place, code: Path) -> None:
        for kind in kinds:
            local_data.write_model(place.shared / kind, kind)
        local_data.write_text(place.shared / "text.txt", 12000)
        for name, rows in (("alpaca", ALPACA), ("chats", CHATS), ("preferences", PREFERENCES)):
            local_data.write_jsonl(place.shared / name / "train.jsonl", rows)
            local_data.write_jsonl(place.shared / name / "test.jsonl", rows[:8])
        (place.shared / "alpaca.json").write_text(json.dumps(ALPACA))

    return prepare


def glue(place: Place, code: Path, inside: str) -> None:
    """Write pairs of sentences as GLUE's MRPC, where the scripts name it, and the metric that they load."""
    models("bert")(place, code)
    rows = [
        {"sentence1": one[:40], "sentence2": one[40:80], "label": number % 2, "idx": number}
        for number, one in enumerate(local_data.sentences(32, 80))
    ]
    folder = code / inside
    for name in ("nyu-mll/glue", "glue"):
        for split in ("train", "validation", "test"):
            local_data.write_jsonl(folder / name / f"{split}.jsonl", rows if split == "train" else rows[:8])
        files = "".join(f"  - split: {one}\n    path: {one}.jsonl\n" for one in ("train", "validation", "test"))
        classes = (
            "  - name: label\n    dtype:\n      class_label:\n        names:\n          '0': no\n          '1': yes\n"
        )
        columns = "".join(
            f"  - name: {one}\n    dtype: {kind}\n"
            for one, kind in (("sentence1", "string"), ("sentence2", "string"), ("idx", "int32"))
        )
        (folder / name / "README.md").write_text(
            f"---\ndataset_info:\n- config_name: mrpc\n  features:\n{columns}{classes}configs:\n- "
            f"config_name: mrpc\n  data_files:\n{files}---\n"
        )
    (folder / "glue" / "glue.py").write_text(METRIC)
    (folder / "accuracy").mkdir(exist_ok=True)
    (folder / "accuracy" / "accuracy.py").write_text(METRIC)
    if not (folder / "bert-base-cased").exists():
        (folder / "bert-base-cased").symlink_to(place.shared / "bert")


METRIC = '''"""A metric that evaluate.load finds in this folder."""
import datasets
import evaluate


class Accuracy(evaluate.Metric):
    def _info(self):
        features = datasets.Features({"predictions": datasets.Value("int32"), "references": datasets.Value("int32")})
        return evaluate.MetricInfo(description="", citation="", inputs_description="", features=features)

    def _compute(self, predictions, references):
        return {"accuracy": sum(a == b for a, b in zip(predictions, references)) / len(references)}
'''
TRANSFORMERS = {"code_base": "transformers-examples"}
CLM = words_of(
    "run_clm.py --model_type gpt2 --config_overrides "
    "n_embd=64,n_layer=2,n_head=4,n_positions=128,resid_pdrop=0.0,embd_pdrop=0.0,attn_pdrop=0.0"
)
CLM += words_of(
    "--tokenizer_name {shared}/gpt2 --train_file {shared}/text.txt --validation_file {shared}/text.txt "
    "--do_train --do_eval"
)
CLM += ["--block_size", "64", "--output_dir", "out", *STEPS]
TRANSFORMERS_EXAMPLES = (
    *(
        program(
            f"transformers-run_clm{suffix}",
            CLM,
            parts=["examples/pytorch/language-modeling"],
            inside="examples/pytorch/language-modeling",
            prepare=models("gpt2"),
            nproc=ranks,
            **LOSSES,
            **TRANSFORMERS,
        )
        for suffix, ranks in (("", 1), ("-2-ranks", 2))
    ),
    program(
        "transformers-run_clm_no_trainer",
        words_of(
            "run_clm_no_trainer.py --model_name_or_path {shared}/gpt2 --train_file {shared}/text.txt "
            "--validation_file {shared}/text.txt "
            "--block_size 64 --max_train_steps 4 --per_device_train_batch_size 4 --output_dir out --seed 1"
        ),
        parts=["examples/pytorch/language-modeling"],
        inside="examples/pytorch/language-modeling",
        prepare=models("gpt2"),
        loss=r"perplexity: ([0-9.]+)",
        **TRANSFORMERS,
    ),
    program(
        "transformers-run_glue",
        words_of(
            "run_glue.py --model_name_or_path bert-base-cased --task_name mrpc --do_train --do_eval "
            "--max_seq_length 64 --output_dir out"
        )
        + STEPS,
        parts=["examples/pytorch/text-classification"],
        inside="examples/pytorch/text-classification",
        prepare=lambda place, code: glue(place, code, "examples/pytorch/text-classification"),
        **LOSSES,
        **TRANSFORMERS,
    ),
    program(
        "transformers-run_image_classification",
        words_of(
            "run_image_classification.py --model_name_or_path {shared}/vit --train_dir pictures/train "
            "--validation_dir pictures/val "
            "--do_train --do_eval --remove_unused_columns False --ignore_mismatched_sizes True "
            "--label_column_name label --output_dir out"
        )
        + STEPS,
        parts=["examples/pytorch/image-classification"],
        inside="examples/pytorch/image-classification",
        prepare=lambda place, code: (
            models("vit")(place, code),
            glue(place, code, "examples/pytorch/image-classification"),
            local_data.write_pictures(code / "examples/pytorch/image-classification/pictures"),
        ),
        **LOSSES,
        **TRANSFORMERS,
    ),
)
ACCELERATE = (
    program(
        "accelerate-nlp_example",
        ["nlp_example.py"],
        code_base="accelerate",
        parts=["examples"],
        inside="examples",
        prepare=lambda place, code: glue(place, code, "examples"),
        loss=r"epoch \d: \{{'accuracy': ([0-9.]+)".replace("{{", "{"),
    ),
    program(
        "accelerate-nlp_example-2-ranks",
        words_of(
            "accelerate launch --multi_gpu --num_processes 2 --num_machines 1 --mixed_precision no "
            "--dynamo_backend no --main_process_port 0 nlp_example.py"
        ),
        code_base="accelerate",
        parts=["examples"],
        inside="examples",
        prepare=lambda place, code: glue(place, code, "examples"),
        loss=r"epoch \d: \{'accuracy': ([0-9.]+)",
        nproc=2,
    ),
    program(
        "accelerate-gradient_accumulation-fp16",
        words_of("gradient_accumulation.py --mixed_precision fp16 --gradient_accumulation_steps 2"),
        code_base="accelerate",
        parts=["examples/by_feature"],
        inside="examples/by_feature",
        prepare=lambda place, code: glue(place, code, "examples/by_feature"),
        loss=r"epoch \d: \{'accuracy': ([0-9.]+)",
    ),
)
PEFT = (
    program(
        "peft-olora_finetuning",
        words_of(
            "olora_finetuning.py --base_model {shared}/llama --data_path {shared}/alpaca --num_epochs 1 "
            "--batch_size 8 --cutoff_len 64 "
            "--val_set_size 8 --eval_step 1 --save_step 100 --lora_r 4 --dtype float32 --lora_dropout 0 --seed 1"
        ),
        code_base="peft",
        parts=["examples/olora_finetuning"],
        inside="examples/olora_finetuning",
        prepare=models("llama"),
        loss=r"'eval_loss': '?([0-9.]+)",
        bound=2e-4,
    ),
    program(
        "peft-dora_finetuning",
        words_of(
            "dora_finetuning.py --base_model {shared}/llama --data_path {shared}/alpaca --output_dir out "
            "--num_epochs 1 --batch_size 8 --cutoff_len 64 "
            "--val_set_size 8 --eval_step 1 --save_step 100 --lora_r 4 --lora_dropout 0 "
            "--lora_target_modules q_proj,v_proj"
        ),
        code_base="peft",
        parts=["examples/dora_finetuning"],
        inside="examples/dora_finetuning",
        prepare=models("llama"),
        loss=r"'eval_loss': '?([0-9.]+)",
        bound=2e-4,
    ),
    program(
        "peft-sft",
        words_of(
            "train.py --seed 100 --model_name_or_path {shared}/llama --dataset_name {shared}/alpaca "
            "--splits train,test --max_length 64 "
            "--logging_steps 1 --logging_strategy steps --packing False --max_steps 4 --learning_rate 1e-3 "
            "--output_dir out --report_to none "
            "--per_device_train_batch_size 4 --dataset_text_field text --use_peft_lora True --lora_r 4 "
            "--lora_dropout 0.0 "
            "--lora_target_modules all-linear --save_strategy no --eval_strategy no --bf16 False "
            "--gradient_checkpointing True --use_reentrant True"
        ),
        code_base="peft",
        parts=["examples/sft"],
        inside="examples/sft",
        prepare=models("llama"),
        **LOSSES,
    ),
)
TRL = tuple(
    program(
        f"trl-{script}{suffix}",
        [
            *words_of(
                f"trl/scripts/{script}.py --model_name_or_path {{shared}}/qwen2 --dataset_name "
                f"{{shared}}/{data} --max_length 64 --output_dir out"
            ),
            *STEPS,
            *more,
        ],
        code_base="trl",
        parts=["trl/scripts"],
        prepare=models("qwen2"),
        nproc=ranks,
        loss=TRAINER_LOSS,
        bound=1e-2,  # its default is bf16
    )
    for script, data, suffix, ranks, more in (
        ("sft", "chats", "", 1, ()),
        ("sft", "chats", "-2-ranks", 2, ()),
        ("dpo", "preferences", "", 1, ()),
    )
)
FINE_TUNING = (
    program(
        "stanford_alpaca",
        [
            *words_of(
                "train.py --model_name_or_path {shared}/llama --data_path {shared}/alpaca.json --output_dir "
                "out --model_max_length 200"
            ),
            *STEPS,
            *words_of("--bf16 True --tf32 True --save_strategy no"),
        ],
        code_base="stanford_alpaca",
        prepare=models("llama"),
        loss=TRAINER_LOSS,
        bound=1e-2,
    ),
    program(
        "LLaMA-Factory-sft",
        ["-m", "llamafactory.cli", "train", "tiny.yaml"],
        code_base="LLaMA-Factory",
        parts=["src"],
        inside="src",
        prepare=lambda place, code: (models("qwen2")(place, code), llama_factory(place, code / "src")),
        path="{code}/src",
        **LOSSES,
    ),
)


def llama_factory(place: Place, folder: Path) -> None:
    """Write LLaMA-Factory's qwen3_lora_sft.yaml for a tiny model, and its data."""
    local_data.write_jsonl(folder / "data" / "tiny.jsonl", ALPACA)
    (folder / "data" / "dataset_info.json").write_text(json.dumps({"tiny": {"file_name": "tiny.jsonl"}}))
    (folder / "tiny.yaml").write_text(
        f"""\
model_name_or_path: {place.shared / "qwen2"}
stage: sft
do_train: true
finetuning_type: lora
lora_rank: 8
lora_target: all
dataset: tiny
template: default
cutoff_len: 64
overwrite_cache: true
preprocessing_num_workers: 1
output_dir: saves
logging_steps: 1
max_steps: 4
plot_loss: false
per_device_train_batch_size: 4
gradient_accumulation_steps: 1
learning_rate: 1.0e-3
lr_scheduler_type: cosine
bf16: true
report_to: none
"""
    )


JOBS = (*TRANSFORMERS_EXAMPLES, *ACCELERATE, *PEFT, *TRL, *FINE_TUNING)
