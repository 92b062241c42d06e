"""What Megatron asks for that only a machine with CUDA has: on stand-ins of the functions that the patches are for."""

from __future__ import annotations

import sys

import pytest

# Code of our own, of the shape of Megatron's: what each patch targets, and how others use it while they are imported.
MEGATRON = {
    "megatron__core__utils": """
        import torch
        def is_torch_min_version(version):
            return True
    """,
    "megatron__core__jit": """
        import torch
        from megatron.core.utils import is_torch_min_version
        jit_fuser = torch.compile if is_torch_min_version("2.2.0a0") else torch.jit.script
    """,
    "megatron__core__fusions": """
        from megatron.core.jit import jit_fuser
        def plain(x):
            return x + 1
        fused = jit_fuser(plain)
        @jit_fuser
        def decorated(x):
            return x + 1
    """,
    "megatron__core__transformer__moe__ops__paged_stash": """
        import triton
        import triton.language as tl
        @triton.jit
        def kernel(pointer, SIZE: tl.constexpr, count: tl.int32):
            tl.store(pointer, 1)
    """,
    "megatron__core__guarded": """
        try:
            import triton
            HAVE_TRITON = True
        except ImportError:
            HAVE_TRITON = False
    """,
    "megatron__core__datasets__utils": """
        import sys
        def compile_helpers():
            sys.exit(1)
    """,
    "megatron__core__datasets__helpers": """
        from megatron.core.datasets.helpers_cpp import *
        from megatron.core.datasets.helpers_cpp import build_sample_idx_int32
    """,
    "megatron__core__fp8_utils": """
        def quantize_param_shard(model_params, main_params, start_offsets, group):
            raise RuntimeError("no TransformerEngine")
    """,
    "megatron__core__optimizer__distrib_optimizer": """
        import torch
        class DistributedOptimizer:
            def __init__(self, param):
                self.is_half = param.type() in ['torch.cuda.HalfTensor', 'torch.cuda.BFloat16Tensor']
                self.of_shards = self._build_model_and_main_param_groups(param)
            @classmethod
            def _build_model_and_main_param_groups(cls, param):
                return param.type() == 'torch.cuda.FloatTensor'
            def load_state_dict(self, state_dict): ...
            def _set_main_param_and_optimizer_states(self, model_param, tensors): ...
    """,
    "megatron__core__optimizer__clip_grads": """
        def clip_grad_by_total_norm_fp32(param):
            assert param.grad.type() == 'torch.cuda.FloatTensor'
    """,
    "megatron__training__utils": """
        import torch
        def get_device_arch_version():
            return torch.cuda.get_device_properties(torch.device("cuda:0")).major
    """,
    "megatron__training__initialize": "def _warmup_jit_function():\n    raise OSError('no GPU')\n",
    "megatron__training__models": "from typing import override",
}
BEGIN = """
import warnings
warnings.simplefilter("ignore")
import sys, torch, ascend_adapt
ascend_adapt.enable(plugins=[], device="cpu")
import megatron.core
def state(patch):
    return ascend_adapt.status()[f"megatron_lm.{patch}"].state
"""


@pytest.fixture
def run(site):
    site.package("megatron.core", "import megatron.core.utils, megatron.core.jit, megatron.core.fusions")
    site.write(**MEGATRON)
    site.package("megatron.legacy.fused_kernels", "def load(args):\n    raise OSError('nvcc')\n")
    (site.folder / "pretrain_ict.py").touch()
    core = site.folder / "megatron/core/__init__.py"
    core.write_text("__version__ = '0.12.1'\nimport megatron.core.utils, megatron.core.jit, megatron.core.fusions\n")
    # As in a checkout: megatron itself has no code.
    (site.folder / "megatron/__init__.py").unlink()
    return lambda code: site.fork(BEGIN + code)


def test_kernels_can_be_defined_without_triton_and_nobody_else_sees_it(run):
    run("""
import importlib.util
assert importlib.util.find_spec("triton") is None, "this test is for machines without Triton"
from megatron.core.transformer.moe.ops import paged_stash
assert not [name for name in sys.modules if name.partition(".")[0] == "triton"]
assert importlib.util.find_spec("triton") is None
import megatron.core.guarded as guarded
assert not guarded.HAVE_TRITON
try:
    paged_stash.kernel[(1,)](1, 2, 3)
except ascend_adapt.errors.AdaptError as error:
    assert "paged_stash.kernel: is a Triton kernel, but Triton is not installed" in str(error), error
else:
    raise SystemExit("it ran")
assert state("triton_stub") == state("triton_language") == "applied"
""")


def test_what_is_fused_while_megatron_is_imported_is_not_compiled(run):
    run("""
from megatron.core import fusions
assert fusions.fused is fusions.plain and fusions.decorated(1) == 2
assert state("no_compilation") == "applied"
""")


def test_the_order_of_samples_is_computed_where_it_cannot_be_compiled(run):
    run("""
import numpy as np
from megatron.core.datasets.utils import compile_helpers
assert compile_helpers() is None
from megatron.core.datasets import helpers
from ascend_adapt.data.megatron_helpers import helpers_module
given = np.array([5, 3, 9], np.int32), np.array([2, 0, 1], np.int32), 4, 2, 17
ours = helpers_module("ours").build_sample_idx_int32(*given)
assert np.array_equal(helpers.build_sample_idx_int32(*given), ours) and len(ours) > 2
helpers.build_blending_indices(*(np.zeros(4, kind) for kind in (np.int16, np.int64)), [0.5, 0.5], 2, 4, False)
assert state("data_helpers") == state("compile_helper") == "applied"
""")


def test_the_optimizer_knows_the_dtypes(run):
    run("""
from megatron.core.optimizer import clip_grads, distrib_optimizer
single, half = torch.zeros(2, requires_grad=True), torch.zeros(2, dtype=torch.bfloat16)
made = distrib_optimizer.DistributedOptimizer(single)
assert made.of_shards and not made.is_half
made = distrib_optimizer.DistributedOptimizer(half)
assert made.is_half and not made.of_shards
single.grad = torch.ones(2)
clip_grads.clip_grad_by_total_norm_fp32(single)
assert single.type() == "torch.FloatTensor"
""")


def test_without_parameters_in_fp8_nothing_is_quantized(run):
    run("""
from megatron.core.fp8_utils import quantize_param_shard
assert quantize_param_shard([], [], [], None) is None
try:
    quantize_param_shard([1], [1], [1], None)
except RuntimeError as error:
    assert "TransformerEngine" in str(error)
else:
    raise SystemExit("silent")
assert state("quantize_without_transformer_engine") == "applied"
""")


def test_legacy_kernels_are_not_built_and_the_generation_is_returned(run):
    run("""
from megatron.training.initialize import _warmup_jit_function
assert _warmup_jit_function() is None
import megatron.legacy.fused_kernels as kernels
from megatron.training.utils import get_device_arch_version
assert kernels.load(None) is None
assert get_device_arch_version() == 8
""")


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="not checked: this Python has typing.override")
def test_a_name_of_newer_python(run):
    run("""
import typing
import megatron.training.models as models
@models.override
def method(): pass
assert method.__override__ and models.override(1) == 1
assert state("override") == "applied"
ascend_adapt.disable()
assert not hasattr(typing, "override")
""")


def test_a_name_of_older_numpy(run):
    run("""
import numpy
assert int(numpy.product((2, 3))) == 6 and state("product") == "applied"
ascend_adapt.disable()
assert not hasattr(numpy, "product")
""")


def test_float64_is_reduced_by_its_bits(tmp_path):
    import torch

    from ascend_adapt_plugins.megatron_lm.collectives import reduce_by_bits

    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        for op in (torch.distributed.ReduceOp.MIN, torch.distributed.ReduceOp.MAX, torch.distributed.ReduceOp.SUM):
            times = torch.tensor([1764308000.123456, -0.1], dtype=torch.float64)
            before = times.clone()
            reduce_by_bits(times, op, None)
            assert torch.equal(times, before)
    finally:
        torch.distributed.destroy_process_group()
