from __future__ import annotations

import json
import re

import pytest
from recipes.probing import tripping, unheeded

from ascend_adapt.errors import ConfigError
from ascend_adapt.recipes import glm, megatron, neox, oneflow
from ascend_adapt.recipes.command_line import OwnOptions, parse
from ascend_adapt.recipes.options import Options, choose_version, version
from ascend_adapt.recipes.same_options import _SAME, same_options

OWN = OwnOptions(None, None, 1000, None)
SIZES = {"num_layers": 4, "hidden_size": 64, "num_attention_heads": 4, "train_iters": 10}
MEGATRON = {**SIZES, "seq_length": 32, "max_position_embeddings": 64, "micro_batch_size": 2, "lr": 1e-3}
NEOX = {**SIZES, "seq_length": 32, "max_position_embeddings": 64, "train_micro_batch_size_per_gpu": 2}
ONEFLOW = {**SIZES, "micro_batch_size": 2, "dataset": "x", "lr_decay_style": "cosine", "lr_decay_iters": 10}

GLM = {**SIZES, "block_lm": True, "tokenizer_type": "GPT2BPETokenizer", "train_data": ["x"], "batch_size": 2}

# A value of these may change nothing alone, and does beside others.
BESIDE_OTHERS = {
    "dataloader_type": "single is what None comes to",
    "openai_gelu": "the fused GELU is the same formula",
    "recompute_method": "of recompute_granularity full",
    "recompute_num_layers": "of recompute_method uniform",
    "sequence_parallel": "of more than one tensor rank",
    "tokenizer_type": "GPT2BPETokenizer is what None comes to",
    "account_for_embedding_in_pipeline_split": "of more than one stage",
    "account_for_loss_in_pipeline_split": "of more than one stage",
    "checkpoint_scale": "of a checkpoint_factor",
    "experiment_name": "of save",
    "exit_signal": "of exit_signal_handler",
    "exit_signal_handler": "every native run saves and ends at SIGTERM; beside it exit_signal may be another",
    "gpt_j_tied": "of gpt_j_residual",
    "mlp_multiple_of": "the width is such a multiple",
    "pipe_partition_method": "of more than one stage",
    "precision": "fp32 is what None comes to",
    "rms_norm_epsilon": "of norm rmsnorm",
    **dict.fromkeys(("wandb_group", "wandb_project", "wandb_run_name", "wandb_team"), "of use_wandb"),
}


def build_megatron(name):
    of = version("megatron", name)

    def build(given):
        options = Options(of, given, megatron.IGNORED)
        return megatron._config(options, OWN, 8, []), options

    return of, build


def build_neox(name):
    of = version("neox", name)

    def build(given):
        options = Options(of, given, neox.IGNORED)
        return neox._config(options, OWN, of, 8), options

    return of, build


def build_oneflow(name):
    of = version("oneflow", name)

    def build(given):
        options = Options(of, given, oneflow.IGNORED)
        return oneflow._config(options, OWN, 8), options

    return of, build


def build_glm(name):
    of = version("glm", name)

    def build(given):
        options = Options(of, given, glm.IGNORED)
        return glm._config(options, OWN, 8), options

    return of, build


@pytest.fixture(autouse=True)
def files_of_glm(tmp_path, monkeypatch):
    """What GLM's options name: a vocabulary, text, and a model of languages."""
    monkeypatch.chdir(tmp_path)
    words = tmp_path / ".pytorch_pretrained_bert"
    words.mkdir()
    (words / "gpt2-vocab.json").write_text(json.dumps({str(number): number for number in range(500)}))
    for name in (words / "gpt2-merges.txt", "x", "something", "7", "8", "lid.176.bin"):
        (tmp_path / name).write_text("")


EVERY_LINE = pytest.mark.parametrize(
    ("of", "build", "base", "fewest"),
    [
        *((*build_megatron(name), {**MEGATRON, "data_path": ["x"]}, 130) for name in megatron.VERSIONS),
        *((*build_neox(name), {**NEOX, "data_path": "x"}, 200) for name in neox.VERSIONS),
        (*build_oneflow("gpt"), ONEFLOW, 50),
        (*build_glm("4f61ed7"), GLM, 170),
    ],
    ids=lambda value: f"{value.dialect}-{value.name}" if hasattr(value, "dialect") else "",
)


@EVERY_LINE
def test_every_option_of_upstream_is_used_or_noted_or_refused(of, build, base, fewest):
    assert len(of.options) >= fewest
    assert set(unheeded(build, base, of.options)) <= set(BESIDE_OTHERS)


@EVERY_LINE
def test_no_value_is_answered_with_a_traceback(of, build, base, fewest):
    assert tripping(build, base, of.options) == []


@pytest.mark.parametrize("module", [glm, megatron, neox, oneflow])
def test_what_is_ignored_is_upstreams_and_stands_once(module):
    dialect = module.__name__.rpartition(".")[2]
    known = set().union(*(version(dialect, name).defaults for name in module.VERSIONS))
    names = [name for names in module.IGNORED.values() for name in names.split()]
    assert sorted(names) == sorted(set(names))
    # What forks of the guides add to upstream's own keys.
    assert set(names) - known <= {"use_triangle_attn", "async_tensor_model_parallel_allreduce"}


def test_facts_are_of_the_commits_that_the_guides_name():
    assert version("neox", "v2.0").source == "EleutherAI/gpt-neox@9610391a"
    assert {version("megatron", name).source for name in megatron.VERSIONS} >= {"NVIDIA/Megatron-LM@v2.5"}


@pytest.mark.parametrize(
    ("dialect", "names", "message"),
    [
        (
            "neox",
            ["num_layrs"],
            r"num_layrs: unknown to neox \(EleutherAI/gpt-neox@9610391a\) — did you mean num_layers\?",
        ),
        (
            "neox",
            ["zero_allow_untested_optimizer", "num_kv_heads"],
            "num_kv_heads: unknown .*newest has it, and not all of the others",
        ),
        ("megatron", ["--bogus-option-of-nobody"], "correct it or leave it out"),
    ],
)
def test_an_unknown_option_is_named_with_what_may_be_meant(dialect, names, message):
    lines = {"neox": neox.VERSIONS, "megatron": megatron.VERSIONS}[dialect]
    (problem,) = choose_version(dialect, names, lines, None)[1]
    assert re.search(message, problem)


def test_the_first_line_that_knows_every_option_is_meant():
    def chosen(dialect, names, lines, asked=None):
        return choose_version(dialect, names, lines, asked)[0].name

    assert chosen("neox", ["num_layers"], neox.VERSIONS) == "v2.0"
    assert chosen("neox", ["num_layers", "num_kv_heads"], neox.VERSIONS) == "newest"
    assert chosen("megatron", ["--num-layers", "--deepspeed"], megatron.VERSIONS) == "bigscience"
    assert chosen("megatron", ["--num-layers", "--swiglu"], megatron.VERSIONS) == "core_v0.9.0"
    assert chosen("megatron", ["--num-layers"], megatron.VERSIONS, "v2.5") == "v2.5"
    with pytest.raises(ConfigError, match="--upstream-version: 'v9', expected one of bigscience, v2.5"):
        chosen("megatron", [], megatron.VERSIONS, "v9")


@pytest.mark.parametrize(
    ("words", "version"),
    [
        ("--tokenizer-type NullTokenizer", "core_v0.9.0"),
        ("--tokenizer-type HFTokenizer", "deepspeed"),
        ("--position-embedding-type rotary", "bigscience"),
        ("--position-embedding-type rope", "core_v0.9.0"),
        ("--lr-decay-style WSD", "core_v0.9.0"),
    ],
)
def test_values_take_part_in_choosing_the_version(words, version):
    of, given, problems = parse("megatron", ["--num-layers", "2", *words.split()], megatron.VERSIONS, None)
    assert (of.name, problems) == (version, [])
    assert words.split()[1] in given.values()


def test_a_value_that_no_version_has_is_a_problem_and_the_rest_is_read():
    of, given, problems = parse(
        "megatron", ["x", "--seed", "q", "--lr-decay-style", "bent", "--bogus", "3", "--lr", "1", "2"], ["v2.5"], None
    )
    assert given == {"lr": 1.0}
    assert [problem.partition(" — ")[0] for problem in problems] == [
        "--bogus: unknown to megatron (NVIDIA/Megatron-LM@v2.5)",
        "'x': belongs to no option, expected --name value",
        "argument --seed: invalid int value: 'q'",
        "argument --lr-decay-style: invalid choice: 'bent' (choose from 'constant', 'linear', 'cosine')",
        "'2': belongs to no option, expected --name value",
    ]


@pytest.mark.parametrize(
    ("dialect", "name", "same"),
    [
        ("neox", "save_interval", "checkpoint_factor"),
        ("neox", "global_batch_size", "train_batch_size"),
        ("neox", "lr", '"optimizer": {"params": {"lr": ...}}'),
        ("megatron", "--checkpoint-factor", "--save-interval"),
        ("megatron", "--train_micro_batch_size_per_gpu", "--micro-batch-size"),
        ("oneflow", "--data-path", "--dataset"),
    ],
)
def test_an_option_of_another_dialect_is_named_as_it_is_called_here(dialect, name, same):
    lines = {"neox": neox.VERSIONS, "megatron": megatron.VERSIONS, "oneflow": oneflow.VERSIONS}[dialect]
    assert same_options(dialect, name, version(dialect, lines[0]).options) == same


def test_what_names_the_same_in_other_dialects_are_options_of_theirs():
    known = {
        name
        for module in (megatron, neox, oneflow)
        for one in module.VERSIONS
        for name in version(_of(module), one).options
    }
    assert set(_SAME.split()) <= known


def _of(module):
    return module.__name__.rpartition(".")[2]


def test_recorded_defaults_are_plain_data():
    for module in (megatron, neox, oneflow):
        for name in module.VERSIONS:
            json.dumps(version(module.__name__.rpartition(".")[2], name).defaults)
