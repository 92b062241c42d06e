"""`ascend-adapt kernels`, as a user runs it, and how it reports a wrong backend."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import torch

from ascend_adapt.kernels import report, requests
from ascend_adapt.kernels.comparison import compare
from ascend_adapt.kernels.dispatch import kernels
from ascend_adapt.kernels.operators.gelu import GeluCall
from ascend_adapt.kernels.operators.gelu import _torch as gelu_torch


def command(*argv, **env):
    known = {name: value for name, value in os.environ.items() if not name.startswith("ASCEND_ADAPT")}
    argv = [sys.executable, "-m", "ascend_adapt.cli", "kernels", *argv]
    return subprocess.run(argv, env={**known, **env}, capture_output=True, text=True, timeout=280)


def test_every_kernel_is_shown_with_its_backend_and_why():
    ended = command("--json", "--check", ASCEND_ADAPT_DEVICE="cpu", ASCEND_ADAPT_KERNELS="softmax:reference")
    assert ended.returncode == 0, ended.stderr
    data = json.loads(ended.stdout)
    assert (data["device"], data["device_reason"], data["problems"]) == ("cpu", "as requested", [])
    assert {row["kernel"] for row in data["rows"]} == set(requests.NAMES)
    reasons = {row["kernel"]: row["reason"] for row in data["rows"]}
    assert reasons["masked_softmax"] == "as requested"
    assert reasons["attention"] == "the first that supports the call"
    assert data["comparisons"]
    assert all(one["agrees"] and one["errors"] for one in data["comparisons"])


def test_it_works_without_torch(tmp_path):
    (tmp_path / "torch.py").write_text("raise ImportError('hidden by a test')\n")
    ended = command("--json", PYTHONPATH=str(tmp_path))
    assert ended.returncode == 0, ended.stderr
    data = json.loads(ended.stdout)
    assert data["torch"] == "not installed"
    assert {row["kernel"] for row in data["rows"]} == set(requests.NAMES)
    checked = command("--check", PYTHONPATH=str(tmp_path))
    assert checked.returncode == 1
    assert "torch is not installed, so nothing can be compared" in checked.stderr


def test_a_device_that_torch_cannot_use_is_named():
    ended = command(ASCEND_ADAPT_DEVICE="npu")
    assert ended.returncode == 1
    assert "ascend-adapt kernels: device npu: torch cannot use it" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_a_request_that_cannot_be_met_is_an_error():
    ended = command(ASCEND_ADAPT_DEVICE="cpu", ASCEND_ADAPT_KERNELS="attention:npu")
    assert ended.returncode == 1
    assert "backend 'npu' was requested, but it is for npu, the tensors are on cpu" in ended.stderr


def test_a_wrong_result_is_reported_with_its_errors(monkeypatch):
    real = gelu_torch.run
    monkeypatch.setattr(gelu_torch, "run", lambda call: real(call) * 1.01)
    found = report.examine({"ASCEND_ADAPT_DEVICE": "cpu"}, check=True)
    wrong = [problem for problem in found.problems if problem.startswith("gelu: torch on x [3, 5, 96] float32")]
    assert wrong
    assert "differs by 0.01, 0.0001 is allowed — disable it with ASCEND_ADAPT_KERNELS=gelu:reference" in wrong[0]


def test_a_wrong_gradient_is_seen(monkeypatch):
    class Halved(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, grad):
            return grad / 2

    real = gelu_torch.run
    monkeypatch.setattr(gelu_torch, "run", lambda call: Halved.apply(real(call)))
    found = compare(kernels()["gelu"], "torch", GeluCall(torch.randn(4, 8).requires_grad_()))
    assert not found.agrees
    assert found.errors["result"] <= found.tolerances["result"]
    assert "gradient of x differs by" in str(found)


def test_a_backend_that_raises_is_reported(monkeypatch):
    def fails(call):
        raise RuntimeError("no such\nengine")

    monkeypatch.setattr(gelu_torch, "run", fails)
    found = compare(kernels()["gelu"], "torch", GeluCall(torch.randn(4, 8)))
    assert not found.agrees
    assert str(found).endswith("approximate none: no such engine")


def test_calls_with_the_same_backend_and_reason_share_a_line(capsys):
    first, refused = "the first that supports the call", (("torch", "it would round"),)
    found = report.KernelReport("cpu", "as requested", "2.13.0")
    found.rows = [
        report.KernelRow("gelu", "tanh", "float32", "torch", first),
        report.KernelRow("gelu", "bias", "float32", "torch", first),
        report.KernelRow("swiglu", "bias", "float32", "reference", "as requested"),
        report.KernelRow("gelu", "tanh", "bfloat16", "torch", first),
        report.KernelRow("gelu", "bias", "bfloat16", "reference", first, refused),
        report.KernelRow("swiglu", "bias", "bfloat16", "reference", "as requested"),
    ]
    report.show(found)
    shown = [[cell.strip() for cell in line.split("│")[1:-1]] for line in capsys.readouterr().out.splitlines()]
    assert [cells for cells in shown if cells] == [
        ["gelu", "torch", "tanh; bias (float32)", ""],
        ["gelu", "reference", "bias (bfloat16)", "not torch: it would round"],
        ["swiglu", "reference", "bias", "as requested"],
    ]
