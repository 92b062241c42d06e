from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from ascend_adapt.config.train_config import Init
from ascend_adapt.errors import ConfigError
from ascend_adapt.recipes import megatron

GUIDE = (
    "--num-layers 24 --hidden-size 1024 --num-attention-heads 16 --seq-length 1024 --max-position-embeddings 1024 "
    "--micro-batch-size 4 --global-batch-size 8 --train-iters 5000 --lr-decay-iters 320000 --lr 0.00015 "
    "--lr-decay-style cosine --min-lr 1.0e-5 --weight-decay 1e-2 --clip-grad 1.0 --lr-warmup-fraction .01 "
    "--data-path d --data-impl mmap --split 949,50,1 --fp16 --checkpoint-activations --vocab-size 50257"
)


def read(more="", world=2, base=GUIDE):
    return megatron.read([*base.split(), *more.split()]).build(world)


def test_the_guides_run():
    config, notes = read()
    assert (config.parallel.data, config.batch.accumulation, config.parallel.recompute) == (2, 1, "full")
    assert config.schedule.decay == 320000 * 8
    assert config.schedule.warmup == pytest.approx(0.01 * 320000 * 8)
    assert config.model.activation == "gelu_tanh"  # the fused GELU, which is on unless switched off
    assert config.model.output_init == Init(std=0.02 / math.sqrt(48))
    assert (config.data.order, config.logging.format) == ("bigscience", "bigscience")
    assert notes[0].startswith("read as bigscience-workshop/Megatron-DeepSpeed@8387ae17")
    assert any("data_impl" in note for note in notes)


@pytest.mark.parametrize(
    ("more", "version", "order", "style"),
    [
        ("", "bigscience", "bigscience", "bigscience"),
        ("--upstream-version v2.5", "Megatron-LM@v2.5", "megatron-v2", "megatron"),
        ("--upstream-line v2.5", "Megatron-LM@v2.5", "megatron-v2", "megatron"),
        ("--upstream-version deepspeed", "deepspeedai", "megatron-v2", "deepspeed"),
    ],
)
def test_each_version_has_its_order_and_log_format(more, version, order, style):
    config, _ = read(more)
    assert (config.data.order, config.logging.format) == (order, style)
    assert config.logging.loss_mean == "micro_batches"
    assert version in megatron.read([*GUIDE.split(), *more.split()]).source


@pytest.mark.parametrize("version", ["bigscience", "v2.5", "deepspeed"])
def test_a_nan_ends_a_run_of_each_version_unless_switched_off(version):
    assert read(f"--upstream-version {version}")[0].check_for_nan_in_loss_and_grad
    for off in ("--no-check-for-nan-in-loss-and-grad", "--no_check_for_nan_in_loss_and_grad"):
        assert not read(f"--upstream-version {version} {off}")[0].check_for_nan_in_loss_and_grad


@pytest.mark.parametrize("version", ["bigscience", "v2.5", "deepspeed", "core_v0.9.0"])
def test_whose_schedule_a_resumed_run_has(version):
    base = (
        GUIDE.replace("--checkpoint-activations", "").replace("--data-impl mmap", "") + f" --upstream-version {version}"
    )
    assert read(base=base)[0].checkpoint.resume_schedule == "match"
    older = version in ("bigscience", "v2.5")
    for name in ("opt_param", "opt-param", *(["lr"] if older else [])):
        assert read(f"--override-{name}-scheduler", base=base)[0].checkpoint.resume_schedule == "override"
        assert read(f"--use-checkpoint-{name}-scheduler", base=base)[0].checkpoint.resume_schedule == "checkpoint"
    with pytest.raises(ConfigError, match="both are given, expected one"):
        read("--override-opt_param-scheduler --use_checkpoint_opt_param_scheduler", base=base)


def test_options_to_resume_do_not_choose_another_version():
    plain = GUIDE.replace("--checkpoint-activations", "").replace("--data-impl mmap", "")
    for option in ("--no-check-for-nan-in-loss-and-grad", "--override-opt_param-scheduler"):
        assert megatron.read([*plain.split(), option]).source == megatron.read(plain.split()).source


def test_what_only_core_has():
    base = GUIDE.replace("--checkpoint-activations", "--recompute-granularity full --recompute-method uniform")
    base = base.replace("--data-impl mmap", "")
    config, _ = read(
        "--recompute-num-layers 4 --swiglu --group-query-attention --num-query-groups 4 --normalization RMSNorm "
        "--position-embedding-type rope --rotary-percent 0.5 --untie-embeddings-and-output-weights "
        "--disable-bias-linear --add-qkv-bias --use-distributed-optimizer --data-cache-path c",
        base=base,
    )
    model = config.model
    assert (model.activation, model.ffn_hidden_size) == ("swiglu", int(4 * 1024 * 2 / 3 / 64) * 64)
    assert (model.num_query_groups, model.norm, model.positions, model.rotary_dim) == (4, "rmsnorm", "rotary", 32)
    assert (model.tied_embeddings, model.attention_bias, model.output_bias, model.mlp_bias) == (
        False,
        True,
        False,
        False,
    )
    assert (config.parallel.recompute_layers, config.parallel.zero_stage, config.data.order) == (4, 1, "mcore")
    assert config.logging.loss_mean == "tokens"


@pytest.mark.parametrize(
    ("version", "stated", "size", "end"),
    [
        ("core_v0.9.0", "--vocab-size 256", 257, 256),
        ("newest", "--vocab-size 257", 257, 256),
        ("newest", "--vocab-size 257 --null-tokenizer-eod-id 0", 257, 0),
    ],
)
def test_a_tokenizer_without_a_file(version, stated, size, end):
    """Older versions count the ids without the end of a document, the newest with it."""
    plain = (
        GUIDE.replace("--data-impl mmap", "").replace("--checkpoint-activations", "").replace("--vocab-size 50257", "")
    )
    config, _ = read(f"--upstream-version {version} --tokenizer-type NullTokenizer {stated}", base=plain)
    assert (config.model.vocab_size, config.data.eod) == (size, end)


def test_the_fused_gelu_decides_on_the_formula():
    assert read("--no-bias-gelu-fusion")[0].model.activation == "gelu"
    assert read("--no-bias-gelu-fusion --openai-gelu")[0].model.activation == "gelu_tanh"


@pytest.mark.parametrize(
    ("version", "options", "formula"),
    [
        ("v2.5", "--onnx-safe True", "gelu_tanh"),
        ("bigscience", "--onnx-safe True", "gelu_tanh"),
        ("bigscience", "--onnx-safe True --no-bias-gelu-fusion", "gelu"),
        ("deepspeed", "--onnx-safe True", "gelu"),
        ("deepspeed", "--onnx-safe True --openai-gelu", "gelu_tanh"),
        ("core_v0.9.0", "--onnx-safe True", "gelu_tanh"),
        ("newest", "--openai-gelu --no-bias-gelu-fusion", "gelu"),
    ],
)
def test_which_gelu_each_version_takes(version, options, formula):
    base = GUIDE.replace("--checkpoint-activations", "").replace("--data-impl mmap", "")
    config, notes = read(f"--upstream-version {version} {options}", base=base)
    assert config.model.activation == formula
    unheeded = any("has no effect on the model of this version" in note for note in notes)
    assert unheeded is (version != "deepspeed")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--start-weight-decay 0.1", "given with a constant weight decay"),
        ("--weight-decay-incr-style linear --end-weight-decay 0.1", "linear without --start-weight-decay and"),
        (
            "--weight-decay-incr-style cosine --start-weight-decay 0.2 --end-weight-decay 0.1",
            "--end-weight-decay: 0.1, expected at least --start-weight-decay 0.2",
        ),
        ("--lr-decay-style WSD", "WSD without the length of its decay"),
    ],
)
def test_schedules_that_upstream_stops_at(options, message):
    base = GUIDE.replace("--checkpoint-activations", "").replace("--data-impl mmap", "")
    with pytest.raises(ConfigError, match=message):
        read(f"--upstream-version core_v0.9.0 {options}", base=base)


def test_deviations_are_upstreams_own():
    recorded = Path(__file__).parents[1] / "native" / "upstream_schedules.json"
    rows = [row for row in json.loads(recorded.read_text())["deviations"] if row["source"] == "Megatron-LM@v2.5"]
    assert {row["rule"] for row in rows} == {"init_method", "scaled_init_method"}
    for row in rows:
        sizes = f"--hidden-size {row['hidden']} --num-layers {row['layers']} --upstream-version v2.5"
        model = read(sizes)[0].model
        init = model.init if row["rule"] == "init_method" else model.output_init
        assert math.isclose(init.std, row["std"], rel_tol=1e-15)


def test_dashes_and_underscores_are_equal():
    assert read("--tensor_model_parallel_size=2") == read("--tensor-model-parallel-size 2")


def test_a_run_that_counts_samples():
    base = GUIDE.replace("--train-iters 5000", "--train-samples 4000 --rampup-batch-size 4 4 100")
    base = base.replace("--lr-decay-iters 320000", "--lr-decay-samples 3000").replace("--global-batch-size 8", "")
    base = base.replace("--micro-batch-size 4", "--micro-batch-size 2 --global-batch-size 8")
    config, _ = read(base=base)
    assert (config.train_samples, config.schedule.decay, config.batch.rampup) == (4000, 3000, (4, 4, 100))
    # 25 steps of 4 samples to the ramp's end, then steps of 8.
    assert config.iterations == 25 + (4000 - 100) // 8


@pytest.mark.parametrize(
    ("content", "switch", "expected"),
    [
        ({"zero_optimization": {"stage": 3, "cpu_offload": True}, "fp16": {"enabled": True}}, "", (3, True, 1.0)),
        (
            {"zero_optimization": {"stage": 1}, "fp16": {"enabled": True}, "gradient_clipping": 0.5},
            "--deepspeed",
            (1, False, 0.5),
        ),
        ({"zero_optimization": {"stage": 2}, "fp16": {"enabled": True}}, "--deepspeed", (2, False, 0.0)),
    ],
)
def test_deepspeeds_file(tmp_path, content, switch, expected):
    """With --deepspeed clipping is the file's, and none where it says nothing, as DeepSpeed's engine has it."""
    path = tmp_path / "ds.json"
    path.write_text(json.dumps(content))
    config, notes = read(f"{switch} --deepspeed_config {path}")
    found = (config.parallel.zero_stage, config.parallel.offload_optimizer, config.optimizer.clip_grad)
    assert found == expected
    assert config.precision.loss_scale.rule == ("deepspeed" if switch else "megatron")
    assert any("without --deepspeed" in note for note in notes) == (not switch)


def test_a_pipeline_of_deepspeed_may_be_uneven(tmp_path):
    path = tmp_path / "ds.json"
    path.write_text(json.dumps({"fp16": {"enabled": True}}))
    base = GUIDE.replace("--num-layers 24", "--num-layers 22")
    config, _ = read(f"--deepspeed --deepspeed_config {path} --pipeline-model-parallel-size 4", 4, base)
    assert config.parallel.stages == (6, 6, 5, 5)
    with pytest.raises(ConfigError, match="num_layers: 22, expected a multiple of pipeline stages 4"):
        read("--pipeline-model-parallel-size 4", 4, base)


def test_a_loss_scale_of_0_moves():
    """As upstream has it: 0 is no constant scale."""
    assert read("--loss-scale 0")[0].precision.loss_scale.fixed is None
    assert read("--loss-scale 8")[0].precision.loss_scale.fixed == 8


def test_interleaved_stages():
    more = "--pipeline-model-parallel-size 4 --num-layers-per-virtual-pipeline-stage 3"
    config, _ = read(more, 4, GUIDE.replace("--global-batch-size 8", "--global-batch-size 16"))
    assert (config.parallel.virtual_stages, config.parallel.stages) == (2, (3,) * 8)


CORE = GUIDE.replace("--checkpoint-activations", "").replace("--data-impl mmap", "")


@pytest.mark.parametrize(
    ("pipeline", "more", "stages"),
    [
        (2, "--decoder-first-pipeline-num-layers 13", (13, 11)),
        (2, "--decoder-last-pipeline-num-layers 10", (14, 10)),
        (2, "--decoder-first-pipeline-num-layers 13 --decoder-last-pipeline-num-layers 11", (13, 11)),
        (4, "--decoder-first-pipeline-num-layers 7 --decoder-last-pipeline-num-layers 5", (7, 6, 6, 5)),
        (4, "--decoder-last-pipeline-num-layers 3", (7, 7, 7, 3)),
        (5, "--account-for-loss-in-pipeline-split", (5, 5, 5, 5, 4)),
        (
            2,
            "--account-for-embedding-in-pipeline-split --account-for-loss-in-pipeline-split "
            "--num-virtual-stages-per-pipeline-rank 13",
            (0, *(1,) * 24, 0),
        ),
        (2, "--num-virtual-stages-per-pipeline-rank 2 --decoder-first-pipeline-num-layers 14", (7, 5, 7, 5)),
        (5, "--account-for-loss-in-pipeline-split --num-layers-per-virtual-pipeline-stage 1", (*(1,) * 24, 0)),
        (2, "--pipeline-model-parallel-layout Et*7|t*6|t*6|t*5L", (7, 6, 6, 5)),
        (4, "--pipeline-model-parallel-layout E,t*4|(tt|)*5,t*10|L", (4, *(2,) * 5, 10, 0)),
    ],
)
def test_stages_of_unequal_size(pipeline, more, stages):
    config, _ = read(f"--pipeline-model-parallel-size {pipeline} --global-batch-size 80 {more}", pipeline, CORE)
    assert config.parallel.stages == stages
    assert config.parallel.virtual_stages == len(stages) // pipeline


@pytest.mark.parametrize("version", megatron.VERSIONS)
def test_stages_of_unequal_size_do_not_choose_another_version(version):
    more = f"--upstream-version {version} --pipeline-model-parallel-size 2"
    for option in ("--decoder_first_pipeline_num_layers=13", "--pipeline-model-parallel-layout Et*13|t*11L"):
        assert megatron.read([*CORE.split(), *option.split()]).source == megatron.read(CORE.split()).source
        assert read(f"{more} {option}", base=CORE)[0].parallel.stages == (13, 11)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (
            "--decoder-first-pipeline-num-layers 13 --decoder-last-pipeline-num-layers 12",
            "--decoder-first-pipeline-num-layers 13, --decoder-last-pipeline-num-layers 12: -1 of 24 layers remain for "
            "the other 0 of 2 pipeline stages, expected",
        ),
        ("--decoder-last-pipeline-num-layers 24", "last-pipeline-num-layers 24: 0 of 24 layers remain for the other 1"),
        ("--decoder-first-pipeline-num-layers 0", "--decoder-first-pipeline-num-layers: 0, expected at least 1"),
        (
            "--decoder-first-pipeline-num-layers 14 --num-layers-per-virtual-pipeline-stage 6",
            "--num-layers-per-virtual-pipeline-stage: given with an uneven first or last stage, expected "
            "--num-virtual-stages-per-pipeline-rank",
        ),
        (
            "--decoder-first-pipeline-num-layers 13 --num-virtual-stages-per-pipeline-rank 2",
            "layers of a pipeline rank: 13, expected a multiple of virtual stages 2",
        ),
        (
            "--decoder-first-pipeline-num-layers 13 --account-for-loss-in-pipeline-split",
            "several ways to divide the layers, expected one",
        ),
        (
            "--account-for-loss-in-pipeline-split",
            "num_layers and loss: 25, expected a multiple of pipeline stages 2",
        ),
        (
            "--num-layers-per-virtual-pipeline-stage 6 --num-virtual-stages-per-pipeline-rank 2",
            "given together, expected one of them: each sets the virtual stages",
        ),
        (
            "--pipeline-model-parallel-layout Et*12|t*12L --num-virtual-stages-per-pipeline-rank 1",
            "given together, expected one of them: each sets the virtual stages",
        ),
        ("--pipeline-model-parallel-layout E|(tt|)*12,L|", "stages of --pipeline-model-parallel-layout: 15, expected"),
        ("--pipeline-model-parallel-layout Et*12|t*11mL", "has 'm', expected E"),
        (
            "--pipeline-model-parallel-layout Et*12|t*11L",
            "has 23 layers, 1 E and 1 L, expected E in the first stage, the model's 24",
        ),
        ("--pipeline-model-parallel-layout t*12|Et*12L", "has 24 layers, 1 E and 1 L, expected E in the first"),
    ],
)
def test_stages_that_cannot_be_made(more, message):
    with pytest.raises(ConfigError, match=message):
        read(f"--pipeline-model-parallel-size 2 {more}", base=CORE)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ("--num-layrs 3", r"--num-layrs: unknown to megatron .* did you mean --num-layers\?"),
        ("--min-lr 0.01", "min_lr: 0.01, expected at most lr = 0.00015"),
        ("--tensor-model-parallel-size 3", "ranks: 2, expected a multiple of tensor 3 x pipeline 1 = 3"),
        ("--num-attention-heads 15", "hidden_size: 1024, expected a multiple of 15 heads"),
        ("--global-batch-size 9", r"train batch: 9, expected a multiple of micro batch 4 x data-parallel size 2 = 8"),
        ("--bf16", "--fp16, --bf16: both are given"),
        ("--seq-length 2048", "seq_length: 2048, expected at most max_positions = 1024"),
        ("--pad-vocab-size-to 50000", "vocabulary: 50257 ids, expected at most the table's 50000 rows"),
        ("--embed-layernorm", "--embed-layernorm: True, expected False — the native trainer does not support it"),
        ("--position-embedding-type alibi", "--position-embedding-type: 'alibi', expected learned, rotary or none"),
        ("--save c", "--save: without --save-interval"),
        ("--train-samples 5", "--train-iters, --train-samples: expected one of the two"),
        ("--lr-warmup-iters 5", "given together with the length of a warmup"),
        ("--split 1,2,3,4", "split: '1,2,3,4', expected shares for train, valid and test"),
        ("--split all", "split: 'all', expected shares for train, valid and test"),
        ("--adam-beta2 1.0", "second beta of Adam: 1.0, expected at least 0 and below 1"),
        ("--initial-loss-scale 0", "initial loss scale: 0.0, expected a finite number above 0"),
        ("--eval-iters -1", "eval_iterations: -1, expected at least 0"),
        ("--seed -1", "seed: -1, expected at least 0"),
        ("--seed x", "argument --seed: invalid int value: 'x'"),
        ("stray", "'stray': belongs to no option"),
        ("--lr-decay-samples 5", "lr_decay_samples: 5, but the length of this run is in iterations"),
        ("--deepspeed", "--deepspeed: without --deepspeed_config"),
        ("--deepspeed_config missing.json", "deepspeed_config 'missing.json': No such file or directory"),
    ],
)
def test_an_invalid_command_line_is_one_sentence(more, message):
    with pytest.raises(ConfigError, match=message):
        read(more)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "is not JSON"),
        ("[]", "is a list, expected an object"),
        ('{"zero_optimisation": {}}', r"zero_optimisation is unknown — did you mean zero_optimization\?"),
        ('{"amp": {"enabled": true}}', "amp is enabled"),
        (
            '{"fp16": {"enabled": true}, "train_batch_size": 64}',
            "train_batch_size 64, expected 8 as on the command line",
        ),
        ('{"fp16": {"enabled": false}}', "fp16 is off, expected the command line to agree"),
        ('{"fp16": {"enabled": true}, "zero_optimization": {"stage": 4}}', "stage: 4, expected 0, 1, 2 or 3"),
        ('{"fp16": {"enabled": true, "hystersis": 1}}', r"fp16.hystersis: is unknown — did you mean hysteresis\?"),
        ('{"fp16": {"enabled": true}, "bf16": {"enable": false}}', r"bf16.enable: is unknown — did you mean enabled\?"),
        (
            '{"fp16": {"enabled": true}, "zero_optimization": {"offload_optimizer": {"device": "nvme"}}}',
            "offload_optimizer.device: 'nvme', expected 'cpu' or 'none'",
        ),
    ],
)
def test_a_deepspeed_file_that_cannot_be_meant(tmp_path, content, message):
    path = tmp_path / "ds.json"
    path.write_text(content)
    with pytest.raises(ConfigError, match=message):
        read(f"--deepspeed --deepspeed_config {path}")


# What the native trainer cannot do of the options of Megatron-LM's examples/llama/train_llama3_8b_h100_fp8.sh.
LLAMA3 = (
    "--num-layers 32 --hidden-size 4096 --num-attention-heads 32 --seq-length 8192 --max-position-embeddings 8192 "
    "--swiglu --position-embedding-type rope --disable-bias-linear --micro-batch-size 1 --global-batch-size 128 "
    "--train-samples 1953125000 --lr 0.00015 --bf16 --mock-data --tokenizer-type NullTokenizer --vocab-size 128256 "
    "--apply-layernorm-1p --decoupled-lr 5.0e-4 --calculate-per-token-loss --fp8-format hybrid --fp8-param-gather"
)


def problems_of(words, world=8):
    with pytest.raises(ConfigError) as raised:
        read(base=words, world=world)
    return str(raised.value).split("\n")


def test_all_problems_of_a_command_line_are_reported_at_once():
    assert [problem.partition(": ")[0] for problem in problems_of(LLAMA3)] == [
        "--mock-data",
        "--apply-layernorm-1p",
        "--calculate-per-token-loss",
        "--decoupled-lr",
        "--fp8-format",
        "--fp8-param-gather",
    ]
    wrong = LLAMA3.replace("--micro-batch-size 1", "--micro-batch-size 3").replace("--lr 0.00015", "--lr fast")
    named = "\n".join(problems_of(f"{wrong} --bogus 1 --fp16 --save x"))
    for problem in (
        "--bogus: unknown to megatron",
        "argument --lr: invalid float value",
        "train batch: 128, expected a multiple of micro batch 3",
        "--fp16, --bf16: both are given",
        "--save: without --save-interval",
        "--mock-data: the native trainer has no mock data, expected token files",
        "--fp8-format: 'hybrid'",
    ):
        assert named.count(problem) == 1, named


def test_everything_that_is_missing_is_named_and_nothing_that_follows_from_it():
    assert [problem.partition(": ")[0] for problem in problems_of("--log-interval 1")] == [
        *("--num-layers", "--hidden-size", "--num-attention-heads", "--micro-batch-size", "--lr"),
        *("--train-iters, --train-samples", "GPT2BPETokenizer", "--data-path, --train-data-path"),
    ]


def test_sizes_that_do_not_fit_the_ranks_are_reported_at_once():
    base = GUIDE.replace("--hidden-size 1024 --num-attention-heads 16", "--hidden-size 1022 --num-attention-heads 14")
    named = {problem.partition(": ")[0] for problem in problems_of(f"{base} --tensor-model-parallel-size 3", 3)}
    assert named == {"num_heads", "hidden_size", "ffn_hidden_size", "num_query_groups"}


def test_skip_train_evaluates_alone():
    config, _ = read("--upstream-version deepspeed --skip-train --load there --eval-interval 10 --eval-iters 2")
    assert (config.eval_only, config.checkpoint.load, config.checkpoint.save) == (True, "there", None)
