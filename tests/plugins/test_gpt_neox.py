"""The patches of GPT-NeoX on stand-ins of the functions they target, which have the recorded signatures."""

from __future__ import annotations

import inspect
import json
import logging
import sys
from types import SimpleNamespace

import code_base_records
import forked
import numpy
import pytest
import torch
from code_bases import code_base
from stand_ins import Site
from torch.utils import cpp_extension

import ascend_adapt
from ascend_adapt.errors import ConfigError
from ascend_adapt.testing import upstream_facts
from ascend_adapt_plugins.gpt_neox import _rotary

B, N, S, D = 2, 3, 8, 4
FUTURE = torch.ones(S, S, dtype=torch.bool).triu(1)
ARGUMENTS = """
    import dataclasses

    @dataclasses.dataclass
    class NeoXArgs:
        finetune: bool = False
        num_layers: int = 1
        save: str = ""
        fp16: dict = None
        bf16: dict = None

        gradient_clipping: float = 1.0
        steps_per_print: int = 10
        wall_clock_breakdown: bool = False

        optimizer: dict = None

        def __post_init__(self):
            self.validate_types()
            self.calculate_derived()

        def validate_types(self):
            for name, field in self.__dataclass_fields__.items():
                value = getattr(self, name)
                if value is not None and type(value) != field.type and (type(value), field.type) != (int, float):
                    assert field.type.__origin__

        @property
        def deepspeed_config(self):
            named = ("gradient_clipping", "steps_per_print", "wall_clock_breakdown")
            return {name: getattr(self, name) for name in named if getattr(self, name) != getattr(NeoXArgs, name)}

        def calculate_derived(self):
            {derive}

        @classmethod
        def from_ymls(cls, paths_to_yml_files, overwrite_values=None):
            return cls(**paths_to_yml_files, **(overwrite_values or {}))
    """
NEWEST_DERIVES = (
    "self.precision = [k for k in ('fp16', 'bf16') if (getattr(self, k) or {}).get('enabled')] + [self.bf16]"
)
V2_0_DERIVES = "self.precision = (self.fp16 or {}).get('type')"
TRAINING = """
    def forward_step(
        data_iterator, model, neox_args, timers, return_logits=False, is_train=False, reference_model=None
    ):
        return model(return_logits)
    def evaluate(forward_step_fn):
        {evaluate}
    """
WITH_METRICS = "loss, metric_dict = forward_step_fn; return loss"
CHECKPOINTING = """
    def load_checkpoint(neox_args, model, optimizer, lr_scheduler, inference=False, iteration=None):
        name, state = model.load_checkpoint(neox_args.load)
        return 0 if name is None else state["iteration"]
    """
# The numbers of ea7aefd8's attention: scores scaled when they are made, a mask that is filled in, softmax, product.
TRANSFORMER = """
    import torch
    class ParallelSelfAttention:
        def attention(self, query_layer, key_layer, value_layer, layer_past, attention_mask):
            query, key, value = (x.permute(1, 2, 0, 3) for x in (query_layer, key_layer, value_layer))
            scores = query @ key.transpose(-1, -2) / self.norm_factor * (self.scale_mask_softmax.scale or 1.0)
            scores = scores.masked_fill(attention_mask, torch.finfo(scores.dtype).min)
            return scores.softmax(-1) @ value
    """


@pytest.fixture
def neox(site: Site, monkeypatch, bodies_of_stand_ins) -> Site:
    monkeypatch.setenv("ASCEND_ADAPT_PLUGINS", "gpt_neox,adapted_by_hand")
    site.write(
        megatron__neox_arguments____init__="",
        megatron__neox_arguments__arguments=ARGUMENTS.replace("{derive}", NEWEST_DERIVES),
        megatron__training=TRAINING.format(evaluate=WITH_METRICS),
        megatron__checkpointing=CHECKPOINTING,
        megatron__model__transformer=TRANSFORMER,
    )
    return site


def state(patch: str) -> str:
    return str(ascend_adapt.status()[f"gpt_neox.{patch}"].state)


def test_the_stand_ins_have_the_recorded_signatures(neox: Site) -> None:
    import megatron.checkpointing
    import megatron.model.transformer
    import megatron.neox_arguments.arguments
    import megatron.training

    one = code_base("gpt-neox")
    record = upstream_facts.load(code_base_records.path_of(one))
    ours = {
        "ascend_fork_settings": megatron.neox_arguments.arguments.NeoXArgs.from_ymls.__func__,
        "loss_and_metrics": megatron.training.forward_step,
        "require_finetune_checkpoint": megatron.checkpointing.load_checkpoint,
        "fused_attention": megatron.model.transformer.ParallelSelfAttention.attention,
    }
    for patch in code_base_records.patches_of(one):
        if patch.name in ours:
            (recorded,) = record.of(patch, one.commit).signatures
            names = [word.partition(":")[0].partition("=")[0].strip() for word in recorded.strip("()").split(",")]
            assert list(inspect.signature(ours[patch.name]).parameters) == names, patch.name


def test_a_guides_settings_are_understood(neox: Site, caplog) -> None:
    ascend_adapt.enable(device="cuda")
    from megatron.neox_arguments.arguments import NeoXArgs

    given = {"finetune": "True", "use_triangle_attn": True, "save": "False", "num_layers": 2}
    with caplog.at_level(logging.WARNING):
        made = NeoXArgs.from_ymls(given)
    assert (made.finetune, made.num_layers, made.save) == (True, 2, "False")
    assert "use_triangle_attn: is a setting of Ascend's fork, ignored" in caplog.text
    for wrong in ({"no_such_setting": 1}, {"async_tensor_model_parallel": True}):
        with pytest.raises(TypeError, match="unexpected keyword"):
            NeoXArgs.from_ymls(wrong)
    with pytest.raises(TypeError, match="unexpected keyword"):
        NeoXArgs(use_triangle_attn=True)  # only what is read from a file is a guide's


@pytest.mark.parametrize(("written", "read"), [("1e-5", 1e-5), ("6.0e-5", 6e-5), ("2", 2.0), (1, 1)])
def test_a_number_that_yaml_takes_for_a_text_is_one(neox: Site, written, read) -> None:
    ascend_adapt.enable(device="cuda")
    from megatron.neox_arguments.arguments import NeoXArgs

    optimizer = {"type": "Adam", "params": {"eps": written, "betas": [0.9, 0.95], "torch_adam": True}}
    made = NeoXArgs.from_ymls({"gradient_clipping": written, "optimizer": optimizer, "num_layers": "1e2"})
    assert (made.gradient_clipping, made.num_layers) == (read, 100)
    assert made.optimizer["params"] == {"eps": read, "betas": [0.9, 0.95], "torch_adam": True}
    assert optimizer["params"]["eps"] == written  # what the user's file says is kept beside the run


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("finetune", "maybe", "true or false"),
        ("num_layers", 1.5, "an integer"),
        ("gradient_clipping", "1e", "a number"),
    ]
    + [("gradient_clipping", "nan", "a number"), ("save", 3, "a string"), ("fp16", True, "a section")],
)
def test_a_setting_of_another_type_is_named(neox: Site, name, value, expected) -> None:
    ascend_adapt.enable(device="cuda")
    from megatron.neox_arguments.arguments import NeoXArgs

    with pytest.raises(ConfigError, match=f"{name}: {value!r}, expected {expected} — correct it in the configuration"):
        NeoXArgs.from_ymls({name: value, "steps_per_print": 1})


def test_a_loss_alone_becomes_a_pair_and_a_pair_stays(neox: Site) -> None:
    ascend_adapt.enable(device="cuda")
    from megatron.training import forward_step

    given = (None, lambda with_logits: ("loss", "logits") if with_logits else "loss", SimpleNamespace(), None)
    assert forward_step(*given) == ("loss", {})
    assert forward_step(*given, return_logits=True) == ("loss", "logits")


def test_an_evaluate_without_metrics_keeps_the_loss_alone(neox: Site) -> None:
    neox.write(megatron__training=TRAINING.format(evaluate="loss = forward_step_fn; return loss"))
    ascend_adapt.enable(device="cuda")
    from megatron.training import forward_step

    assert state("loss_and_metrics") == "not_needed"
    assert forward_step(None, lambda _: "loss", SimpleNamespace(), None) == "loss"


def test_only_an_optimizer_that_scales_the_loss_is_asked_for_overflows(neox: Site) -> None:
    neox.write(
        megatron__utils="""
            class OverflowMonitor:
                def __init__(self, optimizer):
                    self.optimizer, self.history = optimizer, []
                def check(self, skipped):
                    self.history.append(skipped)
                    self.optimizer.overflow
            """
    )
    ascend_adapt.enable(device="cpu")
    from megatron.utils import OverflowMonitor

    plain, scaling = OverflowMonitor(SimpleNamespace()), OverflowMonitor(SimpleNamespace(overflow=False))
    for monitor in (plain, scaling):
        monitor.check(1)
    assert (plain.history, scaling.history) == ([], [1])


class Engine:
    """An engine that finds ``found``."""

    def __init__(self, found: str | None) -> None:
        self.found = found

    def load_checkpoint(self, load: str) -> tuple[str | None, dict[str, int]]:
        return self.found, {"iteration": 3}


def test_a_finetune_of_nothing_is_refused(neox: Site) -> None:
    ascend_adapt.enable(device="cuda")
    from megatron.checkpointing import load_checkpoint

    finetune, resume = (SimpleNamespace(load="empty", finetune=value) for value in (True, False))
    with pytest.raises(FileNotFoundError, match="empty: no checkpoint to finetune found"):
        load_checkpoint(finetune, Engine(None), None, None)
    assert load_checkpoint(resume, Engine(None), None, None) == 0  # a fresh start, as all guides begin
    engine = Engine("global_step3")
    assert load_checkpoint(neox_args=finetune, model=engine, optimizer=None, lr_scheduler=None) == 3
    assert "load_checkpoint" not in vars(engine)


@pytest.mark.parametrize("coefficient", [None, 3.0])
@pytest.mark.parametrize("window", [None, 3])
def test_the_attention_is_upstreams(neox: Site, coefficient, window) -> None:
    mask = FUTURE if window is None else FUTURE | ~torch.ones(S, S, dtype=torch.bool).triu(-window)
    torch.manual_seed(0)
    inputs = [torch.randn(S, B, N, D, dtype=torch.float64) for _ in range(3)]
    found = []
    for device in ("cpu", "cuda"):
        ascend_adapt.enable(device=device)
        from megatron.model.transformer import ParallelSelfAttention

        layer = ParallelSelfAttention()
        vars(layer).update(use_cache=False, rpe=None, pos_emb="rotary", dropout_p=0.1, training=False)
        vars(layer).update(norm_factor=2.0, scale_mask_softmax=SimpleNamespace(scale=coefficient))
        leaves = [one.clone().requires_grad_() for one in inputs]
        result = layer.attention(*leaves, None, mask.expand(1, 1, S, S))
        assert state("fused_attention") == ("skipped" if device == "cpu" else "applied")
        result.sin().sum().backward()
        found.append([result.detach(), *(leaf.grad for leaf in leaves)])
        ascend_adapt.disable()
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs)


def test_calls_that_only_upstream_knows_are_left_to_it(neox: Site) -> None:
    ascend_adapt.enable(device="cuda")
    from megatron.model.transformer import ParallelSelfAttention

    layer = ParallelSelfAttention()
    vars(layer).update(use_cache=True, rpe=None, pos_emb="rotary")
    with pytest.raises(AttributeError, match="norm_factor"):  # upstream's own code asks for it first
        layer.attention(*torch.ones(3, S, B, N, D), None, None)


ENGINE = """
    import torch

    class DeepSpeedEngine:
        asked_for = None

        def _mixed_precision_dtypes(self):
            buffer_dtype = None
            if self.asked_for is not None:
                buffer_dtype = self.asked_for
            return self.param_dtype, buffer_dtype
    """
CONFIG = """
    class DeepSpeedConfig:
        def _initialize_params(self, param_dict):
            pass
    """


def test_buffers_are_of_the_parameters_type_unless_another_is_asked_for(neox: Site, monkeypatch) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "deepspeed"]:
        monkeypatch.delitem(sys.modules, name)  # the real one, which another test imported
    neox.write(deepspeed__runtime__engine=ENGINE, deepspeed__runtime__config=CONFIG)
    neox.install("deepspeed", "0.19.2")
    ascend_adapt.enable(device="cpu")
    import megatron.training  # noqa: F401 - the host is known
    from deepspeed.runtime.engine import DeepSpeedEngine

    assert state("buffers_in_model_dtype") == "applied"
    engine = DeepSpeedEngine()
    for of_parameters in (torch.half, torch.bfloat16, None):
        engine.param_dtype = of_parameters
        assert engine._mixed_precision_dtypes() == (of_parameters, of_parameters)
    engine.param_dtype, engine.asked_for = torch.half, torch.float32
    assert engine._mixed_precision_dtypes() == (torch.half, torch.float32)


OF_BFLOAT16 = {"enabled": True, "type": "bfloat16", "auto_cast": True, "loss_scale": 0, "hysteresis": 2}


@pytest.mark.parametrize(
    ("given", "fp16", "precision"),
    [
        ({"fp16": OF_BFLOAT16}, None, ["bf16", {"enabled": True}]),  # as pythia/1B.yml has it
        ({"fp16": {**OF_BFLOAT16, "enabled": False}}, None, [{"enabled": False}]),
        ({"fp16": OF_BFLOAT16, "bf16": {"enabled": True, "own": 1}}, None, ["bf16", {"enabled": True, "own": 1}]),
        ({"fp16": {"type": "fp16", "enabled": True}}, {"type": "fp16", "enabled": True}, ["fp16", None]),
        ({}, None, [None]),
    ],
)
def test_the_newest_reads_the_type_of_fp16(neox: Site, given, fp16, precision) -> None:
    ascend_adapt.enable(device="cpu")
    from megatron.neox_arguments.arguments import NeoXArgs

    assert state("fp16_section_type") == "applied"
    made = NeoXArgs.from_ymls(given)
    assert (made.fp16, made.precision) == (fp16, precision)


def test_v2_0_reads_the_type_of_fp16_itself(neox: Site) -> None:
    neox.write(megatron__neox_arguments__arguments=ARGUMENTS.replace("{derive}", V2_0_DERIVES))
    ascend_adapt.enable(device="cpu")
    from megatron.neox_arguments.arguments import NeoXArgs

    made = NeoXArgs.from_ymls({"fp16": OF_BFLOAT16})
    assert (state("fp16_section_type"), made.fp16, made.precision) == ("not_needed", OF_BFLOAT16, "bfloat16")


CLIPPING = (
    "import json, logging, sys\nimport ascend_adapt\n"
    "logging.basicConfig(stream=sys.stdout)\nascend_adapt.enable(device='cpu')\n"
    "from megatron.neox_arguments.arguments import NeoXArgs\n"
    "made = NeoXArgs.from_ymls({given})\n"
    "assert made.deepspeed_config == made.deepspeed_config\n"
    "print(json.dumps(made.deepspeed_config))\n"
)


@pytest.mark.parametrize(
    ("given", "numerics", "theirs", "reported", "warned"),
    [
        ({}, "", 1.0, {"steps_per_print": 10}, ""),
        (
            {"steps_per_print": 2},
            "upstream",
            0.0,
            {"steps_per_print": 2},
            "1.0 is GPT-NeoX's default, which it does not pass",
        ),
        ({}, "exact", 0.0, {"steps_per_print": 10, "gradient_clipping": 1.0}, ""),
        ({"gradient_clipping": 0.5}, "", 0.0, {"steps_per_print": 10, "gradient_clipping": 0.5}, ""),
        ({"gradient_clipping": 0.5}, "exact", 0.0, {"steps_per_print": 10, "gradient_clipping": 0.5}, ""),
    ],
)
def test_gpt_neoxs_own_defaults_reach_deepspeed(neox: Site, given, numerics, theirs, reported, warned) -> None:
    """Clipping, which changes numbers, only if asked for; a difference is reported, once, and what to do."""
    neox.package("deepspeed.runtime", "")
    neox.write(deepspeed__runtime__constants=f"GRADIENT_CLIPPING_DEFAULT = {theirs}\n")
    script = CLIPPING.format(given=given)
    output = neox.fork(script, ASCEND_ADAPT_NUMERICS=numerics, ASCEND_ADAPT_PLUGINS="gpt_neox")
    assert json.loads(output.splitlines()[-1]) == reported
    assert output.count("is GPT-NeoX's default, which it does not pass to DeepSpeed, whose default is") == (
        1 if warned else 0
    )
    assert warned in output


ENGINE_IN_BFLOAT16 = """
import json, sys
import ascend_adapt
from ascend_adapt.errors import ConfigError
stage, disabled = json.loads(sys.argv[1])
ascend_adapt.enable(device="cpu", disable=disabled)
import megatron.training, torch, deepspeed
section = {"enabled": True, "type": "bfloat16", "loss_scale": 0, "loss_scale_window": 1000, "min_loss_scale": 1}
given = {"train_batch_size": 1, "fp16": section, "zero_optimization": {"stage": stage}}
model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.LayerNorm(4))
optimizer = deepspeed.ops.adam.FusedAdam(model.parameters(), lr=0.001)
engine, optimizer, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=given)
assert engine.bfloat16_enabled() and not engine.fp16_enabled() and given["fp16"] is section
assert {one.dtype for one in engine.module.parameters()} == {torch.bfloat16}
masters = optimizer.single_partition_of_fp32_groups if stage else optimizer.fp32_groups_flat
assert {one.dtype for one in masters} == {torch.float32}
loss = engine(torch.ones(1, 4, dtype=torch.bfloat16)).float().pow(2).sum()
engine.backward(loss)
engine.step()
print("trained")
"""


@pytest.mark.parametrize(
    ("stage", "disabled", "reported"),
    [(0, [], ""), (1, [], ""), (0, ["gpt_neox.bfloat16_in_fp16_section"], "Extra inputs are not permitted")],
)
def test_the_engine_trains_in_bfloat16_where_the_type_of_fp16_says_so(neox: Site, stage, disabled, reported) -> None:
    """On the installed DeepSpeed: parameters in bfloat16, norms' too, masters in fp32."""
    rank = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0", "RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}
    ours = {"ASCEND_ADAPT_PLUGINS": "gpt_neox,deepspeed", "PYTHONPATH": str(neox.folder), "DS_ACCELERATOR": "cpu"}
    job = forked.run(ENGINE_IN_BFLOAT16, neox.folder, json.dumps([stage, disabled]), **rank, **ours)
    if reported:
        assert reported in job.stderr
        assert "trained" not in job.stdout
    else:
        assert job.stdout.endswith("trained\n"), job.stderr


EXPANDING = """
    def expand_attention_types(attention_config, num_layers):
        if all(isinstance(one, str) for one in attention_config):
            return attention_config
        return [one for types, count in attention_config for _ in range(count) for one in types]
    """


@pytest.mark.parametrize(("device", "becomes"), [("cpu", "global"), ("npu", "global"), ("cuda", "flash")])
def test_flash_attention_is_asked_for_where_there_is_none(neox: Site, device, becomes) -> None:
    neox.write(
        megatron__utils=EXPANDING,
        megatron__neox_arguments__arguments=f"{ARGUMENTS}\n    from megatron.utils import expand_attention_types\n",
    )
    ascend_adapt.enable(device=device)
    from megatron.neox_arguments.arguments import expand_attention_types

    assert state("flash_attention_as_global") == ("skipped" if device == "cuda" else "applied")
    given = [[["flash", "bigbird"], 2]]
    assert expand_attention_types(given, num_layers=4) == [becomes, "bigbird"] * 2
    assert given == [[["flash", "bigbird"], 2]]
    assert expand_attention_types(["flash", "global"], 2) == [becomes, "global"]


def test_the_rotary_extension_turns_and_turns_back() -> None:
    torch.manual_seed(0)
    angles = torch.randn(5, 1, 1, 2, dtype=torch.double).repeat(1, 1, 1, 2)
    t = torch.randn(5, B, N, 8, dtype=torch.double, requires_grad=True)
    turned = _rotary.forward(t, angles)
    pairs = torch.view_as_complex(torch.stack((t[..., :2], t[..., 2:4]), -1)) * torch.polar(
        torch.ones_like(angles[..., :2]), angles[..., :2]
    )
    torch.testing.assert_close(turned, torch.cat((pairs.real, pairs.imag, t[..., 4:]), -1))
    cotangent = torch.randn_like(turned)
    turned.backward(cotangent)
    torch.testing.assert_close(_rotary.backward(cotangent, angles), t.grad)
    cached = _rotary.forward_cached(t, angles.cos(), angles.sin(), True)
    assert torch.equal(cached, turned)
    assert cached.transpose(0, 1).is_contiguous()
    torch.testing.assert_close(_rotary.backward_cached(cotangent, angles.cos(), angles.sin()), t.grad)


@pytest.mark.parametrize(
    ("device", "cuda", "home", "compiles"),
    [
        ("cpu", None, None, False),
        ("cuda", "13.0", None, False),
        ("npu", None, "/usr/local/cuda", False),
        ("cpu", "13.0", "/usr/local/cuda", False),
        ("cuda", "13.0", "/usr/local/cuda", True),
    ],
)
def test_nothing_is_compiled_where_there_is_no_nvcc(neox: Site, monkeypatch, device, cuda, home, compiles) -> None:
    monkeypatch.setattr(torch.version, "cuda", cuda)
    monkeypatch.setattr(cpp_extension, "CUDA_HOME", home)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: device == "cuda")  # a job on the CPU sees no GPU
    neox.write(
        megatron__model__fused_rope="",
        megatron__fused_kernels="def load(neox_args=None):\n    return 'compiled'",
        megatron__rope="import fused_rotary_positional_embedding as extension",
    )
    ascend_adapt.enable(device=device)
    from megatron.fused_kernels import load
    from megatron.rope import extension

    assert load() == ("compiled" if compiles else None)
    assert extension.forward is _rotary.forward
    with pytest.raises(ModuleNotFoundError):
        __import__("fused_rotary_positional_embedding_of_nobody")


def test_no_helpers_are_compiled_and_ours_are_used(neox: Site) -> None:
    builds = "def build(*args):\n    from megatron.data import helpers\n    return helpers.build_sample_idx{}(*args)\n"
    neox.write(
        megatron__data__data_utils="def compile_helper():\n    import sys\n    sys.exit(1)\n",
        megatron__data__gpt2_dataset=builds.format("_int32"),
        megatron__data__of_v2_0=builds.format(""),
    )
    ascend_adapt.enable(device="cpu")
    from megatron.data.data_utils import compile_helper
    from megatron.data.gpt2_dataset import build
    from megatron.data.of_v2_0 import build as build_of_v2_0

    assert compile_helper() is None
    sizes, documents = numpy.array([5, 4, 6], dtype=numpy.int32), numpy.array([2, 0, 1], dtype=numpy.int32)
    for index in (build(sizes, documents, 4, 1, 15), build_of_v2_0(sizes, documents, 4, 1, 15)):
        assert index.tolist() == [[0, 0], [0, 4], [1, 2], [2, 1]]
        assert index.dtype == numpy.int32


def test_helpers_that_somebody_compiled_are_used(neox: Site) -> None:
    neox.write(
        megatron__data__helpers="def build_sample_idx(*args):\n    return 'compiled'\n",
        megatron__data__of_v2_0="from megatron.data import helpers\n",
    )
    ascend_adapt.enable(device="cpu")
    from megatron.data.of_v2_0 import helpers

    assert helpers.build_sample_idx() == "compiled"


@pytest.fixture
def v2_0(neox: Site) -> Site:
    """v2.0's training, which imports a harness that imports what is not to be had beside today's packages."""
    neox.write(
        megatron__model__flash_attention="",
        megatron__training="""
            from eval_tasks import run_eval_harness

            def pretrain(neox_args):
                print("training")
                return run_eval_harness("the model", eval_tasks=neox_args.eval_tasks) if neox_args.eval_tasks else None

            def forward_step(data_iterator, model, neox_args, timers, return_logits=False, is_train=False):
                return model
            """,
        eval_tasks__adapter="def run_eval_harness(model, eval_tasks):\n    return f'{model} does {eval_tasks}'\n",
        eval_tasks="from lm_eval.models.gpt2 import GPT2LM\nfrom .adapter import run_eval_harness\n",
    )
    return neox


PRETRAIN = """
import ascend_adapt
from ascend_adapt.errors import ConfigError
from types import SimpleNamespace
ascend_adapt.enable(device="cpu")
from megatron.training import pretrain
try:
    print(pretrain(neox_args=SimpleNamespace(eval_tasks={asked})))
except ImportError as error:
    print(error)
"""


@pytest.mark.parametrize("harness", [None, "raise TypeError('method_whitelist')", "class GPT2LM: pass"])
def test_training_v2_0_imports_the_evaluation_harness_only_where_it_is_asked_for(v2_0: Site, harness: str) -> None:
    if harness:
        v2_0.write(lm_eval__models__gpt2=harness)
    assert v2_0.run(PRETRAIN.format(asked=None), ASCEND_ADAPT_PLUGINS="gpt_neox").split() == ["training", "None"]
    reported = v2_0.run(PRETRAIN.format(asked=["lambada"]), ASCEND_ADAPT_PLUGINS="gpt_neox").splitlines()
    if harness == "class GPT2LM: pass":
        assert reported == ["training", "the model does ['lambada']"]
        return
    (reported,) = reported  # before training
    assert reported.startswith(f"eval_tasks: cannot be imported ({'TypeError' if harness else 'ModuleNotFoundError'}: ")
    assert "but eval_tasks need it — pip install lm_eval==0.3.0 best_download" in reported


def test_the_tools_of_both_versions_convert_to_todays_transformers(neox: Site) -> None:
    neox.write(megatron__model__flash_attention="")
    code = """
import ascend_adapt
from ascend_adapt.errors import ConfigError
ascend_adapt.enable(device="cpu")
import megatron.model.flash_attention
from transformers import GPTNeoXConfig, GPTNeoXForCausalLM

sizes = dict(vocab_size=64, hidden_size=32, num_hidden_layers=1, num_attention_heads=4, intermediate_size=64)
model = GPTNeoXForCausalLM(GPTNeoXConfig(**sizes, max_position_embeddings=16))
assert model.embed_out is model.get_output_embeddings()
layer = model.gpt_neox.layers[0]
weights = {name: value + 1 for name, value in layer.state_dict().items() if value is not None}
constants = {name: layer.state_dict()[name] for name in ("attention.bias", "attention.masked_bias")}
layer.load_state_dict({**weights, **constants, "attention.rotary_emb.inv_freq": 1.0})
assert all((layer.state_dict()[name] == value).all() for name, value in weights.items())
assert not [name for name in model.state_dict() if name.endswith(("masked_bias", "attention.bias", "inv_freq"))]
for wrong in (dict(list(weights.items())[1:]), {**weights, "no_such_weight": weights["attention.dense.bias"]}):
    try:
        layer.load_state_dict(wrong)
    except RuntimeError as error:
        print("refused")
"""
    assert neox.run(code, ASCEND_ADAPT_PLUGINS="gpt_neox").count("refused") == 2


def test_deepspeed_npu_is_an_import_that_does_nothing_and_says_so(neox: Site) -> None:
    enabled = "import ascend_adapt; ascend_adapt.enable(device='cpu'); "
    code = enabled + "import deepspeed_npu; print(deepspeed_npu.__spec__.origin)"
    assert "provided by patch 'deepspeed_npu'" in neox.run(code, ASCEND_ADAPT_PLUGINS="adapted_by_hand")
