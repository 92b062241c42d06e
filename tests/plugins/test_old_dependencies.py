"""What stands for apex, amp_C and CUDA extensions, held to torch's own arithmetic; who sees it and who does not."""

from __future__ import annotations

import importlib

import pytest
import torch
from error_bounds import rounding
from stand_ins import Site

import ascend_adapt
from ascend_adapt_plugins._type_names import TypeNames
from ascend_adapt_plugins.old_dependencies import _amp_c, _apex_norms, _apex_optimizers, layer_norm_extensions

SHAPES = ((3, 4), (5,), (2, 1, 3))


def tensors(dtype=torch.float32, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator).to(dtype) for shape in SHAPES]


def flag():
    return torch.zeros(1, dtype=torch.int32)


@pytest.mark.parametrize("per_tensor", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_the_norm_of_many_tensors(dtype, per_tensor) -> None:
    many = [one * 200 for one in tensors(dtype)]  # squares overflow in fp16
    norm, each = _amp_c.MultiTensorApply(1)(_amp_c.multi_tensor_l2norm, flag(), [many], per_tensor)
    norms = torch.stack([one.double().norm() for one in many])
    bound = rounding(sum(one.numel() for one in many), torch.float32)
    torch.testing.assert_close(norm.double(), norms.norm().reshape(1), rtol=bound, atol=0.0)
    torch.testing.assert_close(each.double(), norms if per_tensor else norms[:0], rtol=bound, atol=0.0)
    assert (norm.dtype, norm.shape) == (torch.float32, (1,))


def test_the_norm_of_nothing() -> None:
    norm, _ = _amp_c.multi_tensor_l2norm(1, flag(), [[]], False)
    assert norm.tolist() == [0.0]


@pytest.mark.parametrize("scale", [1.0, 0.5, torch.tensor(0.25)])
@pytest.mark.parametrize("to", [torch.float32, torch.bfloat16])
def test_tensors_are_scaled_into_others(scale, to) -> None:
    source, target, seen = tensors(), [torch.empty(shape, dtype=to) for shape in SHAPES], flag()
    _amp_c.multi_tensor_scale(1, seen, [source, target], scale)
    for one, other in zip(source, target, strict=True):
        torch.testing.assert_close(other, (one * scale).to(to))
    assert seen.item() == 0


@pytest.mark.parametrize("bad", [float("inf"), float("-inf"), float("nan")])
def test_scaling_sets_the_flag_where_something_is_not_finite(bad) -> None:
    many, seen = tensors(), flag()
    many[1][2] = bad
    _amp_c.multi_tensor_scale(1, seen, [many, many], 2.0)
    assert seen.item() == 1


@pytest.mark.parametrize("decoupled", [True, False])
@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_fused_adam_is_torchs(decoupled, decay) -> None:
    ours, theirs = ([torch.nn.Parameter(one) for one in tensors()] for _ in range(2))
    settings = {"lr": 0.01, "betas": (0.8, 0.9), "eps": 1e-6, "weight_decay": decay}
    mine = _apex_optimizers.FusedAdam(ours, adam_w_mode=decoupled, **settings)
    other = (torch.optim.AdamW if decoupled else torch.optim.Adam)(theirs, **settings)
    for step in range(4):
        for group, optimizer in ((ours, mine), (theirs, other)):
            for parameter, grad in zip(group, tensors(seed=step + 1), strict=True):
                parameter.grad = grad
            optimizer.step()
    for one, two in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-5, atol=1e-6)
    saved = mine.state_dict()
    assert saved["param_groups"][0]["step"] == 4  # where apex keeps it
    assert sorted(saved["state"][0]) == ["exp_avg", "exp_avg_sq"]
    again = _apex_optimizers.FusedAdam([torch.nn.Parameter(one) for one in tensors()], **settings)
    again.load_state_dict(saved)
    assert again.state_dict()["param_groups"][0]["step"] == 4
    mine.zero_grad()
    assert {parameter.grad for parameter in ours} == {None}


def test_moments_of_half_parameters_are_fp32() -> None:
    parameter = torch.nn.Parameter(torch.ones(3, dtype=torch.bfloat16))
    optimizer = _apex_optimizers.FusedAdam([parameter])
    parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    assert {name: state.dtype for name, state in optimizer.state[parameter].items()} == {
        "exp_avg": torch.float32,
        "exp_avg_sq": torch.float32,
    }


@pytest.mark.parametrize("argument", ["amsgrad", "capturable", "master_weights"])
def test_fused_adam_refuses_what_it_is_not(argument) -> None:
    with pytest.raises(RuntimeError, match=f"FusedAdam: {argument}=True is not supported on this device"):
        _apex_optimizers.FusedAdam([torch.nn.Parameter(torch.ones(1))], **{argument: True})


def test_fused_sgd_is_torchs() -> None:
    ours, theirs = ([torch.nn.Parameter(one) for one in tensors()] for _ in range(2))
    mine = _apex_optimizers.FusedSGD(ours, 0.1, momentum=0.9, weight_decay=0.01)
    other = torch.optim.SGD(theirs, 0.1, momentum=0.9, weight_decay=0.01)
    for step in range(3):
        for group, optimizer in ((ours, mine), (theirs, other)):
            for parameter, grad in zip(group, tensors(seed=step), strict=True):
                parameter.grad = grad
            optimizer.step()
    for one, two in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, two)
    with pytest.raises(RuntimeError, match="wd_after_momentum"):
        _apex_optimizers.FusedSGD(ours, 0.1, wd_after_momentum=True)


@pytest.mark.parametrize("of_input", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("of_weight", [torch.float32, torch.bfloat16])
def test_the_layer_norm_of_the_extension(of_input, of_weight) -> None:
    torch.manual_seed(0)
    x = torch.randn(3, 2, 8).to(of_input).requires_grad_()
    weight, bias = (torch.randn(8).to(of_weight).requires_grad_() for _ in range(2))
    output = _apex_norms.FusedLayerNormAffineFunction.apply(x, weight, bias, torch.Size([8]), 1e-5)
    assert output.dtype == of_weight
    wide = [each.detach().double().requires_grad_() for each in (x, weight, bias)]
    right = torch.nn.functional.layer_norm(wide[0], (8,), *wide[1:])
    grad = torch.randn(3, 2, 8).to(of_weight)
    output.backward(grad)
    right.backward(grad.double())
    close = {"rtol": 2e-2, "atol": 2e-2} if torch.bfloat16 in (of_input, of_weight) else {"rtol": 1e-4, "atol": 1e-5}
    torch.testing.assert_close(output.double(), right, **close)
    for mine, exact in zip((x, weight, bias), wide, strict=True):
        assert mine.grad.dtype == mine.dtype
        torch.testing.assert_close(mine.grad.double(), exact.grad, rtol=close["rtol"], atol=10 * close["atol"])


def test_the_norms_of_apex() -> None:
    torch.manual_seed(0)
    x = torch.randn(4, 8)
    torch.testing.assert_close(_apex_norms.FusedLayerNorm(8)(x), torch.nn.functional.layer_norm(x, (8,)))
    torch.testing.assert_close(_apex_norms.MixedFusedLayerNorm(8)(x), torch.nn.functional.layer_norm(x, (8,)))
    assert _apex_norms.MixedFusedLayerNorm(8).bfloat16()(x).dtype == torch.bfloat16
    for norm in (_apex_norms.FusedRMSNorm(8), _apex_norms.MixedFusedRMSNorm(8)):
        torch.testing.assert_close(norm(x), torch.nn.functional.rms_norm(x, (8,), eps=1e-5))
    with pytest.raises(ValueError, match=r"normalized_shape \[2, 8\], expected one axis"):
        _apex_norms.FusedRMSNorm((2, 8))


@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_types_have_the_names_of_a_device_inside_only(device) -> None:
    tensor = torch.ones(1)
    with TypeNames(device):
        assert tensor.type() == f"torch.{device}.FloatTensor"
        assert tensor.half().type() == f"torch.{device}.HalfTensor"
        assert tensor.type(torch.DoubleTensor).dtype == torch.float64
    assert tensor.type() == "torch.FloatTensor"


BIGSCIENCE = {"megatron__arguments": "", "megatron__enums": ""}
USES = """
    import importlib
    def use(name):
        return importlib.import_module(name)
"""
PROVIDED = {
    "apex.optimizers": ("FusedAdam", "FusedSGD"),
    "apex.normalization.fused_layer_norm": ("FusedLayerNorm",),
    "apex.multi_tensor_apply": ("multi_tensor_applier",),
    "amp_C": ("multi_tensor_scale", "multi_tensor_l2norm"),
    "fused_mix_prec_layer_norm_cuda": ("forward_affine", "backward_affine"),
    "torch._six": ("inf",),
    "scaled_upper_triang_masked_softmax_cuda": ("forward", "backward"),
    "scaled_masked_softmax_cuda": ("forward", "backward", "get_batch_per_block"),
}


@pytest.fixture
def at_bigscience(site: Site, monkeypatch):
    monkeypatch.setenv("ASCEND_ADAPT_PLUGINS", "old_dependencies")
    site.write(**BIGSCIENCE, megatron__user=USES)
    others = Site(site.folder / "others")
    others.write(stranger=USES)
    monkeypatch.syspath_prepend(others.folder)
    with ascend_adapt.enabled(device="cpu"):
        yield


@pytest.mark.parametrize("name", PROVIDED)
def test_only_the_code_base_sees_what_is_provided(name, at_bigscience) -> None:
    import stranger
    from megatron import user

    with pytest.raises(ModuleNotFoundError):
        stranger.use(name)
    module = user.use(name)
    assert [word for word in PROVIDED[name] if not hasattr(module, word)] == []


@pytest.mark.skipif(importlib.util.find_spec("torchvision") is not None, reason="not checked: torchvision is installed")
def test_an_image_data_set_that_is_used_says_what_to_install(site: Site, monkeypatch) -> None:
    monkeypatch.setenv("ASCEND_ADAPT_PLUGINS", "old_dependencies")
    site.write(megatron__core__marker="", megatron__arguments="", megatron__user=USES)
    with ascend_adapt.enabled(device="cpu"):
        from megatron import user

        datasets = user.use("torchvision.datasets")
        type("Ours", (datasets.VisionDataset,), {})  # subclassed when it is imported
        with pytest.raises(ModuleNotFoundError, match="pip install torchvision"):
            datasets.ImageFolder("folder")


def test_numpys_names_are_back_for_the_code_base_and_gone_after(site: Site, monkeypatch) -> None:
    import numpy

    monkeypatch.setenv("ASCEND_ADAPT_PLUGINS", "old_dependencies")
    site.write(**BIGSCIENCE)
    assert "float" not in vars(numpy)
    with ascend_adapt.enabled(device="cpu"):
        assert "float" not in vars(numpy)
        import megatron.arguments  # noqa: F401

        assert numpy.float is float
    assert "float" not in vars(numpy)


def test_numpys_names_stay_gone_where_no_code_base_needs_them() -> None:
    import numpy

    with ascend_adapt.enabled(device="cpu") as status:
        # The code base may still come: nothing is there until it does.
        assert status["numpy_float"].state == "armed"
        assert "is for bigscience-megatron-deepspeed, checked when megatron" in status["numpy_float"].reason
        assert "float" not in vars(numpy)


def test_every_code_base_has_its_softmax() -> None:
    named = {(one.patch.target.module, *one.patch.hosts) for one in _registered() if "softmax" in one.name}
    hosts = ("gpt-neox", "megatron-lm", "megatron-deepspeed", "bigscience-megatron-deepspeed")
    from ascend_adapt.kernels.megatron_extensions import FILLS, MODULES

    assert named == {(module, host) for module in MODULES for host in hosts}
    assert set(hosts) <= set(FILLS)


def _registered():
    from ascend_adapt.runtime.plugin_manager import PluginManager

    return [one for one in PluginManager().patches() if one.plugin == "old_dependencies"]


def test_the_extension_is_what_the_function_calls() -> None:
    assert _apex_norms.forward_affine is layer_norm_extensions.forward_affine
