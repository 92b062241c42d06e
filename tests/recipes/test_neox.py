from __future__ import annotations

import math
from itertools import product

import pytest

from ascend_adapt.errors import ConfigError
from ascend_adapt.recipes import neox
from ascend_adapt.recipes.vocabulary import Vocabulary, read_vocabulary

SMALL = """
# JSON with comments, trailing commas, and both ways to write a truth value
{
  "num-layers": 4, "hidden_size": 64, "num-attention-heads": 4,   # dashes and underscores
  "seq-length": 32, "max-position-embeddings": 64,
  "train_micro_batch_size_per_gpu": 2, "train-iters": 100,
  "optimizer": {"type": "Adam", "params": {"lr": 1e-3, "betas": [0.9, 0.95], }, },
  "pos-emb": "rotary", "rotary_pct": 0.25, "no-weight-tying": True, "gpt_j_residual": true,
  "data-path": "data/text_document", "vocab-file": "v.json",
}
"""


def read(tmp_path, *more, world=2, **files):
    for name, text in {"small": SMALL, **files}.items():
        (tmp_path / f"{name}.yml").write_text(text)
    names = dict.fromkeys([*files, "small"])
    return neox.read(["-d", str(tmp_path), *names, "--vocab-size", "1000", *more]).build(world)


def test_a_file_in_json_with_what_json_has_not(tmp_path):
    config, _ = read(tmp_path)
    model = config.model
    assert (model.positions, model.rotary_dim, model.tied_embeddings, model.parallel_residual) == (
        "rotary",
        4,
        False,
        True,
    )
    assert (config.schedule.lr, config.optimizer.betas, config.batch.total) == (1e-3, (0.9, 0.95), 4)
    assert (config.data.order, config.schedule.unit) == ("neox", "iterations")


def test_a_nan_ends_a_run_unless_switched_off(tmp_path):
    assert read(tmp_path)[0].check_for_nan_in_loss_and_grad
    assert not read(tmp_path, "--no-check-for-nan-in-loss-and-grad")[0].check_for_nan_in_loss_and_grad


def test_whose_schedule_a_resumed_run_has(tmp_path):
    assert read(tmp_path)[0].checkpoint.resume_schedule == "match"
    for key, value in (("override_lr_scheduler", "override"), ("use_checkpoint_lr_scheduler", "checkpoint")):
        assert read(tmp_path, more=f'{{"{key}": true}}')[0].checkpoint.resume_schedule == value
        assert read(tmp_path, f"--{key}", "true")[0].checkpoint.resume_schedule == value
    assert read(tmp_path, "--override-opt_param-scheduler")[0].checkpoint.resume_schedule == "override"


def test_several_files_and_keys_of_the_command_line(tmp_path):
    paths = '{"save": "s", "load": "s", "checkpoint-factor": 5, "extra_save_iters": [7]}'
    config, _ = read(tmp_path, "--num-layers", "8", "--hidden-dropout=0.25", paths=paths)
    assert (config.model.num_layers, config.model.hidden_dropout) == (8, 0.25)
    assert (config.checkpoint.interval, config.checkpoint.steps, config.checkpoint.save) == (5, (7,), "s")


def test_a_hostfile_of_the_configuration_that_does_not_exist_is_this_machine(tmp_path):
    """As DeepSpeed's launcher has it; 125M.yml of the quick start names /mock_path."""
    (tmp_path / "small.yml").write_text(SMALL.replace('"num-layers"', '"hostfile": "/mock_path", "num-layers"'))
    argv = ["-d", str(tmp_path), "small.yml", "--vocab-size", "1000"]
    recipe = neox.read([*argv, "--global_num_gpus", "2"])
    assert (recipe.hostfile, recipe.ranks_per_node) == (None, 2)
    (said,) = (note for note in recipe.build(2)[1] if "hostfile" in note)
    assert said == "hostfile: /mock_path named by the configuration does not exist, so only this host is used"
    assert neox.read([*argv, "--hostfile", "/mock_path"]).hostfile == "/mock_path", "a typing error, which is refused"
    (tmp_path / "hosts").write_text("a slots=2\nb slots=2\n")
    there = neox.read([*argv[:3], "--vocab-size", "1000", "--hostfile", str(tmp_path / "hosts")])
    assert there.hostfile == str(tmp_path / "hosts")


def test_deepys_own_words_are_taken(tmp_path):
    (tmp_path / "small.yml").write_text(SMALL)
    argv = ["train.py", "--conf_dir", str(tmp_path), "small.yml", "--vocab-size", "1000", "--wandb_group", "g"]
    assert neox.read(argv).build(1)[0].model.num_layers == 4


def test_the_version_is_the_first_that_knows_every_key(tmp_path):
    old, notes = read(tmp_path)
    assert (old.schedule.dialect, old.logging.flops) == ("neox-v2", "neox-v2")
    assert notes[0].startswith("read as EleutherAI/gpt-neox@9610391a")
    new, notes = read(tmp_path, "--num_kv_heads", "2")
    assert (new.schedule.dialect, new.model.num_query_groups) == ("neox", 2)
    assert notes[0].startswith("read as EleutherAI/gpt-neox@ea7aefd8")
    # Defaults moved too.
    assert (old.optimizer.weight_decay, new.optimizer.weight_decay) == (0.01, 0.1)
    assert (old.model.hidden_dropout, new.model.hidden_dropout) == (0.1, 0.0)
    assert (old.optimizer.clip_grad, new.optimizer.clip_grad) == (0.0, 1.0)


def test_a_quoted_boolean_is_read_with_a_note(tmp_path):
    config, notes = read(tmp_path, more='{"finetune": "True"}')
    assert config.checkpoint.finetune
    assert 'finetune: "True" in quotes is read as true; upstream raises an error' in notes


def test_what_the_guides_fork_adds_is_noted(tmp_path):
    _, notes = read(tmp_path, "--use_triangle_attn", "True", "--async-tensor-model-parallel-allreduce", "true")
    assert any("use_triangle_attn" in note and "async_tensor" in note for note in notes)


@pytest.mark.parametrize(("fused", "formula"), [("true", "gelu_tanh"), ("false", "gelu")])
def test_the_fused_gelu_decides_on_the_formula(tmp_path, fused, formula):
    assert read(tmp_path, "--bias-gelu-fusion", fused)[0].model.activation == formula


def test_the_gate_of_swiglu_takes_two_thirds(tmp_path):
    """ParallelMLP of the newest: of 3 x 5504 a gate keeps 5504, in multiples of 256 rounded up to 5632."""
    more = ["--activation", "swiglu", "--intermediate_size", "16512", "--num_kv_heads", "4"]
    assert read(tmp_path, *more)[0].model.ffn_hidden_size == 5504
    assert read(tmp_path, *more, "--mlp_multiple_of", "256")[0].model.ffn_hidden_size == 5632


@pytest.mark.parametrize(("version", "on_root"), [("v2.0", True), ("newest", False)])
def test_v2_adds_the_epsilon_of_rmsnorm_to_the_root(tmp_path, version, on_root):
    model = read(tmp_path, "--norm", "rmsnorm", "--rms_norm_epsilon", "1e-3", "--upstream-version", version)[0].model
    assert (model.norm, model.norm_eps, model.rms_eps_on_root) == ("rmsnorm", 1e-3, on_root)
    assert not read(tmp_path, "--upstream-version", version)[0].model.rms_eps_on_root


@pytest.mark.parametrize(
    ("keys", "dtype"),
    [
        ('{"fp16": {"enabled": true}}', "fp16"),
        ('{"fp16": {"enabled": true, "type": "bfloat16"}}', "bf16"),
        ('{"precision": "bfloat16"}', "bf16"),
        ('{"fp16": {"enabled": false}}', "fp32"),
    ],
)
def test_precision(tmp_path, keys, dtype):
    assert read(tmp_path, more=keys)[0].precision.dtype == dtype


@pytest.mark.parametrize(
    ("keys", "dtype"),
    [
        ('{"fp16": {"enabled": true, "type": "bfloat16", "loss_scale": 0}}', "bf16"),
        ('{"fp16": {"enabled": true, "type": "bfloat16"}, "precision": "bfloat16"}', "bf16"),
        ('{"fp16": {"enabled": false, "type": "bfloat16"}}', "fp32"),
        ('{"fp16": {"enabled": true, "type": "bfloat16"}, "bf16": {"enabled": false}}', "fp32"),
        ('{"fp16": {"enabled": true, "type": "fp16"}}', "fp16"),
    ],
)
def test_bfloat16_as_the_type_of_fp16_in_the_newest(tmp_path, keys, dtype):
    """As the newest reads it in an adapted run: plugins/gpt_neox/bfloat16.py."""
    assert read(tmp_path, "--upstream-version", "newest", more=keys)[0].precision.dtype == dtype


def test_one_precision_is_asked_for(tmp_path):
    keys = '{"fp16": {"enabled": true, "type": "bfloat16"}, "precision": "fp16"}'
    with pytest.raises(ConfigError, match="precision: bfloat16 and fp16 are both set"):
        read(tmp_path, "--upstream-version", "newest", more=keys)


@pytest.mark.parametrize(("stage", "pipeline", "tensor"), list(product((0, 1), (1, 2), (1, 2))))
def test_the_layout(tmp_path, stage, pipeline, tensor):
    zero, pipe = f'"zero_optimization": {{"stage": {stage}}}', f'"pipe-parallel-size": {pipeline}'
    keys = f'{{{zero}, {pipe}, "model_parallel_size": {tensor}}}'
    parallel = read(tmp_path, world=8, more=keys)[0].parallel
    assert (parallel.data, parallel.zero_stage) == (8 // pipeline // tensor, stage)
    assert parallel.stages == (4 // pipeline,) * pipeline


def test_log_scaled_checkpoints(tmp_path):
    keys = '{"save": "s", "checkpoint-factor": 3, "checkpoint-scale": "log"}'
    assert read(tmp_path, more=keys)[0].checkpoint.steps == (3, 9, 27, 81)


def test_data_in_three_parts_with_weights(tmp_path):
    keys = """{"train-data-paths": ["a", "b"], "train-data-weights": [1, 2],
               "valid-data-paths": ["c"], "test-data-paths": ["d"]}"""
    (tmp_path / "small.yml").write_text(SMALL.replace('"data-path": "data/text_document",', ""))
    (tmp_path / "more.yml").write_text(keys)
    data = neox.read(["-d", str(tmp_path), "small", "more", "--vocab-size", "9"]).build(1)[0].data
    assert (data.train, data.valid, data.test) == (("1", "a", "2", "b"), ("1.0", "c"), ("1.0", "d"))


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ('{"num_layrs": 4}', r"num_layrs: unknown to neox .* did you mean num_layers\?"),
        ('{"num_layers": 4}', r"small.yml: num-layers is also in .*more.yml"),
        ('{"min_lr": 0.1}', "min_lr: 0.1, expected at most lr = 0.001"),
        ('{"pos_emb": "alibi"}', "pos-emb|pos_emb"),
        ('{"norm": "scalenorm"}', "norm: 'scalenorm', expected layernorm or rmsnorm"),
        ('{"attention_config": [[["sparse_fixed"], 4]]}', "attention_config: sparse_fixed, expected global or flash"),
        ('{"attention_config": [[["global", "flash"], 3]]}', "attention_config: 6 layers, expected num_layers 4"),
        (
            '{"attention_config": [["global"]]}',
            r"attention_config: \[\['global'\]\], expected lists of kinds and their counts",
        ),
        ('{"zero_optimization": {"stge": 1}}', r"zero_optimization.stge: is unknown — did you mean stage\?"),
        (
            '{"zero_optimization": {"zenflow": {"topk_ratio": 0.1}}}',
            "zero_optimization.zenflow: .* does not support it",
        ),
        (
            '{"zero_optimization": {"zero_quantized_weights": true}}',
            "zero_quantized_weights: True, but the native trainer",
        ),
        ('{"fp16": {"enabled": true, "loss_scal": 0}}', r"fp16.loss_scal: is unknown — did you mean loss_scale\?"),
        ('{"fp16": {"consecutive_hysteresis": true}}', "fp16.consecutive_hysteresis: True, but the native trainer"),
        ('{"fp16": true}', "fp16: True, expected dict"),
        ('{"split": "0,1,1"}', "split: '0,1,1', expected shares for train, valid and test, with train above 0"),
        ('{"save": "s"}', "save: without checkpoint-factor"),
        ('{"train_batch_size": 7}', "train batch: 7, expected a multiple of micro batch 2 x data-parallel size 2 = 4"),
        ('{"model-parallel-size": 3}', "pipe-parallel-size 1 x model-parallel-size 3 = 3"),
        ('{"use_mup": true}', "use_mup: True, expected False — the native trainer does not support it"),
        ('{"init_method": "orthogonal"}', "init_method: 'orthogonal' divides by zero upstream"),
        ('{"init_method": "nonsense"}', "init_method: 'nonsense', expected one of normal"),
        ('{"rotary_emb_base": "ten"}', "rotary_emb_base: 'ten', expected int"),
        ('{"seed": 1.5}', "seed: 1.5, expected int"),
        ('{"seed": null}', "seed: null, expected a value such as 1234"),
        ('{"hidden_dropout": null}', "hidden_dropout: null, expected a value"),
        ('{"rotary_emb_base": 0}', "rotary_base: 0.0, expected a finite number above 0"),
        ('{"init_method_std": .inf}', "init std: inf, expected at least 0"),
        ('{"fp16": {"enabled": "False"}}', "fp16.enabled: 'False', expected true or false"),
        ('{"fp16": {"enabled": true, "type": "bf16"}}', "fp16.type: 'bf16', expected 'fp16' or 'bfloat16'"),
        ('{"fp16": {"initial_scale_power": 5000}}', "initial_scale_power: 5000, expected at most 127"),
        ('{"fp16": {"loss_scale": .inf}}', "fixed loss scale: inf, expected a finite number above 0"),
        ('{"fp16": {"loss_scale_window": 0}}', "loss scale window: 0, expected at least 1"),
        ('{"zero_optimization": {"stage": 1, "cpu_offload": "false"}}', "cpu_offload: 'false', expected true or false"),
        ('{"save": 2001-99-99}', "more.yml: is not valid YAML .*month"),
        ("{[1]: 2}", "more.yml: is not valid YAML .*unhashable"),
        pytest.param("[" * 3000, r"more.yml: is not valid YAML \(it is nested too deeply\)", id="deep"),
        ('{"seed": 1, "seed": 2}', "seed: is given twice, again on line 1"),
        ('{"global_num_gpus": 3, "num_nodes": 2}', "global_num_gpus: 3, expected a multiple of 2 num_nodes"),
        ("[1, 2]", "more.yml: is a list, expected keys and values"),
        ("{", "more.yml: is not valid YAML"),
    ],
)
def test_an_invalid_configuration_is_one_sentence(tmp_path, keys, message):
    small = SMALL.replace('"pos-emb": "rotary",', "") if "pos_emb" in keys else SMALL
    with pytest.raises(ConfigError, match=message):
        read(tmp_path, more=keys, small=small)


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ('{"type": "Adam", "lr": 1}', "optimizer: lr unknown, expected type and params only"),
        ('{"type": "Adam", "params": {"lr": null}}', "optimizer.params.lr: null, expected a number"),
        ('{"type": "Adam", "params": {"adam_w_mode": 0}}', "adam_w_mode: 0, expected true"),
        ('{"type": "Adam", "params": {1: 2}}', "optimizer.params: 1 unknown"),
    ],
)
def test_an_invalid_optimizer_section(tmp_path, section, message):
    stated = '"optimizer": {"type": "Adam", "params": {"lr": 1e-3, "betas": [0.9, 0.95], }, },'
    assert stated in SMALL
    with pytest.raises(ConfigError, match=message):
        read(tmp_path, small=SMALL.replace(stated, f'"optimizer": {section},'))


def test_what_is_merged_in_gives_way(tmp_path):
    merged = '{"zero_optimization": {<<: {"stage": 1, "reduce_scatter": true}, "stage": 0}}'
    assert read(tmp_path, more=merged)[0].parallel.zero_stage == 0
    whole = "fp16: &off {enabled: false, loss_scale: 0}\nbf16: {<<: *off, enabled: true}\nprecision: bfloat16"
    assert read(tmp_path, "--upstream-version", "newest", more=whole)[0].precision.dtype == "bf16"


def test_attention_by_name_and_by_pattern(tmp_path):
    """As upstream expands them."""
    for stated in (
        '[[["global", "flash"], "all"]]',
        '[[["flash"], 1], [["global"], 3]]',
        '["global", "flash", "global", "global"]',
    ):
        assert read(tmp_path, more=f'{{"attention_config": {stated}}}')[0].model.num_layers == 4


def test_ranks_and_machines(tmp_path):
    (tmp_path / "small.yml").write_text(SMALL)

    def machines(*more):
        recipe = neox.read(["-d", str(tmp_path), "small", "--vocab-size", "9", *more])
        return recipe.ranks_per_node, recipe.nodes, recipe.hostfile

    assert machines() == (None, None, None)
    assert machines("--num_gpus", "4", "--global_num_gpus", "4") == (4, None, None)
    assert machines("--global_num_gpus", "8") == (8, None, None)
    # Beside a hostfile its slots are meant, and as many of its hosts.
    assert machines("--global_num_gpus", "96", "-H", "hosts") == (None, None, "hosts")
    assert machines("--num_nodes", "3", "--hostfile", "hosts", "--num_gpus", "2") == (2, 3, "hosts")


def test_no_file_and_a_file_that_is_not_there(tmp_path):
    (tmp_path / "small.yml").write_text(SMALL)
    with pytest.raises(ConfigError, match=r"--fp16 '\{': is not valid YAML"):
        neox.read(["-d", str(tmp_path), "small", "--fp16", "{"])
    with pytest.raises(ConfigError, match="no configuration file"):
        neox.read([])
    with pytest.raises(ConfigError, match=r"missing\.yml: No such file or directory"):
        neox.read(["-d", str(tmp_path), "missing"])


@pytest.mark.parametrize(
    ("content", "size", "end"),
    [
        ('{"a": 0, "b": 1, "<|endoftext|>": 2}', 3, 2),
        (
            '{"model": {"vocab": {"a": 0, "<|endoftext|>": 1}}, "added_tokens": '
            '[{"id": 1, "content": "<|endoftext|>"}, {"id": 2, "content": "  "}]}',
            3,
            1,
        ),
        ('{"model": {"vocab": [["a", -1.0], ["b", -2.0]]}}', 2, None),
    ],
)
def test_a_vocabulary_is_read_off_its_file(tmp_path, content, size, end):
    path = tmp_path / "tokenizer.json"
    path.write_text(content)
    for where in (path, tmp_path):
        vocabulary = read_vocabulary("HFTokenizer", str(where), None)
        assert (vocabulary.size, vocabulary.end_of_document) == (size, end)


def test_bytes_need_no_vocabulary_file():
    assert read_vocabulary("CharLevelTokenizer", None, None) == Vocabulary(512, 0)
    assert read_vocabulary("CharLevelTokenizer", "no such file", 600) == Vocabulary(600, 0)


@pytest.mark.parametrize(
    ("content", "message"),
    [("[]", "is neither a vocab.json nor a tokenizer.json"), ("\x00", "is neither"), (None, "No such file")],
)
def test_a_vocabulary_that_cannot_be_read(tmp_path, content, message):
    path = tmp_path / "v.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(ConfigError, match=message):
        read_vocabulary("HFTokenizer", str(path), None)


@pytest.mark.parametrize(("tensor", "rows"), [(1, 50304), (2, 50432), (4, 50688), (8, 51200)])
def test_ckpt_2(tmp_path, tensor, rows):
    keys = f'{{"model_parallel_size": {tensor}, "num-attention-heads": 8}}'
    (tmp_path / "small.yml").write_text(SMALL.replace('"num-attention-heads": 4,', ""))
    (tmp_path / "more.yml").write_text(keys)
    argv = ["-d", str(tmp_path), "small", "more", "--vocab-size", "50257"]
    assert neox.read(argv).build(tensor)[0].model.padded_vocab_size == rows


def test_deviations_are_upstreams_own(tmp_path):
    import json
    from pathlib import Path

    from ascend_adapt.recipes.neox_model import read_init
    from ascend_adapt.recipes.options import Options, version

    recorded = Path(__file__).parents[1] / "native" / "upstream_schedules.json"
    rows = [row for row in json.loads(recorded.read_text())["deviations"] if "neox" in row["source"]]
    assert {row["rule"] for row in rows} >= {"normal", "scaled_normal", "small_init", "wang_init"}
    for row in rows:
        options = Options(version("neox", "newest"), {"init_method": row["rule"]}, {})
        init = read_init(options, "init_method", row["hidden"], row["layers"])
        assert math.isclose(init.std, row["std"], rel_tol=1e-15)


# Of configs/mamba/mamba-130M.yml; its heads are "ignored when using mamba".
MAMBA = """
"hidden_size": 768, "num_attention_heads": 7, "num_layers": 24, "seq_length": 64, "max_position_embeddings": 64,
"attention_config": [[["mamba"], 24]], "activation": "silu", "norm": "rmsnorm", "train_micro_batch_size_per_gpu": 4,
"train_iters": 10, "data_path": "d", "mamba_selective_scan_fusion": true,
"""


@pytest.mark.parametrize("kind", ["mamba", "rwkv"])
def test_another_architecture_is_refused_by_name(tmp_path, kind):
    with pytest.raises(ConfigError) as raised:
        read(tmp_path, small=f"{{{MAMBA.replace('mamba', kind, 1)}}}")
    first, *others = str(raised.value).split("\n")
    assert first.startswith(
        f"attention_config: {kind} layers, expected global or flash — the native trainer supports only"
    )
    assert not any("heads" in other for other in others)


def test_all_problems_of_the_files_are_reported_at_once(tmp_path):
    keys = '{"save-interval": 5, "fp16": 3, "moe_num_experts": 8, "weight_decay": "much", "extra_save_iters": ["x"]}'
    with pytest.raises(ConfigError) as raised:
        read(tmp_path, more=keys)
    named = str(raised.value)
    for problem in (
        "save_interval: unknown to neox (EleutherAI/gpt-neox@ea7aefd8) — use checkpoint_factor, which has the same "
        "meaning",
        "fp16: 3, expected",
        "weight_decay: 'much', expected",
        "extra_save_iters: ['x'], expected integers",
        "moe_num_experts: 8, expected",
    ):
        assert named.count(problem) == 1, named
