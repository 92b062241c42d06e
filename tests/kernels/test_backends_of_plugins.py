"""Backends of plugins: preferred, compared with the reference like others, and removed when they are disabled."""

from __future__ import annotations

import json
from types import ModuleType

import pytest
import torch

import ascend_adapt
from ascend_adapt import hookimpl
from ascend_adapt.errors import BackendUnavailable, PluginError
from ascend_adapt.kernels import built_in, dispatch, gelu
from ascend_adapt.kernels.operation import Backend

COUNTING = """
import torch
calls = []
def supports(call):
    return "it wants a bias" if call.bias is None else ""
def run(call):
    calls.append(call.approximate)
    return torch.nn.functional.gelu(call.x + call.bias, approximate=call.approximate)
"""
PLUGIN = """
from ascend_adapt import hookimpl
@hookimpl
def register_kernels():
    from ascend_adapt.kernels.operation import Backend
    return [("gelu", Backend("counting", ("cpu",), "counting_gelu"))]
"""
X, BIAS = torch.linspace(-2, 2, 24).reshape(3, 8), torch.ones(8)


def plugin(*pairs, name="fast_kernels"):
    module = ModuleType(name)

    @hookimpl
    def register_kernels():
        return list(pairs)

    module.register_kernels = register_kernels
    return module


def mine(name="counting", where="counting_gelu", **terms):
    return ("gelu", Backend(name, ("cpu",), where, **terms))


@pytest.fixture(autouse=True)
def modules(site):
    site.write(
        counting_gelu=COUNTING,
        wrong_gelu="def supports(call):\n    return ''\ndef run(call):\n    return call.x * 2\n",
    )
    return site


def chosen():
    return {choice.backend for choice in dispatch.choices() if choice.kernel == "gelu"}


def test_a_backend_of_a_plugin_is_preferred_until_it_is_disabled():
    expected = gelu(X, BIAS)
    assert chosen() == {"torch"}
    ascend_adapt.enable(plugins=[plugin(mine())])
    import counting_gelu

    assert torch.allclose(gelu(X, BIAS), expected)
    assert chosen() == {"counting"}
    assert counting_gelu.calls
    counting_gelu.calls.clear()
    assert torch.allclose(gelu(X), torch.nn.functional.gelu(X))  # which it does not support
    assert chosen() == {"counting", "torch"}
    ascend_adapt.disable()
    counting_gelu.calls.clear()
    gelu(X, BIAS)
    assert chosen() == {"torch"}
    assert not counting_gelu.calls


def test_built_in_backends_are_registered_in_the_same_way(monkeypatch):
    monkeypatch.setattr(built_in, "register_kernels", lambda: [mine(), mine("second")])
    dispatch.register([mine("of_a_plugin")])
    try:
        assert [one.name for one in dispatch.kernels()["gelu"].backends] == ["of_a_plugin", "counting", "second"]
        assert dispatch.kernels()["swiglu"].backends == []
    finally:
        monkeypatch.undo()
        dispatch.register([])


def test_one_that_computes_something_else_is_passed_over():
    ascend_adapt.enable(plugins=[plugin(mine("wrong", "wrong_gelu"))])
    assert torch.allclose(gelu(X), torch.nn.functional.gelu(X))
    ((name, why),) = next(choice.passed_over for choice in dispatch.choices() if choice.kernel == "gelu")
    assert name == "wrong"
    assert "result differs by" in why


def test_a_requested_one_serves_or_raises():
    with ascend_adapt.enabled(plugins=[plugin(mine())], kernels="gelu:counting"):
        gelu(X, BIAS)
        assert chosen() == {"counting"}
        with pytest.raises(BackendUnavailable, match="it wants a bias"):
            gelu(X)
    gelu(X)


def test_joining_adds_backends_and_leaving_removes_just_those():
    ascend_adapt.enable(plugins=[plugin(mine())])
    with ascend_adapt.enabled(plugins=[plugin(mine("a_second"), name="another")]):
        assert [one.name for one in dispatch.kernels()["gelu"].backends][:3] == ["a_second", "counting", "npu"]
    assert [one.name for one in dispatch.kernels()["gelu"].backends][:2] == ["counting", "npu"]
    with ascend_adapt.enabled(disable=["fast_kernels"]):
        assert [one.name for one in dispatch.kernels()["gelu"].backends][0] == "npu"
    assert [one.name for one in dispatch.kernels()["gelu"].backends][0] == "counting"


@pytest.mark.parametrize(
    ("pairs", "text"),
    [
        ([("glue", mine()[1])], "register_kernels: there is no kernel 'glue', expected one of adamw, add_norm"),
        ([("gelu", "counting")], "'counting' is not a backend, expected a Backend of ascend_adapt.kernels.dispatch"),
        ([mine("torch")], "gelu already has a backend 'torch', expected another name"),
        (["gelu"], "register_kernels returned 'gelu', expected pairs (kernel name, backend)"),
        ([mine(), mine()], "gelu: two backends are named 'counting'"),
    ],
)
def test_invalid_backends_are_reported_with_the_plugin(pairs, text):
    with pytest.raises(PluginError, match="plugin 'fast_kernels': ") as raised:
        ascend_adapt.enable(plugins=[plugin(*pairs)])
    assert text in str(raised.value)
    assert [one.name for one in dispatch.kernels()["gelu"].backends] == ["npu", "triton", "torch", "reference"]


def test_two_plugins_with_one_name_of_a_backend_are_refused():
    with pytest.raises(PluginError, match=r"'b': backend 'counting' of gelu: is already registered by plugin 'a'"):
        ascend_adapt.enable(plugins=[plugin(mine(), name="a"), plugin(mine(), name="b")])


def test_one_that_raises_is_reported(modules):
    module = ModuleType("raising")

    @hookimpl
    def register_kernels():
        return 1 / 0

    module.register_kernels = register_kernels
    with pytest.raises(PluginError, match="plugin 'raising': register_kernels raised ZeroDivisionError"):
        ascend_adapt.enable(plugins=[module])


def test_the_command_shows_them(modules):
    modules.write(fast_kernels=PLUGIN)
    modules.install("fast-kernels", "1.0", "fast_kernels = fast_kernels")
    code = "from ascend_adapt.cli import main; raise SystemExit(main(['kernels', '--json']))"
    report = json.loads(modules.run(code, ASCEND_ADAPT_DEVICE="cpu"))
    rows = [row for row in report["rows"] if row["kernel"] == "gelu"]
    assert {row["backend"] for row in rows} <= {"counting", "torch"}
    assert "counting" in json.dumps(rows)
    assert report["problems"] == []
