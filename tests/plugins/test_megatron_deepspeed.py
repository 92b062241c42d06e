"""The patches of both Megatron-DeepSpeed forks on stand-ins of their targets, which have the real signatures."""

from __future__ import annotations

import argparse
import inspect
import logging
import os
from types import SimpleNamespace

import code_base_records
import numpy
import pytest
import torch
from stand_ins import Site

import ascend_adapt
from ascend_adapt.testing import upstream_facts
from ascend_adapt_plugins.megatron_deepspeed import attention, cuda_extensions, loss

B, N, S = 2, 3, 8
FUTURE = torch.ones(S, S, dtype=torch.bool).triu(1)
DOCUMENTS = FUTURE | (torch.arange(S)[:, None] >= 5) & (torch.arange(S)[None] < 5)
ARGUMENTS = "def validate_args(args, defaults={}):\n    return args\n"
DEEPSPEEDAI = {"megatron__core__marker": "", "megatron__arguments": ARGUMENTS}
BIGSCIENCE = {"megatron__arguments": "", "megatron__enums": ""}
FORKS = {"masked_causal_softmax": DEEPSPEEDAI, "masked_causal_softmax_asserted": BIGSCIENCE}

# What both have at the target, in their order of arguments; what it was given is kept.
SOFTMAX = """
    class FusedScaleMaskSoftmax:
        def __init__(self, kind, scale):
            import types
            self.attn_mask_type, self.scale, self.given = types.SimpleNamespace(name=kind), scale, []
        def forward(self, input, mask):
            self.given.append(mask)
            return "upstream's own"
    """


PIPE = """
    class GPTModelPipe:
        def __init__(self, num_tokentypes=0, parallel_output=True, attn_mask_type=None):
            pass
    """

OPTIMIZER = """
    from torch.optim import Adam
    FUSED = []
    def get_megatron_optimizer(model, no_weight_decay_cond=None, scale_lr_cond=None, lr_mult=1.0):
        global Adam
        if FUSED:
            Adam = FUSED[0]
        return Adam(model, lr=0.1, weight_decay=0.5)
    """
# Whose drift is reported even where nobody asked.
GRAVE = {
    "megatron__model__fused_softmax": SOFTMAX,
    "megatron__model__gpt_model": PIPE,
    "megatron__optimizer": OPTIMIZER,
}


def right(scores, hidden, scale=1.0):
    return (scores.double() * scale).masked_fill(hidden, float("-inf")).softmax(-1)


def four_axes(mask, batch=1):
    return mask.expand(batch, 1, S, S).clone()


@pytest.fixture(params=FORKS)
def fork(request, site: Site, monkeypatch) -> str:
    monkeypatch.setenv("ASCEND_ADAPT_PLUGINS", "megatron_deepspeed")
    site.write(**FORKS[request.param], **GRAVE)
    return str(request.param)


@pytest.fixture
def softmax(fork: str):
    with ascend_adapt.enabled(device="cpu") as status:
        from megatron.model.fused_softmax import FusedScaleMaskSoftmax

        assert ascend_adapt.status()[fork].state == "applied", status[fork]
        yield FusedScaleMaskSoftmax


@pytest.mark.parametrize("scale", [None, 3.0])
@pytest.mark.parametrize("batch", [1, B])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_mask_of_documents_is_seen_and_so_is_causality(softmax, scale, batch, dtype) -> None:
    scores = torch.randn(B, N, S, S, generator=torch.Generator().manual_seed(0)).to(dtype).requires_grad_()
    layer = softmax("causal", scale)
    # Half of the mask says nothing of the future, as a mask of padding does.
    for mask in (four_axes(DOCUMENTS, batch), four_axes(DOCUMENTS & ~FUTURE, batch)):
        found = layer.forward(scores, mask)
        assert found.dtype == dtype
        exact = right(scores.detach(), DOCUMENTS, scale or 1.0)
        torch.testing.assert_close(found.double(), exact, atol=4e-3 if dtype == torch.bfloat16 else 1e-6, rtol=0)
        assert not found.detach()[..., DOCUMENTS].any()
    found.sum().backward()
    assert torch.isfinite(scores.grad).all()
    assert layer.given == []


def test_a_causal_mask_takes_the_causal_kernel(softmax, fork) -> None:
    layer = softmax("causal", None)
    mask = four_axes(FUTURE)
    assert layer.forward(torch.zeros(B, N, S, S), mask) == "upstream's own"
    expected = mask if fork == "masked_causal_softmax" else None  # bigscience's asserts that there is none
    assert layer.given[0] is expected
    mask[..., 7, 0] = True  # the same tensor says something else now
    assert torch.is_tensor(layer.forward(torch.zeros(B, N, S, S), mask))


@pytest.mark.parametrize(("kind", "mask"), [("causal", None), ("padding", four_axes(DOCUMENTS)), ("padding", None)])
def test_other_layers_and_no_mask_are_upstreams(softmax, kind, mask) -> None:
    layer = softmax(kind, None)
    assert layer.forward(torch.zeros(B, N, S, S), mask) == "upstream's own"
    assert layer.given == [mask]


def test_keys_that_were_seen_before_are_seen(softmax) -> None:
    """With more keys than queries, causality is that of the last queries."""
    scores, hidden = torch.randn(B, N, 2, S), FUTURE[-2:]
    found = softmax("causal", None).forward(scores, (hidden & False)[None, None])
    torch.testing.assert_close(found.double(), right(scores, hidden), atol=1e-6, rtol=0)


@pytest.mark.parametrize(("reset", "expected"), [(True, False), (False, True)])
def test_a_reset_mask_goes_down_the_pipe(site: Site, monkeypatch, reset, expected) -> None:
    monkeypatch.setenv("ASCEND_ADAPT_PLUGINS", "megatron_deepspeed")
    args = SimpleNamespace(reset_attention_mask=reset, pretrain_causal_attention=True)
    site.write(**BIGSCIENCE, **GRAVE)
    with ascend_adapt.enabled(device="cpu"):
        import megatron
        from megatron.model.gpt_model import GPTModelPipe

        megatron.get_args = lambda: args
        GPTModelPipe(num_tokentypes=0)
    assert args.pretrain_causal_attention is expected


HELPERS = """
    def compile_helper():
        import sys
        sys.exit(1)
    """


@pytest.mark.parametrize(("marked", "dtype"), [(DEEPSPEEDAI, numpy.int64), (BIGSCIENCE, numpy.int32)])
def test_helpers_that_do_not_compile_are_provided(site: Site, monkeypatch, caplog, marked, dtype) -> None:
    monkeypatch.setenv("ASCEND_ADAPT_PLUGINS", "megatron_deepspeed")
    uses = "def build(*args):\n    from megatron.data import helpers\n    return helpers.build_sample_idx(*args)\n"
    site.write(**marked, megatron__data__dataset_utils=HELPERS, megatron__data__gpt_dataset=uses)
    site.write(**GRAVE)
    with ascend_adapt.enabled(device="cpu"), caplog.at_level(logging.WARNING):
        from megatron.data.dataset_utils import compile_helper
        from megatron.data.gpt_dataset import build

        compile_helper()
        sizes, documents = numpy.array([5, 4, 6], dtype=numpy.int32), numpy.array([2, 0, 1], dtype=numpy.int32)
        index = build(sizes, documents, 4, 1, 15)
    assert "compiled nothing (1)" in caplog.text
    assert index.tolist() == [[0, 0], [0, 4], [1, 2], [2, 1]]
    assert index.dtype == dtype  # that of the code base's own


def test_gradient_accumulation_is_fused_only_where_it_can_be(site: Site, monkeypatch) -> None:
    monkeypatch.setenv("ASCEND_ADAPT_PLUGINS", "megatron_deepspeed")
    site.write(**DEEPSPEEDAI, **GRAVE)
    with ascend_adapt.enabled(device="cpu"):
        from megatron.arguments import validate_args

        args = SimpleNamespace(gradient_accumulation_fusion=True)
        assert validate_args(args).gradient_accumulation_fusion is False
        site.write(fused_weight_gradient_mlp_cuda="")
        args.gradient_accumulation_fusion = True
        assert validate_args(args, {}).gradient_accumulation_fusion is True


@pytest.mark.parametrize(
    ("cuda", "home", "gpu", "calls"),
    [(None, None, 0, 0), ("12.8", None, 1, 0), (None, "/cuda", 0, 0), ("12.8", "/cuda", 1, 1), ("12.8", "/cuda", 0, 0)],
)
def test_kernels_are_compiled_only_where_there_are_a_gpu_and_nvcc(monkeypatch, cuda, home, gpu, calls) -> None:
    from torch.utils import cpp_extension

    monkeypatch.setattr(torch.version, "cuda", cuda)
    monkeypatch.setattr(cpp_extension, "CUDA_HOME", home)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: bool(gpu))
    called = []
    cuda_extensions.no_build_without_nvcc.function(called.append, None, ("args",), {})
    assert called == ["args"] * calls


def test_kernels_that_cannot_be_compiled_are_those_that_are_provided(monkeypatch, caplog) -> None:
    from torch.utils import cpp_extension

    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(cpp_extension, "CUDA_HOME", "/cuda")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)

    def load(arguments: object) -> None:
        raise RuntimeError("Error building extension: Unsupported gpu architecture 'compute_70'")

    assert cuda_extensions.no_build_without_nvcc.function(load, None, ("args",), {}) is None
    assert "compute_70') — continuing with ascend_adapt's kernels" in caplog.text


def test_attention_gets_what_it_can_take_views_of() -> None:
    query, key, value = torch.randn(S, B, N, 3, 4).transpose(1, 2).unbind(-2)

    def upstream(query_layer, key_layer, value_layer, attention_mask):
        assert attention_mask == "mask"
        return [one.view(S, B * N, -1) for one in (query_layer, key_layer, value_layer)]

    for one, given in zip(
        attention.contiguous_attention.function(upstream, None, (query, key, value, "mask"), {}),
        (query, key, value),
        strict=True,
    ):
        assert torch.equal(one.view(given.shape), given)


D = 4


def core_attention(kind: str, coefficient: float | None = None) -> SimpleNamespace:
    """Stands for CoreAttention: the attributes that its forward reads."""
    return SimpleNamespace(
        attn_mask_type=SimpleNamespace(name=kind),
        norm_factor=D**0.5 * (coefficient or 1.0),
        scale_mask_softmax=SimpleNamespace(scale=coefficient),
        attention_dropout=torch.nn.Dropout(0.1),
        training=False,
        sequence_parallel=False,
    )


def right_attention(query, key, value, hidden):
    """Scores, mask, softmax and sum, [S, B, N, D] -> [S, B, N * D], in float64."""
    query, key, value = (each.double().permute(1, 2, 0, 3) for each in (query, key, value))
    probabilities = right(query @ key.transpose(-1, -2), hidden, D**-0.5)
    return (probabilities @ value).permute(2, 0, 1, 3).flatten(2)


@pytest.mark.parametrize("coefficient", [None, 2.0])
@pytest.mark.parametrize(
    ("kind", "mask", "hidden"),
    [
        ("causal", None, FUTURE),
        ("causal", four_axes(FUTURE), FUTURE),
        ("causal", four_axes(DOCUMENTS, B), DOCUMENTS),
        ("padding", four_axes(DOCUMENTS & ~FUTURE), DOCUMENTS & ~FUTURE),
        ("padding", None, FUTURE & False),
    ],
)
def test_the_attention_in_one_operation(kind, mask, hidden, coefficient) -> None:
    query, key, value = torch.randn(S, B, N, 3, D, generator=torch.Generator().manual_seed(0)).unbind(-2)

    def upstream(*_, **__):
        raise AssertionError("handed to upstream's own code")

    found = attention.fused_attention.function(
        upstream, core_attention(kind, coefficient), (query, key, value, mask), {}
    )
    torch.testing.assert_close(found.double(), right_attention(query, key, value, hidden), atol=1e-5, rtol=1e-5)


def test_the_attention_lies_as_the_next_layer_takes_a_view_of_it(monkeypatch) -> None:
    from ascend_adapt import kernels

    attend = kernels.attention
    # As flash attention leaves its result in memory: [B, S, N, D].
    as_flash = lambda *args, **more: attend(*args, **more).transpose(1, 2).contiguous().transpose(1, 2)  # noqa: E731
    monkeypatch.setattr(kernels, "attention", as_flash)
    found = attention.fused_attention.function(None, core_attention("causal"), (*torch.randn(3, S, B, N, D), None), {})
    assert found.view(S * B, N * D).shape == (S * B, N * D)


def one_rank(*_):
    return SimpleNamespace(size=lambda: 1)


@pytest.mark.parametrize(("patch", "marked"), [("fused_loss", DEEPSPEEDAI), ("fused_loss_mpu", BIGSCIENCE)])
def test_the_loss_in_one_operation(site: Site, monkeypatch, patch, marked) -> None:
    site.write(**marked, megatron__core__parallel_state="", megatron__mpu="")
    import megatron.core.parallel_state
    import megatron.mpu

    for module in (megatron.core.parallel_state, megatron.mpu):
        module.get_tensor_model_parallel_group = one_rank
    logits = torch.randn(S, B, 11, requires_grad=True)
    labels = torch.randint(0, 11, (S, B))
    found = getattr(loss, patch).function(None, None, (logits, labels), {})
    exact = torch.nn.functional.cross_entropy(logits.double().flatten(0, 1), labels.flatten(), reduction="none")
    torch.testing.assert_close(found.double().flatten(), exact, atol=1e-5, rtol=1e-5)
    labels[0, 0] = -1  # where the loss is masked
    assert torch.isfinite(getattr(loss, patch).function(None, None, (logits, labels), {})).all()


def test_a_smoothed_loss_is_upstreams() -> None:
    assert loss.fused_loss.function(lambda *args: "own", None, ("logits", "labels", 0.1), {}) == "own"


PRETRAIN = """
    _TRAIN_START_TIME = 1759000000.7
    def pretrain():
        start_time_tensor = get_accelerator().DoubleTensor([_TRAIN_START_TIME])
        return start_time_tensor
    """


def test_the_start_time_is_whole_seconds_on_an_npu(site: Site, monkeypatch) -> None:
    monkeypatch.setenv("ASCEND_ADAPT_PLUGINS", "megatron_deepspeed")
    site.write(**DEEPSPEEDAI, megatron__training=PRETRAIN)
    site.write(**GRAVE)
    with ascend_adapt.enabled(device="npu"):
        from megatron import training

        training.get_accelerator = lambda: torch
        assert training.pretrain().tolist() == [1759000000]
        assert training.pretrain().dtype == torch.int64


PARSE = """
    import types
    GIVEN = {}
    def parse_args(extra_args_provider=None, defaults={}, ignore_unknown_args=False):
        return types.SimpleNamespace(**GIVEN)
    """


@pytest.mark.parametrize(
    ("given", "reported", "kept"),
    [
        ({"deepspeed_config": "ds.json", "deepspeed": False, "rank": 0, "zero_stage": 1}, True, None),
        ({"deepspeed_config": "ds.json", "deepspeed": False, "rank": 1, "zero_stage": 1}, False, None),
        ({"deepspeed_config": "ds.json", "deepspeed": False, "rank": 0, "zero_stage": 3}, True, "ds.json"),
        ({"deepspeed_config": "ds.json", "deepspeed": True, "rank": 0, "zero_stage": 1}, False, "ds.json"),
        ({"deepspeed_config": None, "deepspeed": False, "rank": 0, "zero_stage": 1}, False, None),
    ],
)
def test_an_unused_configuration_is_reported_and_dropped(
    site: Site, monkeypatch, caplog, given, reported, kept
) -> None:
    monkeypatch.setenv("ASCEND_ADAPT_PLUGINS", "megatron_deepspeed")
    site.write(megatron__enums="", megatron__arguments=PARSE)
    site.write(**GRAVE)
    with ascend_adapt.enabled(device="cpu"), caplog.at_level(logging.WARNING):
        from megatron import arguments

        arguments.GIVEN.update(given)
        assert vars(arguments.parse_args()) == {**given, "deepspeed_config": kept}
    assert ("--deepspeed_config ds.json: set without --deepspeed" in caplog.text) is reported


@pytest.mark.parametrize("device", ["cpu", "npu", "cuda"])
def test_weight_decay_is_decoupled_as_on_a_gpu(site: Site, monkeypatch, device) -> None:
    monkeypatch.setenv("ASCEND_ADAPT_PLUGINS", "megatron_deepspeed")
    site.write(**DEEPSPEEDAI, **GRAVE)
    with ascend_adapt.enabled(device=device):
        from megatron import optimizer

        made = optimizer.get_megatron_optimizer([torch.nn.Parameter(torch.ones(1))])
        assert type(made) is (torch.optim.Adam if device == "cuda" else torch.optim.AdamW)
        assert optimizer.Adam is torch.optim.Adam
        optimizer.FUSED.append(torch.optim.RMSprop)  # as --ds-fused-adam does
        assert type(optimizer.get_megatron_optimizer([torch.nn.Parameter(torch.ones(1))])) is torch.optim.RMSprop
        assert optimizer.Adam is torch.optim.RMSprop


STAND_INS = {
    "masked_causal_softmax": (SOFTMAX, "FusedScaleMaskSoftmax.forward"),
    "masked_causal_softmax_asserted": (SOFTMAX, "FusedScaleMaskSoftmax.forward"),
    "pipeline_attention_mask": (PIPE, "GPTModelPipe.__init__"),
    "compile_helper": (HELPERS, "compile_helper"),
    "decoupled_weight_decay": (OPTIMIZER, "get_megatron_optimizer"),
    "warn_unused_deepspeed_config": (PARSE, "parse_args"),
    "no_gradient_accumulation_fusion": (ARGUMENTS, "validate_args"),
}


BOTH = [one for one in code_base_records.KNOWN if one.folder.endswith("Megatron-DeepSpeed")]


@pytest.mark.parametrize("one", BOTH, ids=lambda one: one.folder)
def test_the_stand_ins_have_the_real_parameters(one) -> None:
    record = upstream_facts.load(code_base_records.path_of(one))
    checked = 0
    for patch in code_base_records.patches_of(one):
        if patch.plugin == "megatron_deepspeed" and patch.name in STAND_INS:
            source, path = STAND_INS[patch.name]
            names: dict[str, object] = {}
            exec(inspect.cleandoc("\n" + source), names)
            for step in path.split("."):
                names = names[step] if isinstance(names, dict) else getattr(names, step)  # type: ignore[assignment]
            (signature,) = record.of(patch, one.commit).signatures
            ours = [parameter.split("=")[0] for parameter in _parameters(str(inspect.signature(names)))]  # type: ignore[arg-type]
            assert ours == [parameter.split("=")[0] for parameter in _parameters(signature)], patch.name
            checked += 1
    assert checked >= 2


def _parameters(signature: str) -> list[str]:
    return [part.strip() for part in signature.strip("()").split(",") if part.strip()]


@pytest.mark.parametrize("asked", ["", "TORCH_FORCE_WEIGHTS_ONLY_LOAD"])
def test_a_checkpoint_with_arguments_loads(site: Site, monkeypatch, tmp_path, asked) -> None:
    site.write(
        megatron__checkpointing="""
            import torch
            def load_checkpoint(model, optimizer, lr_scheduler, load_arg='load', strict=True):
                checkpoint_name = model
                try:
                    return torch.load(checkpoint_name, map_location='cpu')
                except BaseException:
                    raise SystemExit
            """,
        **BIGSCIENCE,
        **GRAVE,
    )
    path = tmp_path / "checkpoint.pt"
    torch.save({"args": argparse.Namespace(lr=1.0), "np_rng_state": numpy.random.RandomState(1).get_state()}, path)
    if asked:
        monkeypatch.setenv(asked, "1")
    ascend_adapt.enable(device="cuda")
    import megatron.checkpointing as written

    assert written.load_checkpoint(path, None, None)["args"].lr == 1.0
    assert "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD" not in os.environ
    ascend_adapt.disable()
    with pytest.raises(SystemExit):
        written.load_checkpoint(path, None, None)
