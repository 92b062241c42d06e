"""The NPU backends on a stand-in for torch_npu's operators (npu_operators), and the comparison of schemas."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from kernels import npu_operators, test_attention

from ascend_adapt.kernels import npu, schema
from ascend_adapt.kernels.comparison import compare
from ascend_adapt.kernels.dispatch import kernels
from ascend_adapt.kernels.operators.adamw import AdamwCall
from ascend_adapt.kernels.operators.adamw import _npu as adamw_npu
from ascend_adapt.kernels.operators.attention import AttentionCall
from ascend_adapt.kernels.operators.attention import _npu as attention_npu
from ascend_adapt.kernels.operators.masked_softmax import EXACT, FINITE, MaskedSoftmaxCall
from ascend_adapt.kernels.operators.masked_softmax import _npu as softmax_npu
from ascend_adapt.kernels.operators.rotary import RotaryCall
from ascend_adapt.kernels.operators.rotary import _npu as rotary_npu
from ascend_adapt.kernels.samples import samples
from ascend_adapt.npu_limits import fusion_attention as attention_limits
from ascend_adapt.npu_limits import masked_softmax as softmax_limits
from ascend_adapt.npu_limits import rotary as rotary_limits

RELEASES = json.loads((Path(__file__).parents[1] / "upstream" / "torch_npu.json").read_text())["releases"]


@pytest.fixture(scope="session", autouse=True)
def operators():
    # Not undone: torch.ops caches what has been looked up.
    library = npu_operators.define()
    yield
    del library


@pytest.fixture(autouse=True)
def no_calls():
    npu_operators.calls.clear()


def on_npu(q, k, v, *, window=None, causal=False, scale=None, **rules):
    """Return what the NPU backend computes for a call of ``attention``."""
    call = AttentionCall(q, k, v, causal=causal or window is not None, window=window, scale=scale, **rules)
    assert attention_npu.supports(call) == ""
    return attention_npu.run(call)


@pytest.mark.parametrize("case", test_attention.CASES)
@pytest.mark.parametrize("dtype", [torch.float32])
def test_attention_satisfies_the_contract(case, dtype):
    test_attention.check(case, dtype, on_npu)


@pytest.mark.parametrize(
    ("case", "expected"),
    [
        ("full", {"layout": "BNSD", "sparse_mode": 0, "mask": None}),
        ("causal", {"layout": "BNSD", "sparse_mode": 3, "mask": (2048, 2048)}),
        ("causal, Q > K", {"layout": "BNSD", "sparse_mode": 3, "mask": (2048, 2048)}),
        ("window", {"layout": "BNSD", "sparse_mode": 4, "mask": (2048, 2048), "pre": 4, "next": 0}),
        ("packed", {"layout": "TND", "sparse_mode": 0, "ends": [4, 11, 19]}),
        ("packed, causal", {"layout": "TND", "sparse_mode": 3, "ends": [1, 11, 19], "mask": (2048, 2048)}),
        ("packed, window", {"layout": "TND", "sparse_mode": 4, "ends": [11, 19], "pre": 2, "next": 0}),
        ("prefix", {"layout": "BNSD", "sparse_mode": 6, "mask": (3072, 2048)}),
        ("mask", {"layout": "BNSD", "sparse_mode": 1, "mask": (2, 1, 13, 19)}),
        ("mask [Q, K]", {"layout": "BNSD", "sparse_mode": 1, "mask": (1, 1, 13, 13)}),
        ("bias", {"layout": "BNSD", "sparse_mode": 1, "mask": (1, 2, 13, 19), "pse": (1, 2, 13, 19)}),
    ],
)
def test_attention_chooses_the_form_of_the_documentation(case, expected):
    if case == "bias":
        expected = {**expected, "mask": (2, 2, 13, 19)}  # 1NSS is not a valid mask shape
    test_attention.check(case, torch.float32, on_npu)
    ((_, found),) = npu_operators.calls
    assert {name: found[name] for name in expected} == expected


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize(
    ("layout", "axes", "linear"), [("BSND", (0, 2, 1, 3), (0, 2, 1, 3)), ("SBH", (1, 2, 0, 3), (2, 0, 1, 3))]
)
def test_attention_keeps_the_memory_layout_of_a_linear_layer(layout, axes, linear, masked):
    """The next linear layer saves this result; in another layout it would save a copy of it as well."""
    q, k, v = torch.randn(5, 7, 12, 8).permute(axes).split(4, 1)
    length = q.shape[2]
    mask = {"masked_out": torch.ones(length, length, dtype=torch.bool).triu()} if masked else {"causal": True}
    found = on_npu(q, k, v, **mask)
    assert npu_operators.calls[0][1]["layout"] == layout
    assert found.permute(linear).is_contiguous()
    right = on_npu(q.contiguous(), k.contiguous(), v.contiguous(), **mask)
    assert npu_operators.calls[1][1]["layout"] == "BNSD"
    assert torch.equal(found, right)


def test_more_documents_than_one_call_may_have_are_several_calls():
    borders = torch.arange(0, 1501, dtype=torch.int32)
    q, k, v = (torch.randn(1, 1, 1500, 8) for _ in range(3))
    torch.testing.assert_close(on_npu(q, k, v, cu_seqlens=borders, scale=1.0), v)
    assert [len(given["ends"]) for _, given in npu_operators.calls] == [1000, 500]


def test_the_keep_probability_is_passed():
    q, k, v = (torch.randn(1, 1, 4, 8) for _ in range(3))
    on_npu(q, k, v, dropout_p=0.25, scale=1.0)
    assert npu_operators.calls[0][1]["keep"] == 0.75


def attention_call(shape=(1, 2, 4, 64), dtype=torch.float16, **given):
    q, k, v = (torch.empty(shape, dtype=dtype) for _ in range(3))
    return AttentionCall(q, k, v, scale=1.0, **given)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (attention_call(dtype=torch.float64), "it does not take float64"),
        (attention_call((1, 2, 4, 1024)), attention_limits.HEAD_SIZE.unmet(False, "D is 1024")),
        (attention_call((1, 512, 4, 64)), attention_limits.HEADS.unmet(False, "N is 512")),
        (attention_call((1, 1, 1_000_001, 1)), "Sq is 1000001, Skv is 1000001, expected: the lengths"),
        (attention_call((2_000_001, 1, 1, 1)), "B is 2000001, expected: the batch size is in [1, 2000000]"),
        (
            attention_call((33, 1, 4, 64), prefix=torch.ones(33, dtype=torch.int64)),
            "B is 33, expected: sparse_mode 5 and 6",
        ),
        (attention_call(bias=torch.zeros(4, 4, requires_grad=True)), "it has no gradient of the bias"),
        (AttentionCall(*[torch.empty(1, 2, 4, 64)] * 2, torch.empty(1, 2, 4, 32), scale=1.0), "differ"),
    ],
)
def test_attention_names_the_limit(call, words):
    assert words in attention_npu.supports(call)


def test_attention_has_deterministic_gradients_only_under_torchs_setting(monkeypatch):
    monkeypatch.setenv("ASCEND_ADAPT_DETERMINISTIC", "1")
    assert "only under torch.use_deterministic_algorithms" in attention_npu.supports(attention_call())
    try:
        torch.use_deterministic_algorithms(True, warn_only=True)
        assert "only under torch.use_deterministic_algorithms" in attention_npu.supports(attention_call())
        torch.use_deterministic_algorithms(True)
        assert attention_npu.supports(attention_call()) == ""
    finally:
        torch.use_deterministic_algorithms(False)


def softmax_call(shape=(1, 2, 64, 64), fill=FINITE, mask=True, causal=False, dtype=torch.float16):
    mask = torch.rand(shape[-2:]) < 0.5 if mask else None
    return MaskedSoftmaxCall(torch.randn(shape).to(dtype), mask, 0.5, causal, fill)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (softmax_call(fill=EXACT), "it fills with -10000, and the call requires exact masking"),
        (softmax_call(mask=False, causal=True), "it fills with -10000"),
        (softmax_call((1, 2, 64, 48)), softmax_limits.SIZES.unmet(False, "x is [1, 2, 64, 48]")),
        (
            softmax_call((1, 2, 8192, 64)),
            "its last two sizes are multiples of 32 in [32, 4096]",
        ),
        (softmax_call(dtype=torch.float64), "it does not take float64"),
    ],
)
def test_softmax_names_the_limit(call, words):
    assert words in softmax_npu.supports(call)


@pytest.mark.parametrize("call", [softmax_call(), softmax_call((2, 32, 96)), softmax_call(fill=EXACT, mask=False)])
def test_softmax_serves_its_own_fill(call):
    assert softmax_npu.supports(call) == ""
    assert compare(kernels()["masked_softmax"], "npu", call).agrees
    assert npu_operators.calls


@pytest.mark.parametrize(
    ("x", "angles", "interleaved", "words"),
    [
        ((2, 4, 20, 64), (1, 1, 20, 64), False, ""),
        ((2, 4, 20, 64), (20, 64), False, ""),
        ((20, 2, 4, 64), (20, 1, 1, 64), True, ""),
        ((2, 20, 4, 64), (2, 20, 1, 64), False, ""),
        ((2, 20, 4, 64), (2, 20, 1, 64), True, rotary_limits.BROADCAST.text),
        ((2, 4, 20, 64), (1, 4, 20, 64), False, rotary_limits.BROADCAST.text),
        ((8, 200, 20, 64), (1, 1, 20, 64), True, rotary_limits.BATCH_AND_HEADS.text),
        ((1, 1, 4000, 64), (1, 1, 4000, 64), False, ""),
        ((20, 4, 64), (20, 1, 64), False, "does not have 4 axes"),
        ((2, 4, 20, 1024), (1, 1, 20, 1024), False, "expected: the last size D is even, in [2, 894]"),
    ],
)
def test_rotary_knows_its_layouts(x, angles, interleaved, words):
    call = RotaryCall(torch.empty(x), torch.empty(angles), torch.empty(angles), interleaved)
    assert words in rotary_npu.supports(call)
    assert bool(words) == bool(rotary_npu.supports(call))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_every_other_kernel_agrees_with_its_reference(dtype):
    compared = set()
    for name, _, call in samples(torch.device("cpu"), dtype):
        known = kernels()[name]
        if any(one.name == "npu" and not one.implementation().supports(call) for one in known.backends):
            found = compare(known, "npu", call)
            assert found.agrees, str(found)
            compared.add(name)
    # On an NPU, these are torch's own operators.
    of_torch = {"linear_cross_entropy", "layer_norm", "add_norm", "bias_dropout_add", "split_qkv", "l2_norms"}
    assert compared == set(kernels()) - of_torch


def test_adamw_passes_the_powers_of_the_previous_step():
    param, grad, step = torch.tensor([1.0]), torch.tensor([0.5]), torch.tensor(2.0)
    call = AdamwCall((param,), (grad,), (torch.zeros(1),), (torch.zeros(1),), (step,), 0.1, 0.9, 0.99, 1e-8, 0.0)
    adamw_npu.run(call)
    assert step == 3
    assert npu_operators.calls == [
        ("adam_w", {"beta1_power": pytest.approx(0.81), "beta2_power": pytest.approx(0.9801)})
    ]


def test_adamw_that_found_inf_calls_no_operator():
    lists = tuple((torch.full((2,), value),) for value in (1.0, float("nan"), 0.0, 0.0))
    call = AdamwCall(*lists, (torch.tensor(2.0),), 0.1, 0.9, 0.99, 1e-8, 0.0, found_inf=torch.tensor(1.0))
    adamw_npu.run(call)
    assert (call.steps[0].item(), call.params[0].tolist(), npu_operators.calls) == (2.0, [1.0, 1.0], [])


def test_a_missing_operator_is_reported():
    operator = npu.Operator("npu_of_another_year(Tensor a) -> Tensor", ("a",))
    assert operator.difference() == "npu_of_another_year: the installed torch_npu has no such operator"


def declared():
    """Every operator that a backend declares."""
    for kernel in kernels().values():
        for backend in kernel.backends:
            if backend.name == "npu":
                yield from (one for one in vars(backend.implementation()).values() if isinstance(one, npu.Operator))


@pytest.mark.parametrize("release", RELEASES)
def test_every_recorded_release_accepts_our_calls(release):
    operators = list(declared())
    assert len(operators) == 9
    for operator in operators:
        name = operator.schema.partition("(")[0]
        assert schema.difference(operator.schema, RELEASES[release][name], frozenset(operator.uses)) == ""


def test_the_declared_schemas_are_those_of_one_release():
    for operator in declared():
        name = operator.schema.partition("(")[0]
        assert schema.difference(operator.schema, RELEASES["2.13.0"][name]) == ""
