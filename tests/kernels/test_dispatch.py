"""How a backend is chosen: by device and request, once for each kind of call, and reported."""

from __future__ import annotations

import logging
import subprocess
import sys
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from ascend_adapt import kernels
from ascend_adapt.errors import BackendUnavailable, SettingsError
from ascend_adapt.kernels import attention, dispatch, gelu, layer_norm, masked_softmax, requests, verification
from ascend_adapt.kernels.dispatch import Kernel
from ascend_adapt.kernels.operation import Backend, KernelCall
from ascend_adapt.kernels.operators.attention import _sdpa
from ascend_adapt.runtime import enabling


@dataclass(frozen=True)
class OneCall(KernelCall):
    x: Any
    causal: bool = False


class Stub:
    """An implementation with a given reason, which counts how often it is asked."""

    def __init__(self, name, reason=""):
        self.name, self.reason, self.asked = name, reason, 0

    def supports(self, call):
        self.asked += 1
        return self.reason

    def run(self, call):
        return self.name


first, second = Stub("first"), Stub("second")


@pytest.fixture
def kernel(monkeypatch):
    """A kernel "one" with two backends for the CPU, among others; removed at the end."""
    for stub in (first, second):
        stub.reason, stub.asked = "", 0
    monkeypatch.setattr(dispatch, "_KERNELS", dict(dispatch._KERNELS))
    monkeypatch.setattr(dispatch, "_logged", set())
    monkeypatch.setattr(requests, "NAMES", (*requests.NAMES, "one"))
    monkeypatch.setitem(sys.modules, "kernel_stubs", sys.modules[__name__])
    one = Kernel("one")
    one.register(
        [
            Backend("npu", ("npu",), "nowhere"),
            Backend("missing", ("cpu",), "no_such_module"),
            Backend("first", ("cpu",), "kernel_stubs:first"),
            Backend("second", (), "kernel_stubs:second"),
        ]
    )
    return one


def call(*shape, **given):
    return OneCall(torch.zeros(shape or (2, 3)), **given)


def test_the_first_that_serves_the_call_computes_it(kernel):
    assert kernel(call()) == "first"
    choice = kernel.choose(call())
    assert (choice.backend, choice.device, choice.reason) == ("first", "cpu", "the first that supports the call")
    assert choice.passed_over == (("missing", "it cannot be imported: No module named 'no_such_module'"),)


def test_a_kind_of_call_is_checked_once(kernel):
    for _ in range(3):
        kernel(call())
    assert first.asked == 1
    kernel(call(3, 3))
    kernel(call(causal=True))
    assert first.asked == 3
    assert [choice.call for choice in dispatch.choices() if choice.kernel == "one"] == [
        "x [2, 3] float32",
        "x [3, 3] float32",
        "x [2, 3] float32, causal",
    ]
    with torch.no_grad():
        kernel(call())
    assert first.asked == 4


def test_a_kernel_caches_the_latest_kinds_of_call(kernel, monkeypatch):
    monkeypatch.setattr(dispatch, "_KINDS_KEPT", 3)
    for length in range(1, 6):
        kernel(call(length))
    calls = [choice.call for choice in dispatch.choices() if choice.kernel == "one"]
    assert calls == ["x [3] float32", "x [4] float32", "x [5] float32"]
    kernel(call(5))
    assert first.asked == 5
    kernel(call(1))
    assert first.asked == 6


def test_a_rank_reports_its_choices(kernel):
    kernel(call())
    assert enabling.kernel_backends()["one of x [2, 3] float32"] == "first"


def test_a_backend_that_does_not_serve_is_passed_over_and_logged_once(kernel, caplog):
    first.reason = "3 is odd"
    with caplog.at_level(logging.INFO, logger="ascend_adapt"):
        assert kernel(call()) == kernel(call()) == kernel(call(4, 3)) == "second"
    messages = [record.getMessage() for record in caplog.records]
    assert messages.count("ascend_adapt: kernel 'one': first does not support this call (3 is odd); second does") == 1
    assert ("first", "3 is odd") in kernel.choose(call()).passed_over


def test_a_requested_backend_must_work(kernel):
    requests.state({"one": "second"})
    assert kernel(call()) == "second"
    assert kernel.choose(call()).reason == "as requested"
    requests.state({"one": "first"})
    first.reason = "3 is odd"
    with pytest.raises(BackendUnavailable, match=r"'first' was requested, but 3 is odd \(call: x \[2, 3\] float32\)"):
        kernel(call())
    requests.state({"one": "missing"})
    with pytest.raises(BackendUnavailable, match="'missing' was requested, but it cannot be imported"):
        kernel(call())
    requests.state({"one": "npu"})
    with pytest.raises(BackendUnavailable, match="it is for npu, the tensors are on cpu"):
        kernel(call())
    requests.state(None)
    assert kernel(call()) == "second"


def test_no_backend_at_all_is_an_error_with_every_reason(kernel):
    first.reason, second.reason = "3 is odd", "2 is even"
    with pytest.raises(BackendUnavailable, match=r"no backend supports .*: missing: .*; first: 3 is odd; second: 2 is"):
        kernel(call())


def test_sizes_of_a_class_of_shapes_are_rounded_up():
    assert call(3, 128).describe(rounded=True) == "x [4, 128] float32"


@pytest.mark.parametrize("source", ["torch", "environment"])
def test_nondeterministic_backends_are_left_out_on_request(kernel, source, monkeypatch):
    kernel.backends[2] = Backend("first", ("cpu",), "kernel_stubs:first", deterministic=False)
    assert kernel(call()) == "first"
    if source == "environment":
        monkeypatch.setenv("ASCEND_ADAPT_DETERMINISTIC", "1")
        assert kernel(call()) == "second"
    else:
        torch.use_deterministic_algorithms(True)
        try:
            assert kernel(call()) == "second"
        finally:
            torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize("backend", ["reference", "sdpa"])
def test_autocast_changes_nothing(backend):
    requests.state({"attention": backend, "layer_norm": "torch" if backend == "sdpa" else backend})
    q = torch.randn(1, 2, 8, 16)
    right = attention(q, q, q), layer_norm(q.bfloat16(), torch.ones(16).bfloat16())
    with torch.autocast("cpu", torch.bfloat16):
        found = attention(q, q, q), layer_norm(q.bfloat16(), torch.ones(16).bfloat16())
    for mine, true in zip(found, right, strict=True):
        assert mine.dtype == true.dtype
        assert torch.equal(mine, true)


def test_autocast_is_enabled_again_after_an_error(kernel, monkeypatch):
    def fail(call):
        assert not torch.is_autocast_enabled("cpu")
        raise ZeroDivisionError

    monkeypatch.setattr(first, "run", fail)
    with torch.autocast("cpu", torch.bfloat16):
        with pytest.raises(ZeroDivisionError):
            kernel(call())
        assert torch.is_autocast_enabled("cpu")
        assert torch.get_autocast_dtype("cpu") == torch.bfloat16


def test_the_environment_is_read_without_enable(monkeypatch):
    monkeypatch.setenv("ASCEND_ADAPT_KERNELS", "gelu:reference")
    gelu(torch.zeros(2))
    monkeypatch.setenv("ASCEND_ADAPT_KERNELS", "gelu:torch")
    gelu(torch.zeros(2))
    assert [choice.backend for choice in dispatch.choices()] == ["reference", "torch"]


def test_requests_for_unknown_backends_are_refused_at_once():
    with pytest.raises(SettingsError, match="gelu has no backend 'fast' — choose one of npu, triton, torch, reference"):
        dispatch.request({"gelu": "fast"})
    assert requests.wanted("gelu") is None


def test_every_kernel_ends_in_a_reference_and_has_a_name_to_ask_for():
    known = dispatch.kernels()
    assert set(known) == set(requests.NAMES)
    for kernel in known.values():
        last = kernel.backends[-1]
        assert (last.name, last.devices, last.deterministic) == ("reference", (), True)


def test_importing_kernels_loads_no_torch():
    code = "import sys, ascend_adapt.kernels; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=280)


@pytest.mark.filterwarnings("ignore:`torch.jit.trace` is deprecated:DeprecationWarning")
@pytest.mark.parametrize(
    "transformed",
    [
        lambda x: torch.func.grad(lambda x: gelu(x).sum())(x),
        lambda x: torch.vmap(lambda x: layer_norm(x))(x),
        lambda x: torch.jit.trace(lambda x: masked_softmax(x, causal=True), x, check_trace=False)(x),
    ],
)
def test_a_first_call_may_be_one_that_is_transformed(transformed):
    """A backend cannot be compared then; a later call of the kind is compared."""
    dispatch.forget()
    x = torch.randn(2, 3, 7, 7)
    first = transformed(x)
    assert not dispatch.choices()
    gelu(x)
    layer_norm(x)
    masked_softmax(x, causal=True)
    assert len(dispatch.choices()) == 3
    torch.testing.assert_close(transformed(x), first)


def test_a_chosen_backend_costs_no_graph_break():
    x = torch.randn(2, 2, 5, 5)
    right = masked_softmax(x, causal=True)
    compiled = torch.compile(lambda x: masked_softmax(x, causal=True), backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(x), right)


def test_a_deterministic_backend_costs_no_graph_break():
    x = torch.full((2,), 3.0)
    compiled = torch.compile(
        lambda x: x + 1 if dispatch.attention_gradients_repeat() else x * 2, backend="eager", fullgraph=True
    )
    try:
        for options, result in (({"warn_only": False}, 4.0), ({"warn_only": True}, 6.0), ({"warn_only": False}, 4.0)):
            torch.use_deterministic_algorithms(True, **options)
            assert compiled(x).tolist() == [result] * 2
            test_a_chosen_backend_costs_no_graph_break()
    finally:
        torch.use_deterministic_algorithms(False)


def test_the_compiler_fuses_an_inlined_backend_whatever_was_chosen(kernel):
    """Unless a backend is requested: that one must support the call."""
    kernel.backends[-1] = Backend("second", (), "kernel_stubs:second", inlined=True)
    assert kernel(call()) == "first"
    compiled = torch.compile(lambda x: x + (kernel(OneCall(x)) == "second"), backend="eager", fullgraph=True)
    assert compiled(torch.zeros(2)).tolist() == [1, 1]
    requests.state({"one": "first"})
    kernel(call(2))
    assert compiled(torch.zeros(2)).tolist() == [0, 0]


def test_a_choice_for_an_evaluation_leaves_compiled_training_as_it_is():
    x = torch.randn(2, 2, 5, 5)
    torch._dynamo.reset()
    right = masked_softmax(x, causal=True)
    compiled = torch.compile(lambda x: masked_softmax(x, causal=True), backend="eager", fullgraph=True)
    compiled(x)
    with torch.no_grad():
        masked_softmax(x, causal=True)
    assert len(dispatch.choices()) == 2
    with torch.compiler.set_stance("fail_on_recompile"):
        torch.testing.assert_close(compiled(x), right)


X, W = torch.randn(2, 4, 16, requires_grad=True), torch.randn(16, requires_grad=True)
Q, LABELS = torch.randn(1, 2, 4, 16, requires_grad=True), torch.tensor([1, 2])
# name -> (a call, the maximum number of Python functions that its second run calls, with a backend that does nothing)
SECOND_CALLS = {
    "attention": (lambda: kernels.attention(Q, Q, Q, causal=True), 21),
    "masked_softmax": (lambda: kernels.masked_softmax(Q, causal=True), 22),
    "rms_norm": (lambda: kernels.rms_norm(X, W), 20),
    "layer_norm": (lambda: kernels.layer_norm(X, W, W), 20),
    "rotary": (lambda: kernels.rotary(Q, Q.detach()[0, 0], Q.detach()[0, 0], key=Q), 20),
    "swiglu": (lambda: kernels.swiglu(X), 19),
    "gelu": (lambda: kernels.gelu(X, approximate="tanh"), 19),
    "add_norm": (lambda: kernels.add_norm(X, X, None, W), 22),
    "split_qkv": (lambda: kernels.split_qkv(torch.randn(2, 3, 24), heads=1, groups=1), 19),
}


def python_calls(run):
    """Return the Python functions that a second call runs. Unlike its time, they are the same everywhere."""
    run()
    calls = []
    sys.setprofile(lambda frame, event, _: calls.append(frame.f_code.co_name) if event == "call" else None)
    try:
        run()
    finally:
        sys.setprofile(None)
    return calls[1:]  # without ``run`` itself


@pytest.mark.parametrize("name", SECOND_CALLS)
def test_a_second_call_of_a_kind_runs_few_python_functions(name, kernel, monkeypatch):
    run, most = SECOND_CALLS[name]
    monkeypatch.setattr(dispatch._KERNELS[name], "backends", [Backend("first", (), "kernel_stubs:first")])
    dispatch._KERNELS[name].forget()
    monkeypatch.setattr(verification, "disagreement", lambda *_: "")
    calls = python_calls(run)
    assert calls[-1] == "run"
    assert len(calls) <= most, calls


def test_a_second_call_of_a_cuda_kernel_of_torch_runs_few_python_functions(monkeypatch):
    """For small calls of attention on a GPU, the host takes longer than the device."""
    backend = Backend("cudnn", ("cpu",), "ascend_adapt.kernels.operators.attention._sdpa:cudnn")
    monkeypatch.setattr(dispatch._KERNELS["attention"], "backends", [backend])
    monkeypatch.setattr(verification, "disagreement", lambda *_: "")
    monkeypatch.setattr(_sdpa.cudnn, "supports", lambda call: "")
    monkeypatch.setattr(_sdpa, "scaled_dot_product_attention", lambda q, *_, **__: q)
    calls = python_calls(SECOND_CALLS["attention"][0])
    assert len(calls) <= 32, calls
