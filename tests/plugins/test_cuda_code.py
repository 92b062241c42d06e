"""A user's own script that uses CUDA, and the packages it imports, on a CPU."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

JOBS = Path(__file__).parents[1] / "emulation" / "jobs"


@pytest.fixture
def launch(tmp_path):
    """launch(script, *options): run a script under ascend-run on the CPU; return the process."""

    def run(script, *options, check=True):
        path = Path(script) if str(script).endswith(".py") else tmp_path / "train.py"
        if path.parent == tmp_path:
            path.write_text(script)
        command = [sys.executable, "-m", "ascend_adapt.launch.cli", "--device", "cpu", *options, str(path)]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=200)
        assert not check or done.returncode == 0, done.stderr
        return done

    return run


def test_a_script_for_a_gpu_trains_and_says_what_was_done(launch, monkeypatch):
    monkeypatch.setenv("ASCEND_ADAPT_CUDA_CODE_PRINTED", "1")  # as in a job that an adapted process starts
    done = launch(JOBS / "own_script.py", "--nproc", "2")
    assert len(re.findall(r"step \d loss \d+\.\d+", done.stdout)) == 3
    assert "own_script.py uses CUDA: " in done.stderr
    assert "--cuda-code off" in done.stderr
    without = launch(JOBS / "own_script.py", "--cuda-code", "off", check=False)
    assert without.returncode == 1
    assert "uses CUDA" not in without.stderr


def test_torch_may_be_imported_before_the_script(launch, tmp_path, monkeypatch):
    (tmp_path / "sitecustomize.py").write_text("import torch")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    done = launch("import torch\nassert torch.cuda.is_available()\nprint(torch.ones(2).cuda().sum())")
    assert "tensor(2.)" in done.stdout
    assert "train.py uses CUDA: " in done.stderr
    aware = launch("import torch\nprint(hasattr(torch, 'npu'), torch.cuda.is_available())")
    assert "False False" in aware.stdout


def test_flex_attention_has_gradients_only_where_functions_are_not_compiled(launch):
    trains = (
        "import torch\nfrom torch.nn.attention.flex_attention import flex_attention\n"
        "one = torch.ones(1, 1, 16, 16, requires_grad=True)\nflex_attention(one, one, one).sum().backward()\n"
        "print(one.grad.shape)"
    )
    assert "torch.Size([1, 1, 16, 16])" in launch(f"{trains}\ntorch.ones(1).cuda()").stdout
    assert "FlexAttention does not support backward on CPU" in launch(trains, check=False).stderr


SYNCHRONIZED = """
import os, torch
torch.distributed.init_process_group("nccl")
rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
for dtype in (torch.float32, torch.float64):
    whole = torch.randn(8, 3, 2, dtype=dtype, generator=torch.Generator().manual_seed(7)).cuda()
    part = whole.chunk(ranks)[rank].clone().requires_grad_()
    plain = torch.nn.BatchNorm1d(3, dtype=dtype).cuda()
    synchronized = torch.nn.SyncBatchNorm.convert_sync_batchnorm(torch.nn.BatchNorm1d(3, dtype=dtype)).cuda()
    expected, normed = plain(whole.requires_grad_()), synchronized(part)
    normed.pow(3).sum().backward()
    expected.pow(3).sum().backward()
    # Sums of 16 terms, squared and divided, then of 48 terms of up to 20.
    eps = torch.finfo(dtype).eps
    assert normed.dtype == dtype
    assert torch.allclose(normed, expected.chunk(ranks)[rank], rtol=0, atol=64 * eps)
    assert torch.allclose(part.grad, whole.grad.chunk(ranks)[rank], rtol=0, atol=1024 * eps)
    for one, other in zip(plain.buffers(), synchronized.buffers()):
        assert torch.allclose(one, other, rtol=0, atol=64 * eps)
torch.distributed.destroy_process_group()
"""


def test_batch_norms_of_several_ranks_are_synchronized(launch):
    launch(SYNCHRONIZED, "--nproc", "2")


SHARDED = """
import torch
import torch.distributed as dist
from torch.distributed.fsdp import CPUOffload, FullStateDictConfig, StateDictType
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
dist.init_process_group("nccl")
torch.manual_seed(dist.get_rank())
offload = CPUOffload(offload_params=True)
model = FSDP(torch.nn.Linear(4, 3), device_id=0, sync_module_states=True, cpu_offload=offload)
model(torch.ones(1, 4, device="cuda")).sum().backward()
model.clip_grad_norm_(1.0)
torch.optim.SGD(model.parameters(), lr=0.0).step()
with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT, FullStateDictConfig(True, True)):
    state = model.state_dict()
torch.manual_seed(0)
expected = torch.nn.Linear(4, 3).state_dict() if dist.get_rank() == 0 else {}
assert {*state} == {*expected} and all(torch.equal(state[name], one) for name, one in expected.items()), state
"""


def test_a_sharded_model_is_synchronized_and_saved(launch):
    launch(SHARDED, "--nproc", "2")


WITHIN = """
import ascend_adapt
ascend_adapt.enable(device="cpu")
import sys, torch
import helper, installed
from torch.cuda import device_count
assert torch.cuda.is_available() and device_count() == 1 and helper.DEVICE == installed.DEVICE == "cuda"
import accelerate.utils
assert not accelerate.utils.is_cuda_available()
from deepspeed.accelerator import get_accelerator
assert get_accelerator().device_name() == "cpu"
assert torch.ones(2, device=0).device.type == torch.nn.Linear(2, 2).to(0).weight.device.type == "cpu"
assert isinstance(torch.device(1), torch.device) and str(torch.device(1)) == "cuda:1"
with torch.device("cuda"):
    assert torch.ones(2).device.type == "cpu"
assert torch.accelerator.current_accelerator().type == "cuda" and torch.cuda.mem_get_info()[0] > 0
assert torch.cuda.get_device_properties(0).multi_processor_count and torch.cuda.memory_stats()["x"] == 0
assert torch.Generator(device="cuda").device.type == "cpu" and isinstance(torch.default_generator, torch.Generator)
model = torch.nn.Linear(2, 2)
compiled = torch.compile(model, mode="max-autotune")
assert compiled._orig_mod is model and {*compiled.state_dict()} == {"_orig_mod.weight", "_orig_mod.bias"}
assert torch.cuda.make_graphed_callables(model, ()) is model
model.compile(fullgraph=True)  # torch's own call of torch.compile
assert eval("torch.compile(len)", vars(accelerate.accelerator)) is len and model(torch.ones(1, 2)).shape == (1, 2)
assert torch.compile(model, backend="eager")(torch.ones(1, 2, device="cuda")).shape == (1, 2)
(said,) = ascend_adapt.status().programs
assert said.startswith(__file__) and "is mapped to the CPU" in said
from unittest import mock
with mock.patch.object(torch.cuda, "is_available", lambda: "mocked"):
    assert torch.cuda.is_available() == "mocked"
assert torch.cuda.is_available() is True
ascend_adapt.disable()
assert not torch.cuda.is_available() and device_count.__module__ == "torch.cuda"
assert ascend_adapt.status().programs == ()
try:
    torch.ones(2).cuda()
except AssertionError as error:
    assert "CUDA" in str(error)
else:
    raise SystemExit("not undone")
"""


def test_enable_at_the_top_of_a_script(tmp_path):
    site = tmp_path / "site-packages"
    site.mkdir()
    (site / "installed.py").write_text('import torch\nDEVICE = "cuda" if torch.cuda.is_available() else "cpu"\n')
    (tmp_path / "helper.py").write_text('import torch\nDEVICE = "cuda" if torch.cuda.is_available() else "cpu"\n')
    (tmp_path / "train.py").write_text(f"import sys\nsys.path.append({str(site)!r})\n{WITHIN}")
    done = subprocess.run([sys.executable, "train.py"], cwd=tmp_path, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr


AWARE = """
import torch
if hasattr(torch, "npu") and torch.npu.is_available():
    print("npu")
elif torch.cuda.is_available():
    print("cuda")
else:
    print("cpu")
"""


def test_a_script_that_asks_for_its_device_gets_the_truth(launch):
    done = launch(AWARE)
    assert done.stdout.split() == ["cpu"]
    assert "uses CUDA" not in done.stderr
    assert launch(AWARE, "--cuda-code", "all").stdout.split() == ["cuda"]


def test_what_cuda_packages_compute(launch):
    assert "all the same" in launch(JOBS / "cuda_packages.py").stdout


ASSERTS_GPUS = """
import torch
{imports}

def attention(qkv, mask=None):
    assert qkv.is_cuda and (mask is None or mask.dtype == torch.bool) is True
    return qkv

def copied(qkv):
    assert qkv.is_cuda, "on a GPU"
    assert qkv.is_cuda and qkv.is_cuda
    assert all(one.is_cuda for one in (qkv, qkv))
    assert qkv.shape[1] == 3
    return qkv.is_cuda
"""


def test_a_module_that_calls_flash_attn_does_not_require_gpu_tensors(launch, tmp_path):
    (tmp_path / "copies.py").write_text(ASSERTS_GPUS.format(imports="from flash_attn import flash_attn_func"))
    (tmp_path / "others.py").write_text(ASSERTS_GPUS.format(imports=""))
    done = launch(
        "import copies, others, torch\n"
        "def result(call, *given):\n    try:\n        return call(torch.ones(given).cuda())\n"
        "    except AssertionError as error:\n        return f'line {error.__traceback__.tb_next.tb_lineno}'\n"
        "print(result(copies.copied, 1, 3), result(copies.copied, 1, 2), result(copies.attention, 1))\n"
        "print(result(others.copied, 1, 3))"
    )
    assert "False line 13 line 6\nline 10\n" in done.stdout


def test_such_a_module_is_found_by_any_finder_and_may_be_deeply_nested(launch, tmp_path):
    sums = f"x = {'+'.join(['1'] * 900)}\n"
    (tmp_path / "editable").mkdir()
    (tmp_path / "editable" / "copies.py").write_text(sums + ASSERTS_GPUS.format(imports="import flash_attn"))
    done = launch(
        "import importlib.util, sys, torch\n"
        "class Editable:  # as pip install -e puts it at the end\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        file = 'editable/copies.py' if name == 'copies' else None\n"
        "        return file and importlib.util.spec_from_file_location(name, file)\n"
        "sys.meta_path.append(Editable())\n"
        "import copies\n"
        "print(copies.copied(torch.ones(1, 3).cuda()), copies.x)"
    )
    assert "False 900" in done.stdout


def test_a_code_base_with_a_fallback_for_apex_keeps_it(launch, tmp_path):
    (tmp_path / "megatron").mkdir()
    with_fallback = "try:\n    from apex.optimizers import FusedAdam\nexcept ImportError:\n    FusedAdam = None\n"
    (tmp_path / "megatron" / "training.py").write_text(with_fallback)
    done = launch(
        f"import torch\nimport megatron.training as theirs\n{with_fallback}print(FusedAdam, theirs.FusedAdam)"
    )
    assert "FusedAdam'> None" in done.stdout


def test_programs_written_for_torch_1_import_torch_six(launch):
    asks = "from importlib.util import find_spec\nprint(find_spec('torch._six') is None)"
    script = f"import torch\nexec({asks!r}, {{'__name__': 'accelerate.utils'}})\nfrom torch._six import inf\nprint(inf)"
    assert launch(script).stdout.split() == ["True", "inf"]
    assert "No module named 'torch._six'" in launch(script, "--cuda-code", "off", check=False).stderr


def test_options_of_hugging_face_for_gpus(tmp_path):
    code = (
        "import ascend_adapt; ascend_adapt.enable(device='cpu')\n"
        "from transformers import TrainingArguments\n"
        "from transformers.utils import is_torch_bf16_gpu_available\n"
        "given = TrainingArguments('out', bf16=True, tf32=True)\n"
        "assert given.bf16 and given.tf32 is None and not is_torch_bf16_gpu_available()\n"
        "from accelerate import FullyShardedDataParallelPlugin\n"
        "assert FullyShardedDataParallelPlugin(sync_module_states=True).param_init_fn is not None\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr


def test_a_package_run_as_a_module_is_the_program(tmp_path):
    package = tmp_path / "site-packages" / "trainer"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("from trainer.device import DEVICE\n")
    (package / "device.py").write_text('import torch\nDEVICE = "cuda" if torch.cuda.is_available() else "cpu"\n')
    (package / "__main__.py").write_text("from trainer import DEVICE\nprint(DEVICE)\n")
    # As in a tool's sitecustomize, torch is imported before the program is known.
    (tmp_path / "site-packages" / "sitecustomize.py").write_text("import torch\n")
    command = [sys.executable, "-m", "ascend_adapt.launch.cli", "--device", "cpu", "-m", "trainer"]
    environ = {**os.environ, "PYTHONPATH": str(package.parent)}
    done = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=200)
    assert done.stdout.split() == ["cuda"], done.stderr


def test_the_package_of_an_installed_command_is_the_program(tmp_path):
    package = tmp_path / "site-packages" / "trainer"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text('import torch\nDEVICE = "cuda" if torch.cuda.is_available() else "cpu"\n')
    command = tmp_path / "train-it"
    command.write_text(f"#!{sys.executable}\nfrom trainer import DEVICE\nprint(DEVICE)\n")
    command.chmod(0o755)
    words = [sys.executable, "-m", "ascend_adapt.launch.cli", "--device", "cpu", str(command)]
    environ = {**os.environ, "PYTHONPATH": str(package.parent)}
    done = subprocess.run(words, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=200)
    assert done.stdout.split() == ["cuda"], done.stderr


# The steps of lightning.fabric.connector 2.6 that concern the device.
_CONNECTOR = """
import torch

class _Connector:
    def __init__(self, accelerator="auto", devices="auto", strategy="auto"):
        self._accelerator_flag, self._devices_flag, self._strategy_flag = accelerator, devices, strategy
        if accelerator == "auto":
            self._accelerator_flag = "cuda" if torch.cuda.is_available() else "cpu"
        elif accelerator == "gpu":
            self._accelerator_flag = self._choose_gpu_accelerator_backend()
        self._set_parallel_devices_and_init_accelerator()
        if strategy == "fsdp" and self._accelerator_flag != "cuda":
            raise ValueError("FSDP is only available on GPU")

    @staticmethod
    def _choose_gpu_accelerator_backend():
        if torch.cuda.is_available():
            return "cuda"
        raise RuntimeError("No supported gpu backend found!")

    def _set_parallel_devices_and_init_accelerator(self):
        if self._accelerator_flag == "cuda" and not torch.cuda.is_available():
            raise RuntimeError("`CUDAAccelerator` can not run on your system")
        number = 1 if self._devices_flag == "auto" else int(self._devices_flag)
        self.devices = [torch.device(self._accelerator_flag)] * number
"""


def test_lightning_uses_the_cpu_if_a_script_asks_for_gpus(tmp_path):
    connector = tmp_path / "site-packages" / "lightning" / "fabric" / "connector.py"
    connector.parent.mkdir(parents=True)
    connector.write_text(_CONNECTOR)
    metadata = tmp_path / "site-packages" / "lightning-2.6.6.dist-info" / "METADATA"
    metadata.parent.mkdir()
    metadata.write_text("Metadata-Version: 2.1\nName: lightning\nVersion: 2.6.6\n")
    (tmp_path / "train.py").write_text(
        "import torch\nfrom lightning.fabric.connector import _Connector\nprint(torch.ones(1, device='cuda').device)\n"
        "print(*_Connector().devices)\n"
        "print(*_Connector('gpu').devices)\n"
        "print(*_Connector('cuda', -1).devices)\n"
        "print(*_Connector('gpu', [0, 1]).devices)\n"
        "print(*_Connector('gpu', '0,', 'fsdp').devices)\n"
        "print(*_Connector('cpu', '2').devices)\n"
    )
    command = [sys.executable, "-m", "ascend_adapt.launch.cli", "--device", "cpu", "train.py"]
    environ = {**os.environ, "PYTHONPATH": str(tmp_path / "site-packages")}
    done = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=200)
    assert done.stdout.splitlines() == ["cpu", "cpu", "cpu", "cpu", "cpu cpu", "cpu", "cpu cpu"], done.stderr
