"""The DeepSpeed plugin on the installed DeepSpeed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import forked
import pytest
import torch

import ascend_adapt
from ascend_adapt.launch.placement.ports import Ports
from ascend_adapt_plugins.deepspeed_runtime import checkpoints, communication, jit_builds, pipeline
from ascend_adapt_plugins.deepspeed_runtime.jit_builds import TorchFusedAdam


def run(code, tmp_path, **env):
    """Run Python code in a process of its own whose extension builds would go to ``tmp_path``."""
    return forked.run(code, tmp_path, TORCH_EXTENSIONS_DIR=str(tmp_path), DS_ACCELERATOR="cpu", **env)


def test_nothing_is_compiled_and_everything_is_restored(tmp_path):
    code = """
import ascend_adapt
status = ascend_adapt.enable(strict=True)
assert {status[name].state for name in ("no_shared_memory_build", "fused_adam_in_torch")} == {"armed"}
import sys
assert "torch" not in sys.modules and "deepspeed" not in sys.modules
import torch, deepspeed
from deepspeed.ops.adam import FusedAdam
from deepspeed.ops.op_builder.cpu.fused_adam import FusedAdamBuilder
comm = sys.modules["deepspeed.comm.torch"]  # the package attribute of that name is torch itself
assert comm.build_shm_op() is None
parameter = torch.nn.Parameter(torch.tensor([1.0]))
optimizer = FusedAdam([parameter], lr=0.1)
parameter.grad = torch.tensor([0.5])
optimizer.step()
assert abs(parameter.item() - 0.9) < 1e-6, parameter
# What stands for apex's Adam, which GPT-NeoX gets where its train.py counts as CUDA code, in any program.
from ascend_adapt_plugins.old_dependencies._apex_optimizers import FusedAdam as OfApex
from deepspeed.runtime.zero import utils
utils.dist.get_rank = lambda: 0
assert utils.is_zero_supported_optimizer(OfApex([parameter]))
status = ascend_adapt.status()
assert {status[name].state for name in ("no_shared_memory_build", "fused_adam_in_torch")} == {"applied"}, status
ascend_adapt.disable()
assert "load" not in vars(FusedAdamBuilder)
assert not hasattr(comm.build_shm_op, "__wrapped__")
"""
    environ = {**os.environ, "TORCH_EXTENSIONS_DIR": str(tmp_path), "DS_ACCELERATOR": "cpu"}
    job = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True, timeout=280)
    assert job.returncode == 0, job.stderr
    assert not any(tmp_path.rglob("*.ninja")), list(tmp_path.rglob("*"))


def test_on_another_device_the_cpu_patches_are_skipped():
    with ascend_adapt.enabled(device="cuda") as status:
        outcome = status["no_shared_memory_build"]
        assert (outcome.state, outcome.reason) == ("skipped", "is for cpu, this process runs on cuda")


@pytest.mark.parametrize("adam_w_mode", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_the_arithmetic_is_adams(adam_w_mode, dtype):
    """Against torch's own Adam and AdamW in fp32, ten steps with weight decay."""
    generator = torch.Generator().manual_seed(0)
    ours = [torch.randn(7, 3, generator=generator).to(dtype), torch.randn(5, generator=generator).to(dtype)]
    firsts, seconds = [torch.zeros_like(p) for p in ours], [torch.zeros_like(p) for p in ours]
    theirs = [torch.nn.Parameter(p.float()) for p in ours]
    kind = torch.optim.AdamW if adam_w_mode else torch.optim.Adam
    optimizer = kind(theirs, lr=0.01, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1)
    for step in range(1, 11):
        grads = [torch.randn(p.shape, generator=generator).to(dtype) for p in ours]
        for parameter, grad in zip(theirs, grads, strict=True):
            parameter.grad = grad.float()
        optimizer.step()
        lists = [grads, ours, firsts, seconds]
        TorchFusedAdam.multi_tensor_adam(65536, None, lists, 0.01, 0.9, 0.95, 1e-8, step, int(adam_w_mode), 1, 0.1)
    tolerance = {torch.float32: 1e-6, torch.float16: 5e-3, torch.bfloat16: 5e-2}[dtype]
    for mine, their in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine.float(), their.detach(), rtol=tolerance, atol=tolerance)


def test_a_large_tensor_is_updated_in_pieces_without_workspace_of_its_size(monkeypatch):
    """A flat partition of ZeRO; the pieces give what the whole tensor gives."""
    sizes = []
    sqrt = torch._foreach_sqrt
    monkeypatch.setattr(torch, "_foreach_sqrt", lambda tensors: sizes.extend(map(len, tensors)) or sqrt(tensors))

    def updated():
        generator = torch.Generator().manual_seed(0)
        lists = [[torch.rand(10, generator=generator), torch.rand(3, generator=generator)] for _ in range(4)]
        TorchFusedAdam.multi_tensor_adam(1, None, lists, 0.1, 0.9, 0.999, 1e-8, 1, 1, 1, 0.1)
        return lists[1:]

    whole = updated()
    monkeypatch.setattr(jit_builds, "_PIECE", 4)
    sizes.clear()
    torch.testing.assert_close(updated(), whole, rtol=0, atol=0)
    assert sizes == [3, 4, 4, 2]


def test_without_bias_correction():
    parameter, first, second = torch.tensor([1.0]), torch.zeros(1), torch.zeros(1)
    lists = [[torch.tensor([0.5])], [parameter], [first], [second]]
    TorchFusedAdam.multi_tensor_adam(1, None, lists, 0.1, 0.9, 0.999, 0.0, 1, 1, 0, 0.0)
    torch.testing.assert_close(first, torch.tensor([0.05]))
    torch.testing.assert_close(second, torch.tensor([0.00025]))
    torch.testing.assert_close(parameter, torch.tensor([1.0 - 0.1 * 0.05 / 0.00025**0.5]))


DECORATIONS = """
import torch

def function():
    "text"
    return 1

from deepspeed.utils.nvtx import instrument_w_nvtx
before = instrument_w_nvtx(function)
import ascend_adapt
ascend_adapt.enable()
assert before() == 1
from deepspeed.utils.nvtx import instrument_w_nvtx
after = instrument_w_nvtx(function)
assert after is function and (after.__name__, after.__doc__) == ("function", "text")
"""


def test_nothing_is_left_of_nvtx_off_cuda(tmp_path):
    """Case nvtx-1: a decorated function is the function itself; functions decorated before enable() run."""
    job = run(DECORATIONS, tmp_path)
    assert job.returncode == 0, job.stderr


def test_nothing_is_left_of_nvtx_before_0_8_1_on_a_stand_in(tmp_path):
    """These releases call torch's ranges, which raise without CUDA, in functions decorated before enable() too."""
    decorator = """
import torch

def instrument_w_nvtx(func):
    def wrapped_fn(*args, **kwargs):
        with torch.cuda.nvtx.range(func.__qualname__):
            return func(*args, **kwargs)
    return wrapped_fn
"""
    stand_in_deepspeed(tmp_path, "0.7.7", **{"utils.nvtx": decorator})
    (tmp_path / "deepspeed-0.7.7.dist-info").mkdir()
    metadata = "Metadata-Version: 2.1\nName: deepspeed\nVersion: 0.7.7\n"
    (tmp_path / "deepspeed-0.7.7.dist-info" / "METADATA").write_text(metadata)
    adapted = run(DECORATIONS, tmp_path, PYTHONPATH=str(tmp_path))
    assert adapted.returncode == 0, adapted.stderr
    without = run(DECORATIONS, tmp_path, PYTHONPATH=str(tmp_path), ASCEND_ADAPT_DISABLE="range_push")
    assert "NVTX functions not installed" in without.stderr


INITIALIZE = """
import argparse, json, pathlib, sys, torch, deepspeed
config = {"train_batch_size": 1, "optimizer": {"type": "Adam", "params": {"lr": 0.1, "torch_adam": True}}}
pathlib.Path(sys.argv[1], "config.json").write_text(json.dumps(config))
args = argparse.Namespace(deepspeed_config=eval(sys.argv[2]), local_rank=0)
model = torch.nn.Linear(2, 2)
engine, *_ = deepspeed.initialize(
    args=args, model=model, model_parameters=model.parameters(), config_params=eval(sys.argv[3])
)
print("batch", engine.train_batch_size())
"""


@pytest.mark.parametrize(
    ("in_args", "given", "fits"),
    [
        ("config", "dict(config)", True),
        ("sys.argv[1] + '/config.json'", "config", True),
        ("config", "{**config, 'train_batch_size': 2}", False),
        ("sys.argv[1] + '/missing.json'", "config", False),
    ],
)
def test_one_configuration_given_twice(in_args, given, fits, tmp_path):
    code = "import ascend_adapt; ascend_adapt.enable(strict=True)\n" + INITIALIZE
    rank = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0", "RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}
    job = forked.run(code, tmp_path, str(tmp_path), in_args, given, **rank)
    if fits:
        assert job.stdout.endswith("batch 1\n"), job.stderr
    else:
        assert "Not sure how to proceed, we were given deepspeed configs" in job.stderr


SCALE = {"loss_scale": 0, "loss_scale_window": 1000, "initial_scale_power": 12, "hysteresis": 2, "min_loss_scale": 1}


OWN_NAMES = [
    ("fp16", {"fp16": True, "enabled": True, **SCALE}, True),  # as GPT-NeoX's 20B.yml has it
    ("fp16", {"type": "fp16", "enabled": True}, True),  # as GPT-NeoX itself makes it of "precision": "fp16"
    ("fp16", {"fp16": False, "enabled": False}, True),
    ("fp16", {"fp16": True, "enabled": False}, False),
    ("fp16", {"fp16": True}, False),
    ("fp16", {"type": "bfloat16", "enabled": True}, False),  # of a fork of DeepSpeed: it is not fp16
    ("fp16", {"enabled": True, "hysterisis": 2}, False),
    ("bf16", {"bf16": True, "enabled": True, **SCALE}, True),  # as GPT-NeoX's rwkv/170M.yml has it
    ("bfloat16", {"type": "bfloat16", "enabled": True}, True),
    ("bf16", {"bf16": True, "enabled": True, "fp16": True}, False),
]
READ_SECTIONS = """
import json, sys
import ascend_adapt
ascend_adapt.enable(strict=True)
from deepspeed.runtime import config
for name, content, fits in json.loads(sys.argv[1]):
    read = config.get_float16_config if name == "fp16" else config.get_bfloat16_config
    given = {name: dict(content)}
    try:
        reported = read(given).model_dump()
        assert fits and reported["enabled"] == content["enabled"], (name, content, reported)
        assert name != "fp16" or all(reported[key] == content[key] for key in content if key in reported), content
    except ValueError as error:
        assert not fits and "Extra inputs are not permitted" in str(error), (name, content, error)
    assert given == {name: content}
print("all read")
"""


def test_sections_that_say_their_own_name(tmp_path):
    job = forked.run(READ_SECTIONS, tmp_path, json.dumps(OWN_NAMES))
    assert job.stdout.endswith("all read\n"), job.stderr


METADATA = """
import os, sys, torch, weakref
os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="0", RANK="0", WORLD_SIZE="1", LOCAL_RANK="0")
if sys.argv[1] == "adapted":
    import ascend_adapt
    ascend_adapt.enable(strict=True)
import deepspeed
from deepspeed.runtime.utils import PartitionedTensor
deepspeed.init_distributed("gloo", init_method="tcp://127.0.0.1:0?rank=0&world_size=1")
group = torch.distributed.group.WORLD
part = PartitionedTensor(torch.arange(6.0).view(2, 3), group)
meta = part.to_meta()
received = PartitionedTensor.from_meta(meta.int(), part.local_data, group)
assert received.full().equal(torch.arange(6.0).view(2, 3))
assert received.orig_device == part.local_data.device
wrong = meta.int()
wrong[2] = 4
try:
    PartitionedTensor.from_meta(wrong, part.local_data, group)
except OverflowError as error:
    print(error)
torch.distributed.destroy_process_group()
# Gloo's threads let go of a collective's tensors after its caller is woken, and take the GIL for it. In a Python before
# 3.14 that is being finalized that is SIGABRT; with the last reference to the group gone they are joined before.
of_gloo = weakref.ref(group)
del group, part, received
assert of_gloo() is None
"""


def test_int32_metadata_is_widened_and_checked(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(METADATA)
    env = {**os.environ, "TORCH_EXTENSIONS_DIR": str(tmp_path), "DS_BUILD_SHM_COMM": "0"}
    adapted = subprocess.run([sys.executable, script, "adapted"], capture_output=True, text=True, timeout=120, env=env)
    assert adapted.returncode == 0, adapted.stderr
    assert "a tensor of [2, 4] has 8 elements, but its parts end at 6" in adapted.stdout


@pytest.mark.parametrize(
    "meta",
    [[1, -5, 1, 0, 0, -5], [2, 65536, 65536, 1, 0, 0, 0], [1, 6, 2, 0, 0, 4, 3], [1, 7, 1, 0, 0, 6]],
    ids=["negative", "wrapped to zero", "parts go back", "wrong end"],
)
def test_metadata_that_lost_digits_is_refused(meta):
    with pytest.raises(OverflowError, match="the backend narrowed int64"):
        pipeline.check_partition_metadata(meta)


def test_metadata_that_fits_passes():
    pipeline.check_partition_metadata([2, 2, 3, 2, 1, 0, 3, 6])


def test_variables_reach_other_hosts_as_they_are(tmp_path):
    """Case env-1, by the real launcher and a pdsh that runs the remote command here."""
    tools = tmp_path / "bin"
    tools.mkdir()
    remote = 'for word in "$@"; do case "$word" in "export "*) printf "\\0"; env -i sh -c "$word env -0" ;; esac; done'
    (tools / "pdsh").write_text(f"#!/bin/sh\n{remote}\n")
    (tools / "ssh").write_text("#!/bin/sh\nexit 0\n")
    for tool in tools.iterdir():
        tool.chmod(0o755)
    (tmp_path / "hosts").write_text("one slots=1\ntwo slots=1\n")
    values = {
        "HCCL_A": "64(x2)",
        "ASCEND_B": "a b\"c'd",
        "PYTHON_C": "/x:/y z",
        "OMP_D": "$HOME `id` \\ ;",
        "NOT_E": "no",
    }
    code = (
        "import ascend_adapt; ascend_adapt.enable(strict=True)\n"
        "from deepspeed.launcher import runner\n"
        "before = list(runner.EXPORT_ENVS)\n"
        f"try: runner.main(['--hostfile', {str(tmp_path / 'hosts')!r}, '--master_addr', 'one', 'train.py'])\n"
        "finally: assert runner.EXPORT_ENVS == before\n"
    )
    path = f"{tools}:{os.environ['PATH']}"
    job = run(code, tmp_path, PATH=path, **values)
    arrived = dict(line.partition("=")[::2] for line in job.stdout.split("\0") if "=" in line)
    assert "NOT_E" not in arrived
    del values["NOT_E"]
    assert {name: arrived.get(name) for name in values} == values, job.stderr


def test_only_what_is_named_is_exported(tmp_path):
    code = """
import ascend_adapt; ascend_adapt.enable(strict=True)
import argparse
from deepspeed.launcher.multinode_runner import OpenMPIRunner, PDSHRunner
pdsh, mpi = PDSHRunner.__new__(PDSHRunner), OpenMPIRunner.__new__(OpenMPIRunner)
for runner in (pdsh, mpi):
    runner.exports = {}
    runner.add_export(" HCCL_A ", "a $b\\n")
assert (pdsh.exports, mpi.exports) == ({"HCCL_A": "'a $b'"}, {"HCCL_A": "a $b"}), (pdsh.exports, mpi.exports)
"""
    job = run(code, tmp_path)
    assert job.returncode == 0, job.stderr


def test_a_hostfile_of_the_guides(tmp_path):
    (tmp_path / "hosts").write_bytes(b"# c\r\n\r\nw-1 slot=2  # head\r\nu@10.0.0.2 slots=4\r\n")
    (tmp_path / "bad").write_text("w-1 lots=2\n")
    code = f"""
import ascend_adapt
from deepspeed.launcher import runner
try:
    runner.fetch_hostfile({str(tmp_path / "hosts")!r})
except ValueError:
    pass
else:
    raise SystemExit("fixed upstream: the patch has outlived its until")
ascend_adapt.enable(strict=True)
found = runner.fetch_hostfile({str(tmp_path / "hosts")!r})
assert list(found.items()) == [("w-1", 2), ("u@10.0.0.2", 4)], found
assert runner.fetch_hostfile(hostfile_path="/nowhere") is None  # DeepSpeed's own: this machine
runner.fetch_hostfile({str(tmp_path / "bad")!r})
"""
    job = run(code, tmp_path)
    assert job.returncode == 1
    assert "line 1 is 'w-1 lots=2', expected `name slots=N`" in job.stderr.splitlines()[-1], job.stderr


def test_no_cann_is_no_key_error(tmp_path):
    code = """
import os, ascend_adapt
os.environ.pop("ASCEND_HOME_PATH", None)
from deepspeed.ops.op_builder.npu.builder import NPUOpBuilder
class Builder(NPUOpBuilder):
    absolute_name = sources = None
builder = Builder.__new__(Builder)
try:
    builder.installed_cann_path()
except KeyError:
    pass
else:
    raise SystemExit("fixed upstream: the patch has outlived its until")
ascend_adapt.enable(device="npu", strict=True)
assert builder.installed_cann_path() is None
os.environ["ASCEND_HOME_PATH"] = "/"
assert builder.installed_cann_path() == "/"
"""
    job = run(code, tmp_path)
    assert job.returncode == 0, job.stderr


def test_gradients_are_grouped_by_type():
    half, single, double = (torch.zeros(1, dtype=dtype) for dtype in (torch.half, torch.float, torch.double))
    buckets = communication.bucket_gradients_by_dtype.function([double, single, half, single])
    assert [(kind, len(tensors)) for kind, tensors in buckets] == [
        ("torch.HalfTensor", 1),
        ("torch.FloatTensor", 2),
        ("torch.DoubleTensor", 1),
    ]


def stand_in_deepspeed(folder, version, **files):
    """Write a package named deepspeed that has the named modules, for releases that cannot run here."""
    # Without the launcher and the engine, patches whose absence gives wrong numbers have drifted, and report it.
    always = {
        "runtime.engine": "class DeepSpeedEngine:\n    def load_checkpoint(self, load_dir): pass\n",
        "launcher.runner": "EXPORT_ENVS = []\ndef main(args=None): pass\n",
        "launcher.multinode_runner": "class MultiNodeRunner:\n    def add_export(self, key, var): pass\n",
    }
    for name, text in {"__init__": f"__version__ = {version!r}", **always, **files}.items():
        path = folder.joinpath("deepspeed", *name.split("."))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.with_suffix(".py").write_text(text)


ENGINE_0_6_0 = """
class PipelineEngine:
    has_bool_tensors = False
    def __init__(self): self.pipe_buffers = {"outputs": [None, None]}
    def is_last_stage(self): return True
    def _exec_forward_pass(self, buffer_id): self.pipe_buffers["outputs"][buffer_id] = f"logits {buffer_id}"
    def eval_batch(self, data_iter, compute_loss=True, reduce_output="avg"):
        for buffer_id in (0, 1):
            self._INSTRUCTION_MAP["forward"](self, buffer_id)
        self.pipe_buffers = {"outputs": [None, None]}
        return "loss" if compute_loss else "output"
    _INSTRUCTION_MAP = {"forward": _exec_forward_pass}
"""


def test_logits_and_mask_before_0_6_3_on_a_stand_in(tmp_path):
    stand_in_deepspeed(tmp_path, "0.6.0", **{"runtime.pipe.engine": ENGINE_0_6_0})
    code = """
import ascend_adapt
ascend_adapt.enable()
from deepspeed.runtime.pipe.engine import PipelineEngine
engine = PipelineEngine()
assert engine.eval_batch(iter([]), return_logits=True) == ("loss", "logits 1")
assert engine.eval_batch(iter([]), return_logits=False) == "loss"
assert engine.eval_batch(iter([]), compute_loss=False) == "output"
assert "_ascend_adapt_outputs" not in vars(engine)
engine.set_has_attention_mask(True)
assert engine.has_bool_tensors is True
ascend_adapt.disable()
assert not hasattr(engine, "set_has_attention_mask")
assert PipelineEngine._INSTRUCTION_MAP["forward"] is PipelineEngine._exec_forward_pass
"""
    job = run(code, tmp_path, PYTHONPATH=str(tmp_path))
    assert job.returncode == 0, job.stderr


def test_torch_six_for_old_releases_on_a_stand_in(tmp_path):
    stand_in_deepspeed(tmp_path, "0.8.1")
    (tmp_path / "deepspeed-0.8.1.dist-info").mkdir()
    (tmp_path / "deepspeed-0.8.1.dist-info" / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: deepspeed\nVersion: 0.8.1\n"
    )
    code = """
import ascend_adapt
ascend_adapt.enable(disable=["cuda_code.torch_six_of_programs"])
from torch._six import inf, string_classes
assert inf == float("inf") and string_classes == (str, bytes)
assert ascend_adapt.status()["torch_six"].state == "applied"
import numpy
assert numpy.BUFSIZE == 8192
ascend_adapt.disable()
import importlib.util
assert importlib.util.find_spec("torch._six") is None and not hasattr(numpy, "BUFSIZE")
"""
    job = run(code, tmp_path, PYTHONPATH=str(tmp_path))
    assert job.returncode == 0, job.stderr


def test_fused_adam_of_releases_that_select_npus_and_have_none_on_a_stand_in(tmp_path):
    accelerator = """
class NPU_Accelerator:
    def create_op_builder(self, class_name): return f"no {class_name}"
"""
    stand_in_deepspeed(tmp_path, "0.11.1", **{"accelerator.npu_accelerator": accelerator})
    code = """
import ascend_adapt
flags = [f"overflow_flag_{where}" for where in ("zero_1_2", "zero_3", "fp16", "fp16_norm")]  # not in this stand-in
ascend_adapt.enable(device="npu", disable=flags)
from deepspeed.accelerator.npu_accelerator import NPU_Accelerator
assert NPU_Accelerator().create_op_builder("FusedAdamBuilder").load().__name__ == "TorchFusedAdam"
assert NPU_Accelerator().create_op_builder("AsyncIOBuilder") == "no AsyncIOBuilder"
"""
    job = run(code, tmp_path, PYTHONPATH=str(tmp_path))
    assert job.returncode == 0, job.stderr


@pytest.mark.parametrize("bad", ["none", "inf", "-inf", "nan", "sparse", "nothing"])
def test_gradients_are_searched_for_infinities_as_deepspeed_does(bad):
    from deepspeed.runtime.zero.stage_1_and_2 import DeepSpeedZeroOptimizer

    from ascend_adapt_plugins.deepspeed_runtime import gradient_checks

    def optimizer():
        torch.manual_seed(0)
        gradients = [torch.randn(5), torch.zeros(0), None, torch.randn(2, 3, dtype=torch.bfloat16)]
        if bad in ("inf", "-inf", "nan"):
            gradients[3][1, 1] = float(bad)
        if bad == "sparse":
            gradients.append(torch.tensor([[0.0, float("inf")]]).to_sparse())
        if bad == "nothing":
            gradients = [None]
        # The attributes that the method reads.
        return SimpleNamespace(
            bit16_groups=[[], []],
            averaged_gradients={0: gradients, 1: [torch.randn(2)] if bad != "nothing" else []},
            _has_inf_or_nan=DeepSpeedZeroOptimizer._has_inf_or_nan,
        )

    theirs = DeepSpeedZeroOptimizer.has_overflow_partitioned_grads_serial(optimizer())
    ours = gradient_checks.batched_overflow_check.function(optimizer())
    assert ours.dtype == theirs.dtype
    assert ours.tolist() == theirs.tolist()
    assert ours.tolist() == [bad not in ("none", "nothing")]


@pytest.mark.parametrize(("stage", "started"), [(0, ["reduce"]), (1, ["backward", "inner", "reduce"])])
def test_a_stage_that_times_its_backward_pass_is_not_timed_within(stage, started):
    with ascend_adapt.enabled(device="cpu") as status:
        from deepspeed.runtime.pipe.engine import PipelineEngine

        assert status["deepspeed.backward_timer_start"].state in ("armed", "applied")
        engine = object.__new__(PipelineEngine)
        engine.stage_id, engine.num_stages = stage, 2
        names = {
            "backward_timers": ["backward"],
            "backward_inner_timers": ["inner"],
            "backward_reduce_timers": ["reduce"],
        }
        engine.engine_timers, seen = SimpleNamespace(**names), []
        engine.timers = lambda name: SimpleNamespace(start=lambda: seen.append(name))
        for listed in vars(engine.engine_timers).values():
            engine._start_timers(listed)
    assert seen == started
    assert "_start_timers" not in vars(PipelineEngine)


@pytest.mark.parametrize("asked", [{}, {"load_optimizer_states": False}, {"load_module_only": True}])
@pytest.mark.parametrize("loads", [None, "_load_zero_checkpoint", "load_state_dict"])
def test_fp32_weights_follow_where_nothing_was_loaded_for_the_optimizer(loads, asked, caplog):
    """On stand-ins of an engine and its optimizer, which report what was called."""
    called = []

    class Optimizer:
        def refresh_fp32_params(self):
            called.append("refresh_fp32_params")

        def load_state_dict(self):
            called.append("load_state_dict")

    class Engine:
        optimizer = Optimizer()

        def zero_optimization_partition_weights(self):
            return False

        def _load_zero_checkpoint(self):
            called.append("_load_zero_checkpoint")

        def load_checkpoint(self, load_dir, load_optimizer_states=True, load_module_only=False):
            for owner in (self, self.optimizer):
                if loads is not None and hasattr(owner, loads):
                    getattr(owner, loads)()
            return f"{load_dir}/file", {}

    engine = Engine()
    result = checkpoints.refresh_master_weights.function(engine.load_checkpoint, engine, ("folder",), asked)
    assert result == ("folder/file", {})
    assert called == [loads or "refresh_fp32_params"]
    assert ("has no optimizer states" in caplog.text) == (loads is None and not asked)
    assert "_load_zero_checkpoint" not in vars(engine)
    assert "load_state_dict" not in vars(engine.optimizer)


def test_what_only_deepspeeds_own_launcher_sets(tmp_path):
    code = """
import os
import ascend_adapt
ascend_adapt.enable(strict=True)
import deepspeed
from types import SimpleNamespace
from deepspeed.accelerator import get_accelerator
from deepspeed.runtime.model_checkpointing.utils import create_universal_parallel_info
from deepspeed.utils import numa
count = lambda: get_accelerator().device_count()
os.environ["LOCAL_WORLD_SIZE"] = "3"
assert count() == 3
os.environ["LOCAL_WORLD_SIZE"] = "1"
deepspeed.init_distributed("gloo")
info = create_universal_parallel_info(SimpleNamespace(mpu=None), has_moe_layers=False)
assert (info.num_machines, info.machine_rank) == (1, 0), info
os.environ["LOCAL_SIZE"] = "5"
assert count() == 5, "of the launcher itself"
del os.environ["LOCAL_SIZE"], os.environ["LOCAL_WORLD_SIZE"]
ours = count()
def without_numactl():  # as before 0.16
    raise FileNotFoundError("numactl")
counted, numa.get_numa_cores = numa.get_numa_cores, without_numactl
assert count() == 1, "numactl is not installed"
numa.get_numa_cores = counted
ascend_adapt.disable()
assert ours == get_accelerator().device_count(), "without a launcher, as before"
"""
    with Ports() as ports:
        reported = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(ports.rendezvous), "GROUP_RANK": "0"}
    job = run(code, tmp_path, RANK="0", LOCAL_RANK="0", WORLD_SIZE="1", LOCAL_WORLD_SIZE="1", **reported)
    assert job.returncode == 0, job.stderr


@pytest.mark.parametrize(
    ("listed", "numbers"),
    [
        ("9.0a", "9.0+PTX"),
        ("8.0 9.0a", "8.0;9.0+PTX"),
        ("9.0;9.0a;10.0f+PTX", "9.0;10.0+PTX"),
        ("12.0a+PTX", "12.0+PTX"),
        ("8.6;9.0+PTX", "8.6;9.0+PTX"),
    ],
)
def test_the_cuda_architectures_that_torch_reads_are_read(listed, numbers, monkeypatch):
    from deepspeed.ops.op_builder.fused_adam import FusedAdamBuilder

    monkeypatch.setenv("TORCH_CUDA_ARCH_LIST", listed)
    builder = FusedAdamBuilder()
    builder.jit_mode = True
    with ascend_adapt.enabled(device="cuda"):
        assert builder.compute_capability_args() == []
    # What torch compiles for, which takes the highest one for later devices too.
    assert os.environ["TORCH_CUDA_ARCH_LIST"] == numbers


def test_a_cuda_architecture_by_name_is_that_of_the_devices(monkeypatch):
    from deepspeed.ops.op_builder.fused_adam import FusedAdamBuilder

    monkeypatch.setenv("TORCH_CUDA_ARCH_LIST", "Hopper")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)  # stand-in of one GPU
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda index: (9, 0))
    builder = FusedAdamBuilder()
    builder.jit_mode = True
    with pytest.raises(ValueError, match="Hopper"):
        builder.compute_capability_args()
    with ascend_adapt.enabled(device="cuda"):
        builder.compute_capability_args()
    assert os.environ["TORCH_CUDA_ARCH_LIST"] == "9.0+PTX"
    monkeypatch.setenv("TORCH_CUDA_ARCH_LIST", "Hopper")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    with ascend_adapt.enabled(device="cuda"), pytest.raises(RuntimeError, match="found no CUDA devices"):
        builder.compute_capability_args()
    assert os.environ["TORCH_CUDA_ARCH_LIST"] == "Hopper"


# As Megatron-DeepSpeed calls it: a method of the model, its result in client_state; and its templates' configuration.
MIXTURE_OF_EXPERTS = """
import os, sys
os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="0", RANK="0", WORLD_SIZE="1", LOCAL_RANK="0")
import ascend_adapt
ascend_adapt.enable(strict=True)
import deepspeed, torch
from deepspeed.moe.layer import MoE
deepspeed.init_distributed("gloo", init_method="tcp://127.0.0.1:0?rank=0&world_size=1")

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.experts = MoE(8, torch.nn.Linear(8, 8), num_experts=2)
    def universal_checkpoint_info(self):
        return {}

configuration = {"train_batch_size": 1, "curriculum_learning": {"enabled": False}}
model = Model()
optimizer = torch.optim.Adam(model.parameters())
engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=configuration)
passed = {"universal_checkpoint_info": {"universal_checkpoint_version": 0.2}, "iteration": 3}
engine.save_checkpoint(sys.argv[1], tag="saved", client_state=passed)
saved = torch.load(f"{sys.argv[1]}/saved/mp_rank_00_model_states.pt", weights_only=False)
assert {name: saved[name] for name in passed} == passed, saved
assert model.universal_checkpoint_info() == {}
_, loaded = engine.load_checkpoint(sys.argv[1], tag="saved")
assert loaded["universal_checkpoint_info"] == passed["universal_checkpoint_info"], loaded
from deepspeed.runtime.config import DeepSpeedConfigError, _reject_removed_config_keys as refuse
refuse({"zero_optimization": {"stage": 1, "mics_hierarchical_params_gather": False}})
for on in ({"curriculum_learning": {"enabled": True}}, {"zero_optimization": {"mics_shard_size": 2}}):
    try:
        refuse(on)
    except DeepSpeedConfigError:
        continue
    raise AssertionError(on)
ascend_adapt.disable()
for without in (
    lambda: engine.save_checkpoint(sys.argv[1], tag="saved", client_state=passed),
    lambda: deepspeed.DeepSpeedConfig(configuration),
):
    try:
        without()
    except (TypeError, DeepSpeedConfigError) as error:
        print(error)
"""


def test_a_mixture_of_experts_of_megatron_is_saved_and_what_is_switched_off_is_accepted(tmp_path):
    environ = {"TORCH_EXTENSIONS_DIR": str(tmp_path), "DS_ACCELERATOR": "cpu"}
    job = forked.run(MIXTURE_OF_EXPERTS, tmp_path, str(tmp_path / "checkpoint"), **environ)
    assert job.returncode == 0, job.stderr
    assert "'method' object is not iterable" in job.stdout
    assert "has been removed" in job.stdout


def test_flat_weights_that_require_a_gradient_are_gathered():
    """Without the patch gloo refuses them, as in DeepSpeed 0.12.4 to 0.12.6 with ZeRO 1 and 2."""
    store = torch.distributed.HashStore()

    def rank(number):
        group = torch.distributed.ProcessGroupGloo(store, number, 2)
        flat = torch._utils._flatten_dense_tensors([torch.nn.Parameter(torch.zeros(2)) for _ in range(2)])
        assert flat.requires_grad

        def gather():
            group._allgather_base(flat, torch.full((2,), float(number))).wait()

        with pytest.raises(RuntimeError, match="Output 0 of Split is a view and is being modified inplace"):
            gather()
        communication.all_gather_without_grad.function(gather, None, (), {})
        return flat.tolist()

    with ThreadPoolExecutor(2) as ranks:
        assert list(ranks.map(rank, (0, 1))) == [[0.0, 0.0, 1.0, 1.0]] * 2


def test_the_cpu_has_streams():
    with ascend_adapt.enabled(device="cpu"):
        from deepspeed.accelerator.cpu_accelerator import CPU_Accelerator

        stream = CPU_Accelerator().Stream(device="cpu")
        assert stream.query()
        stream.synchronize()
    assert CPU_Accelerator().Stream is None
