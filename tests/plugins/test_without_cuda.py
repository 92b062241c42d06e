"""A named code base that says torch.cuda, on a CPU: its modules see a torch whose CUDA is the CPU, others do not."""

from __future__ import annotations

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
    "stranger": """
        import torch
        def sees_cuda():
            return torch.cuda.is_available() or torch.accelerator.current_accelerator() is not None
    """,
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
import warnings, ascend_adapt, torch, plugin_of_codebase
warnings.simplefilter("ignore")
ascend_adapt.enable(plugins=[plugin_of_codebase], device="cpu", cuda_code="off")
import codebase.early
from codebase.start import begin
assert begin() == begin() == "begun"
import codebase.checks
"""
HEAD = """
import sys, stranger, ascend_adapt, torch, torch as t
from codebase import early, late
"""


@pytest.fixture
def run(site):
    """run(code): run ``code`` as a module of the code base."""
    site.write(**CODE_BASE)

    def call(code, **environ):
        (site.folder / "codebase" / "checks.py").write_text(HEAD + code)
        return site.fork(BEGIN, **environ)

    return call


def test_only_the_code_base_sees_cuda(run):
    run("""
assert torch.cuda.is_available() and late.cuda.is_available() and early.current_device() == 0
assert not stranger.sees_cuda() and torch.accelerator.is_available()
from torch.cuda import is_available
assert is_available()
def later():
    import torch.cuda as inside
    return inside.is_available()
assert later()
from torch.utils.data import DataLoader
assert next(iter(DataLoader([1, 2], pin_memory=True))).device.type == "cpu"
torch.optim.AdamW([torch.nn.Parameter(torch.ones(2))], fused=True).step()
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
assert t.cuda.memory.caching_allocator_alloc.__module__ == "torch.cuda.memory"
assert t.cuda.cudart().cudaProfilerStart() == t.cuda.cudart().cudaProfilerStop() == 0
with t.cuda.profiler.profile():
    pass
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
    t.cuda.nccl.unique_id()
except AttributeError as error:
    assert "_nccl_unique_id" in str(error)
else:
    raise SystemExit("a lie")
""")


def test_disable_restores_torch_for_the_code_base(run):
    run("""
def of_this(status, patch):
    (found,) = [one for one in status.outcomes if one.patch == patch and one.target == "codebase.start:begin"]
    return found
assert of_this(ascend_adapt.status(), "cuda_on_cpu").state == "applied"
other = of_this(ascend_adapt.status(), "cuda_on_npu")
assert other.state == "skipped" and "this process runs on cpu" in other.reason and not other.reversible
assert t.cuda.is_available() and early.current_device.__module__ != "torch.cuda"
del sys.modules["codebase.start"]  # as test runners do
outcome = of_this(ascend_adapt.disable(), "cuda_on_cpu")
assert outcome.state == "reverted" and outcome.reason == "", outcome
assert not t.cuda.is_available() and early.current_device.__module__ == "torch.cuda"
try:
    t.ones(2).cuda()
except (AssertionError, RuntimeError):
    pass
else:
    raise SystemExit("still mapped")
""")


def test_a_mapping_that_cannot_be_undone_is_reported():
    from ascend_adapt_plugins.without_cuda.programs import Programs

    programs = Programs("npu", "auto")
    programs._because, programs._change = "train.py", OnNpuWithoutNpu()
    assert 'train.py uses CUDA: "cuda" is mapped to the NPU' in programs.describe()
    programs.undo()
    assert programs.describe() == 'train.py uses CUDA: "cuda" stays mapped to the NPU; this cannot be undone'


class OnNpuWithoutNpu:
    """In place of on_npu.OnNpu, whose changes would stay in this process."""

    reversible = False

    def undo(self, modules):
        """Do nothing, as OnNpu."""
