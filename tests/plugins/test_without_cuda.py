"""Code that says torch.cuda, on a CPU: its own modules see a torch whose CUDA is the CPU, and nobody else does."""

from __future__ import annotations

import ast
import importlib.util
import os
import sys
from pathlib import Path

import pytest

CODE_BASE = {
    "codebase__early": """
        import torch
        import torch.distributed as dist
        from torch import autocast, load
        from torch.cuda import current_device, _lazy_call
        from torch.cuda.amp import GradScaler
    """,
    "codebase__late": """
        import torch.cuda
        from torch import cuda
        @torch.jit.script
        def scripted(x):
            return torch.tanh(x)
    """,
    "stranger": "import torch",
    "plugin_of_codebase": """
        from ascend_adapt import CodeBase, hookimpl
        from ascend_adapt_plugins.without_cuda import without_cuda
        HOST = CodeBase("codebase", present=("codebase/early.py",))
        @hookimpl
        def register_patches():
            return without_cuda("codebase.start:begin", host=HOST)
    """,
    "codebase__start": "def begin():\n    return 'begun'",
}
BEGIN = """
import sys, warnings, ascend_adapt, torch, stranger, plugin_of_codebase
warnings.simplefilter("ignore")
ascend_adapt.enable(plugins=[plugin_of_codebase], device="cpu")
import codebase.early as early
from codebase.start import begin
assert begin() == begin() == "begun"
import codebase.late as late
t = early.torch
"""


@pytest.fixture
def run(site):
    site.write(**CODE_BASE)
    return lambda code, **environ: site.run(BEGIN + code, **environ)


def test_only_the_code_base_sees_cuda(run):
    run("""
assert early.torch.cuda.is_available() and late.torch.cuda.is_available() and late.cuda.is_available()
assert early.current_device() == 0
assert not torch.cuda.is_available() and stranger.torch is torch and sys.modules["torch"] is torch
assert sys.modules["torch.cuda"] is torch.cuda and torch.accelerator.current_accelerator() is None
from torch.utils.data import DataLoader
assert next(iter(DataLoader([1, 2], pin_memory=True))).device.type == "cpu"
torch.optim.AdamW([torch.nn.Parameter(torch.ones(2))], fused=True).step()
import inspect
assert late.__loader__ is late.__spec__.loader and "scripted" in inspect.getsource(late)
""")


MADE_ON_CUDA = """
t.ones(2).cuda() | t.ones(2).cuda(0) | t.ones(2).to("cuda") | t.ones(2).to("cuda:1") | t.ones(2).to(0)
t.ones(2).to(device="cuda") | t.ones(2).to(t.device("cuda")) | t.ones(2).to(t.device("cuda", 0), t.half)
t.ones(2).to(t.half) | t.ones(2).to(t.ones(1)) | t.ones(2).type("torch.cuda.HalfTensor") | t.ones(2).pin_memory()
t.empty(2, device=0) | t.zeros(2, device="cuda") | t.tensor([1.0], device=t.device("cuda", 0))
t.full((2,), 1.0, device="cuda") | t.arange(3, device=t.cuda.current_device()) | t.as_tensor([1], device="cuda")
t.randint(0, 3, (2,), device="cuda") | t.ones(2).new_zeros(2, device="cuda") | t.zeros_like(t.ones(1), device="cuda")
t.nn.Linear(2, 2).cuda().weight | t.nn.Linear(2, 2).cuda(0).weight | t.nn.Linear(2, 2).to("cuda:0").weight
t.nn.Linear(2, 2, device="cuda").weight | t.nn.Embedding(2, 2, device=0).weight | t.nn.Parameter(t.empty(2, device=0))
t.cuda.LongTensor([1]) | t.cuda.FloatTensor([1.0]) | t.cuda.ByteTensor([True]) | t.cuda.HalfTensor(2)
"""


def test_what_is_sent_to_cuda_or_made_there_lies_in_host_memory(run):
    expressions = [one.strip() for line in MADE_ON_CUDA.strip().splitlines() for one in line.split(" | ")]
    assert len(expressions) == 31
    checks = "\n".join(f"made = {one}\nassert made.device.type == 'cpu', made" for one in expressions)
    run(checks)


def test_checkpoints_of_gpus_are_loaded_into_host_memory(run):
    run("""
import io
def written(value):
    torch.save(value, file := io.BytesIO())
    file.seek(0)
    return file
def kept_on_a_gpu(storage, of_gpu=torch.serialization.location_tag):
    return "cuda:1"
torch.serialization.location_tag = kept_on_a_gpu
saved = written({"w": torch.ones(2)}).getvalue()
assert b"cuda:1" in saved
for where in ("cuda", "cuda:0", t.device("cuda", 1), {"cuda:1": "cuda:0"}, None, "cpu", lambda storage, place: storage):
    for load in (t.load, early.load):
        assert t.equal(load(io.BytesIO(saved), map_location=where)["w"], t.ones(2)), where
try:
    torch.load(io.BytesIO(saved))
except RuntimeError as error:
    assert "CUDA" in str(error)
else:
    raise SystemExit("others see CUDA, too")
""")


def test_autocast_and_its_loss_scale_are_in_force_as_on_a_gpu(run):
    run("""
a = t.ones(2, 2)
for make, dtype in (
    (lambda: t.autocast("cuda"), t.float16),
    (lambda: t.autocast("cuda", dtype=t.bfloat16), t.bfloat16),
    (lambda: t.autocast(device_type="cuda", dtype=t.bfloat16), t.bfloat16),
    (lambda: early.autocast("cuda", t.bfloat16), t.bfloat16),
    (lambda: t.amp.autocast("cuda", dtype=t.bfloat16), t.bfloat16),
    (lambda: t.cuda.amp.autocast(), t.float16),
    (lambda: late.cuda.amp.autocast(dtype=t.bfloat16), t.bfloat16),
    (lambda: t.autocast("cuda", dtype=t.bfloat16, enabled=False), t.float32),
):
    with make():
        assert (a @ a).dtype == dtype, dtype
    assert (a @ a).dtype == t.float32
@t.autocast("cuda", dtype=t.bfloat16)
def decorated():
    return a @ a
assert decorated().dtype == t.bfloat16
for scaler in (t.amp.GradScaler(), t.amp.GradScaler("cuda"), t.cuda.amp.GradScaler(), early.GradScaler(init_scale=8.0)):
    weight = torch.nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([weight], lr=1.0)
    scaler.scale((weight * torch.tensor([1.0, float("inf")])).sum()).backward()
    before = scaler.get_scale()
    scaler.step(optimizer), scaler.update()
    assert t.equal(weight, t.ones(2)) and scaler.get_scale() == before / 2
assert torch.autocast is not t.autocast and stranger.torch.autocast is torch.autocast
t.set_default_device("cuda")
assert torch.ones(1).device.type == "cpu"
""")


def test_streams_events_generators_and_backends_have_their_meaning(run):
    run(
        """
state = t.cuda.get_rng_state()
first = t.rand(3)
t.cuda.set_rng_state(state, device="cuda")
assert t.equal(first, t.rand(3))
generator = t.cuda.default_generators[t.cuda.current_device()]
generator.set_state(state)
assert t.equal(first, t.rand(3))
called = []
early._lazy_call(lambda: called.append(1))
assert called == [1]
start, end = t.cuda.Event(enable_timing=True), t.cuda.Event(enable_timing=True)
with t.cuda.stream(t.cuda.Stream(device=0)):
    start.record()
    end.record()
t.cuda.current_stream().wait_stream(t.cuda.default_stream())
assert start.elapsed_time(end) >= 0 and t.cuda.max_memory_allocated() == 0
t.cuda.nvtx.range_push("x"), t.cuda.nvtx.range_pop()
t.cuda.set_device(1)
assert t.cuda.current_device() == 1 and t.cuda.device_count() == 2
early.dist.init_process_group(backend="nccl", init_method="tcp://127.0.0.1:0", rank=0, world_size=1)
assert torch.distributed.get_backend() == "gloo"
assert torch.distributed.get_backend(early.dist.new_group([0], backend="nccl")) == "gloo"
torch.distributed.destroy_process_group()
""",
        LOCAL_WORLD_SIZE="2",
    )


def test_profilers_of_a_gpu_have_nothing_to_record(run):
    run("""
t.cuda.memory._record_memory_history(True, trace_alloc_max_entries=10, trace_alloc_record_context=True)
assert t.cuda.memory._snapshot() == {"segments": [], "device_traces": []}
assert t.cuda.cudart().cudaProfilerStart() == t.cuda.cudart().cudaProfilerStop() == 0
with t.cuda.profiler.profile():
    pass
assert t.cuda.memory.memory_stats is torch.cuda.memory.memory_stats
""")


def test_scripted_compiled_and_differentiated_code_works(run):
    run("""
assert t.equal(late.scripted(t.ones(1)), t.ones(1).tanh())
assert t.equal(torch.compile(lambda x: x.cuda() + 1, backend="eager", fullgraph=True)(torch.ones(2)), t.ones(2) * 2)
x = t.ones(2, device="cuda", requires_grad=True)
for reentrant in (True, False):
    def loss():
        return torch.utils.checkpoint.checkpoint(lambda y: (y.cuda() ** 2).sum(), x, use_reentrant=reentrant)
    loss().backward()
    torch.autograd.backward([loss()], [torch.ones(())])
    assert t.equal(x.grad, t.ones(2) * 4), x.grad
    x.grad = None
assert t.equal(torch.autograd.grad(loss(), [x])[0], t.ones(2) * 2)
""")


def test_what_a_cpu_has_no_answer_for_fails_as_without_cuda(run):
    run("""
try:
    t.cuda.mem_get_info()
except (AssertionError, RuntimeError) as error:
    assert "CUDA" in str(error) or "NVIDIA" in str(error)
else:
    raise SystemExit("a lie")
""")


def test_the_patch_says_that_it_stays(run):
    run("""
def of_this(status, patch):
    (found,) = [one for one in status.outcomes if one.patch == patch and one.target == "codebase.start:begin"]
    return found
outcome = of_this(ascend_adapt.status(), "cuda_on_cpu")
assert outcome.state == "applied" and not outcome.reversible
other = of_this(ascend_adapt.status(), "cuda_on_npu")
assert other.state == "skipped" and "this process runs on cpu" in other.reason
outcome = of_this(ascend_adapt.disable(), "cuda_on_cpu")
assert outcome.state == "reverted" and "cannot be undone" in outcome.reason
""")


UPSTREAMS = os.environ.get("ASCEND_ADAPT_UPSTREAMS", "")
# An import inside a function asks for the real torch: these are there, and take nothing from torch.cuda.
HARMLESS = {
    "from torch.optim import SGD, Adam, AdamW",
    "from torch.optim.optimizer import _params_t",
    "from torch.utils.tensorboard import SummaryWriter",
}


@pytest.mark.parametrize("folder", ["gpt-neox", "gpt-neox-v2.0", "GLM"])
def test_no_call_of_the_code_base_escapes(folder):
    if not (Path(UPSTREAMS) / folder).is_dir() or not UPSTREAMS:
        pytest.skip(f"not checked: {folder} (ASCEND_ADAPT_UPSTREAMS)")
    own = [path for path in (Path(UPSTREAMS) / folder).rglob("*.py") if "tests" not in path.parts]
    assert len(own) > 50
    assert [one for path in own for one in escapes(path)] == []


def escapes(path: Path) -> list[str]:
    """The imports of torch inside functions, which no global name shows."""
    try:
        tree = ast.parse(path.read_text())
    except SyntaxError:
        return []
    inner = [
        ast.unparse(node)
        for scope in ast.walk(tree)
        if isinstance(scope, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
        for node in ast.walk(scope)
        if isinstance(node, (ast.Import, ast.ImportFrom))
    ]
    torch_s = [line for line in inner if "torch" in line.replace("torch_", "").replace(".", " ").split()]
    return [f"{path}: {line}" for line in torch_s if line not in HARMLESS]


def test_many_code_bases_in_one_process_ask_for_a_module_once_each(tmp_path, monkeypatch):
    from ascend_adapt_plugins.without_cuda.code_base import CudaCodeBase, LateModules

    asked = []

    class Last:
        def find_spec(self, name, path=None, target=None):
            asked.append(name)

    late = [LateModules(CudaCodeBase(tmp_path, ("nowhere",)), asked.append) for _ in range(12)]
    monkeypatch.setattr(sys, "meta_path", [*late, Last()])
    assert importlib.util.find_spec("nowhere") is None
    assert len(asked) == len(late) + 1
