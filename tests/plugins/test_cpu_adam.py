"""ZeRO-Offload's cpu_adam in torch, compared with DeepSpeed's compiled operator.

`python tests/plugins/test_cpu_adam.py` compiles that one, for minutes, and records what it computes.
"""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import forked
import pytest
import torch

from ascend_adapt_plugins.deepspeed_runtime.cpu_adam import TorchCPUAdam

RECORD = Path(__file__).with_name("compiled_cpu_adam.json")
STEPS = 3
# Not a multiple of a vector register, so that the compiled operator's vector loop and its remainder are both used.
SIZE = 19
SETTINGS = {"lr": 0.01, "beta1": 0.9, "beta2": 0.95, "eps": 1e-8}
CASES = [
    {"dtype": dtype, "adamw": adamw, "weight_decay": decay, "bias_correction": bias}
    for dtype, (adamw, decay, bias) in itertools.product(
        ("float32", "bfloat16", "float16"), ((True, 0.1, True), (False, 0.1, True), (True, 0.0, False))
    )
]


def stepped(operator: Any, case: dict[str, Any]) -> list[torch.Tensor]:
    """Return the parameter and both moments after some steps of a module with the interface of cpu_adam."""
    generator = torch.Generator().manual_seed(7)
    parameter = torch.randn(SIZE, generator=generator).to(getattr(torch, case["dtype"]))
    first, second = torch.zeros(SIZE), torch.zeros(SIZE)
    operator.create_adam(0, *SETTINGS.values(), case["weight_decay"], case["adamw"], False)
    for step in range(1, STEPS + 1):
        gradient = torch.randn(SIZE, generator=generator).to(parameter.dtype)
        more = (case["weight_decay"], case["bias_correction"], parameter, gradient, first, second)
        operator.adam_update(0, step, *SETTINGS.values(), *more)
    operator.destroy_adam(0)
    return [parameter, first, second]


def not_compiled():
    raise AssertionError("compiled")


@pytest.mark.parametrize(
    "row", json.loads(RECORD.read_text())["cases"], ids=lambda row: "-".join(map(str, list(row.values())[:4]))
)
def test_it_equals_the_compiled_operator(row):
    """At most a rounding of the parameter's dtype a step, and of fp32 at each of a step's 16 operations."""
    recorded = [torch.tensor([float.fromhex(value) for value in values]) for values in row["results"]]
    assert {name: row[name] for name in CASES[0]} in CASES
    for mine, theirs in zip(stepped(TorchCPUAdam(not_compiled), row), recorded, strict=True):
        relative = STEPS * (torch.finfo(mine.dtype).eps + 16 * torch.finfo(torch.float32).eps)
        torch.testing.assert_close(mine.float(), theirs, rtol=relative, atol=relative * SETTINGS["lr"])


def test_the_parameter_is_copied_to_the_device_in_its_dtype():
    operator, copy = TorchCPUAdam(not_compiled), torch.zeros(3, dtype=torch.float16)
    parameter, gradient = torch.ones(3), torch.ones(3)
    operator.create_adam(4, *SETTINGS.values(), 0.0, True, False)
    operator.adam_update_copy(
        4, 1, *SETTINGS.values(), 0.0, True, parameter, gradient, torch.zeros(3), torch.zeros(3), copy
    )
    assert parameter[0] < 1
    assert torch.equal(copy, parameter.half())


def test_what_torch_lacks_is_compiled_when_it_is_used():
    operator = TorchCPUAdam(not_compiled)
    with pytest.raises(AssertionError, match="compiled"):
        operator.adam_rollback(1)


OFFLOAD = """
import ascend_adapt
ascend_adapt.enable(device="cpu")
import torch, deepspeed
torch.manual_seed(0)
model = torch.nn.Linear(8, 8)
section = {"stage": 2, "offload_optimizer": {"device": "cpu"}}
config = {"train_batch_size": 4, "zero_optimization": section, "optimizer": {"type": "Adam", "params": {"lr": 0.01}}}
engine, optimizer, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)
kind = type(optimizer.optimizer)
assert kind.__name__ == "DeepSpeedCPUAdam", kind
losses = []
for _ in range(3):
    loss = engine(torch.ones(4, 8)).square().mean()
    engine.backward(loss)
    engine.step()
    losses.append(loss.item())
print(losses)
assert losses[2] < losses[0]
"""


def test_zero_offload_trains_without_compiling(tmp_path):
    environ = {"TORCH_EXTENSIONS_DIR": str(tmp_path), "DS_ACCELERATOR": "cpu", "RANK": "0"}
    environ |= {"WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    job = forked.run(OFFLOAD, tmp_path, **environ)
    assert job.returncode == 0, job.stderr
    assert not any(tmp_path.rglob("*.ninja")), list(tmp_path.rglob("*"))


def record() -> None:
    """Write the record."""
    import deepspeed
    from deepspeed.ops.op_builder.cpu.cpu_adam import CPUAdamBuilder

    operator = CPUAdamBuilder().load()
    rows = [
        {**case, "results": [[value.hex() for value in one.float().tolist()] for one in stepped(operator, case)]}
        for case in CASES
    ]
    RECORD.write_text(json.dumps({"deepspeed": deepspeed.__version__, "cases": rows}, indent=1) + "\n")


if __name__ == "__main__":
    record()
