from __future__ import annotations

import json
import math

import pytest

from ascend_adapt.config.schedules import learning_rate
from ascend_adapt.errors import ConfigError
from ascend_adapt.recipes import dialects

MODEL = (
    "--block-lm --task-mask --num-layers 4 --hidden-size 64 --num-attention-heads 4 --max-position-embeddings 512 "
    "--tokenizer-type GPT2BPETokenizer"
)
PRETRAIN = f"{MODEL} --train-data text.jsonl --train-iters 100 --seq-length 128 --batch-size 2"
FINETUNE = f"{MODEL} --finetune --cloze-eval --task COPA --data-dir COPA --seq-length 256 --epochs 3 --batch-size 4"


@pytest.fixture(autouse=True)
def working_folder(tmp_path, monkeypatch):
    """A folder as GLM's, with a vocabulary, a text and a task."""
    monkeypatch.chdir(tmp_path)
    words = tmp_path / ".pytorch_pretrained_bert"
    words.mkdir()
    (words / "gpt2-vocab.json").write_text(json.dumps({str(number): number for number in range(50257)}))
    (words / "gpt2-merges.txt").write_text("#version: 0.2\n")
    (tmp_path / "text.jsonl").write_text("")
    (tmp_path / "COPA").mkdir()
    (tmp_path / "COPA" / "train.jsonl").write_text("{}\n" * 10)
    return tmp_path


def built(words, ranks=1):
    config, _ = dialects.read("glm", words.split()).build(ranks)
    return config


def test_vocabulary_and_positions_are_glms():
    model = built(PRETRAIN).model
    assert (model.vocab_size, model.padded_vocab_size, model.max_positions) == (50265, 50304, 513)
    hidden = built(f"{PRETRAIN} --block-mask-prob 0.1 --make-vocab-size-divisible-by 1").model
    assert hidden.vocab_size == hidden.padded_vocab_size == 50266


def test_the_text_may_be_on_another_host():
    assert built(f"{PRETRAIN} --train-data pile").data.train == ("pile",)


def test_deepspeeds_file_decides(working_folder):
    file = {
        "train_micro_batch_size_per_gpu": 8,
        "gradient_accumulation_steps": 2,
        "gradient_clipping": 0.5,
        "fp16": {"enabled": True, "loss_scale": 0, "loss_scale_window": 10},
        "zero_optimization": {"stage": 2, "cpu_offload": True},
        "optimizer": {"type": "Adam", "params": {"lr": 5e-6, "betas": [0.9, 0.95], "eps": 1e-7, "weight_decay": 0.1}},
    }
    (working_folder / "ds.json").write_text(json.dumps(file))
    config = built(f"{PRETRAIN} --lr 1 --fp16 --deepspeed --deepspeed_config ds.json --model-parallel-size 2", 8)
    assert (config.batch.micro, config.batch.accumulation, config.batch.total) == (8, 2, 64)
    assert (config.parallel.tensor, config.parallel.data, config.parallel.zero_stage) == (2, 4, 2)
    assert config.parallel.offload_optimizer
    optimizer = config.optimizer
    assert (optimizer.betas, optimizer.eps, optimizer.weight_decay, optimizer.clip_grad) == (
        (0.9, 0.95),
        1e-7,
        0.1,
        0.5,
    )
    assert (config.schedule.lr, config.precision.dtype, config.precision.loss_scale.window) == (5e-6, "fp16", 10)
    with pytest.raises(ConfigError, match="fp16 is on, expected the command line to agree"):
        built(f"{PRETRAIN} --deepspeed --deepspeed_config ds.json")


def test_epochs_become_iterations():
    # COPA's ten examples are there a second time with their choices exchanged.
    config = built(FINETUNE, 2)
    assert (config.cloze.examples, config.iterations, config.checkpoint.at_end) == (20, 9, False)
    assert built(f"{FINETUNE} --gradient-accumulation-steps 2", 2).iterations == 4
    assert built(f"{FINETUNE} --load-pretrained there").checkpoint.finetune
    assert not built(f"{FINETUNE} --load-pretrained there --load here").checkpoint.finetune


@pytest.mark.parametrize("style", ["linear", "cosine", "exponential"])
def test_learning_rate_is_glms(style):
    schedule = built(
        f"{PRETRAIN} --lr 1e-3 --warmup 0.1 --lr-decay-iters 50 --lr-decay-ratio 0.2 --lr-decay-style {style}"
    ).schedule
    assert [learning_rate(schedule, step) for step in (0, 1, 5)] == pytest.approx([0, 2e-4, 1e-3])
    share = 1 - (20 - 5) / 45 if style == "linear" else (math.cos(math.pi * 15 / 45) + 1) / 2
    assert learning_rate(schedule, 20) == pytest.approx(1e-3 if style == "exponential" else 2e-4 + 8e-4 * share)
    assert learning_rate(schedule, 10**6) >= 0


# As GLM's launcher and configuration are written: a launcher sources what it is given and evaluates a command line.
LAUNCHER = """
NUM_WORKERS=2
NUM_GPUS_PER_WORKER=4
MP_SIZE=2
source $1
mkdir logs
run_cmd="NCCL_DEBUG=info deepspeed --master_port 1 --num_nodes ${NUM_WORKERS} --num_gpus ${NUM_GPUS_PER_WORKER} \\
    --hostfile /no/hostfile pretrain_glm.py ${gpt_options} 2>&1 | tee logs/log.txt"
eval ${run_cmd}
"""


def test_shell_files(working_folder):
    (working_folder / "tiny.sh").write_text(
        f'script_dir=$(dirname $BASH_SOURCE)\ngpt_options=" {PRETRAIN} --model-parallel-size ${{MP_SIZE}} "\n'
    )
    (working_folder / "pretrain.sh").write_text(LAUNCHER)
    recipe = dialects.read("glm", ["pretrain.sh", "tiny.sh", "--seq-length", "64"])
    config, _ = recipe.build(8)
    assert (recipe.ranks_per_node, recipe.nodes, recipe.hostfile) == (4, 2, None)
    assert (config.parallel.tensor, config.data.seq_length) == (2, 64)
    assert not (working_folder / "logs").exists()
    assert built("tiny.sh", 4).parallel.tensor == 1
    (working_folder / "model.sh").write_text(f'MODEL_ARGS="{MODEL} --cloze-eval"\n')
    (working_folder / "task.sh").write_text(
        'TASK_NAME=COPA\nDATA_PATH=COPA\nMAX_SEQ_LEN=200\nEPOCH_SINGLE=5\nLR_SINGLE=1e-5\nTRAIN_ARGS="--warmup 0.1"\n'
    )
    config = built("model.sh task.sh --epochs 2")
    assert (config.cloze.task, config.cloze.epochs, config.data.seq_length, config.schedule.lr) == (
        "copa",
        2,
        200,
        1e-5,
    )


def test_the_stages_of_a_pipeline_may_be_uneven():
    words = f"{PRETRAIN} --pipeline-model-parallel-size 2"
    assert built(words, 2).parallel.stages == (2, 2)
    assert built(f"{words} --decoder-last-pipeline-num-layers 1", 2).parallel.stages == (3, 1)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (f"{PRETRAIN} --model-parallel-size 3", "ranks: 4, expected a multiple of model parallel 3 x pipeline 1 = 3"),
        (f"{PRETRAIN} --short-seq-prob 0.1 --pipeline-model-parallel-size 2", "short_seq_prob: 0.1 with 2 pipeline"),
        (f"{PRETRAIN} --bert-prob 0.8 --gap-sentence-prob 0.3", r"bert_prob 0.8 \+ gap_sentence_prob 0.3: above 1"),
        (f"{PRETRAIN} --seq-length 513", "seq_length: 513, expected at most 512, the positions of the model"),
        (f"{PRETRAIN} --sentinel-token", "--sentinel-token: True, expected False — the native trainer does not"),
        (f"{PRETRAIN} --tokenizer-type ChineseSPTokenizer", "--tokenizer-type: ChineseSPTokenizer, expected GPT2BPE"),
        (f"{PRETRAIN} --filter-english", "--filter-english: fastText's lid.176.bin was not found"),
        (f"{FINETUNE} --task ReCoRD", "--task: 'ReCoRD', expected one of boolq, cb, copa, rte"),
        (f"{FINETUNE} --data-dir nowhere", "nowhere/train.jsonl: no such file, expected the training examples of copa"),
        (f"{FINETUNE} --validation-metric f1", "validation_metric: 'f1', expected one of accuracy"),
        ("nowhere.sh", "nowhere.sh: no such file, expected GLM's script or configuration"),
        ("text.jsonl", "text.jsonl: set neither gpt_options nor MODEL_ARGS"),
    ],
)
def test_what_is_wrong_is_named(words, message):
    with pytest.raises(ConfigError, match=message):
        built(words, 4)
