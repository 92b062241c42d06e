# ruff: noqa: PT018 an answer has several parts
"""What CUDA code asks of its device, one function a question: capabilities.py FILE_OF_CUDA_3 [QUESTION ...]

Nothing here names another device. Each function raises if the answer is not what a training script for a GPU needs. The
outcomes are printed as one JSON line: an empty text, or the traceback. FILE_OF_CUDA_3 was saved on the fourth GPU.
"""

import contextlib
import copy
import importlib
import io
import json
import os
import pickle
import sys
import tempfile
import traceback
import warnings

import torch
import torch.distributed as dist
from torch import nn

QUESTIONS = []
KIND = torch.ones(1, device="cuda").device.type  # what tensors are on; a script never sees this


def question(function):
    QUESTIONS.append(function)
    return function


def here(*tensors):
    """Return whether tensors are on the device: on a CPU that is the host, and is_cuda is False."""
    return all(one.device.type == KIND and one.is_cuda == (KIND != "cpu") for one in tensors)


def fails_with(text, call, *args, **kwargs):
    try:
        call(*args, **kwargs)
    except Exception as error:
        if text not in f"{type(error).__name__}: {error}":
            raise
    else:
        raise AssertionError(f"expected an error with {text!r}")


@question
def tf32_switches():
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    assert torch.backends.cuda.matmul.allow_tf32 and torch.backends.cudnn.allow_tf32
    torch.set_float32_matmul_precision("high")
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False
    torch.backends.cudnn.benchmark, torch.backends.cudnn.deterministic = True, False
    torch.set_float32_matmul_precision("highest")
    assert torch.cuda.is_tf32_supported() and torch.backends.cuda.is_built()


@question
def cudnn():
    assert torch.backends.cudnn.enabled and torch.backends.cudnn.is_available()
    assert torch.backends.cudnn.version() >= 8000
    with torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True):
        nn.Conv2d(1, 1, 3).cuda()(torch.ones(1, 1, 4, 4, device="cuda"))
    assert torch.backends.cudnn.is_acceptable(torch.ones(1, device="cuda"))


@question
def settings_of_libraries_for_gpus():
    cache = torch.backends.cuda.cufft_plan_cache
    cache.max_size = cache[0].max_size = 10
    cache.clear()
    assert cache.size == 0 and cache.max_size == 10
    torch.backends.cuda.preferred_linalg_library("magma")


@question
def bf16_support():
    assert torch.cuda.is_bf16_supported() and torch.cuda.is_bf16_supported(including_emulation=False)
    a = torch.ones(2, 2, dtype=torch.bfloat16, device="cuda")
    assert (a @ a).dtype == torch.bfloat16


@question
def compute_capability_gates():
    major, minor = torch.cuda.get_device_capability()
    assert (8, 0) <= (major, minor) < (9, 0) and torch.cuda.get_device_capability("cuda:0")[0] == 8
    assert torch.cuda.get_device_capability(torch.device("cuda"))[0] >= 7
    assert isinstance(torch.cuda.get_arch_list(), list)
    assert int(torch.version.cuda.split(".")[0]) >= 11 and torch.version.hip is None


@question
def names_and_properties():
    assert isinstance(torch.cuda.get_device_name(), str) and torch.cuda.get_device_name(0)
    for device in (0, "cuda", "cuda:0", torch.device("cuda:0")):
        p = torch.cuda.get_device_properties(device)
    assert p.total_memory > 2**20 and p.multi_processor_count > 0 and (p.major, p.minor) == (8, 0) and p.name
    assert p.warp_size and p.max_threads_per_multi_processor and p.regs_per_multiprocessor is not None
    assert p.shared_memory_per_block is not None and p.L2_cache_size is not None and str(p) and p.uuid is not None
    assert p.is_integrated in (0, 1, True, False) and p.is_multi_gpu_board in (0, 1, True, False)


@question
def memory_figures():
    free, total = torch.cuda.mem_get_info()
    assert 0 < free <= total and torch.cuda.mem_get_info("cuda:0")[1] == torch.cuda.mem_get_info(0)[1] == total
    kept = torch.ones(2**20, device="cuda")
    for name in ("memory_allocated", "max_memory_allocated", "memory_reserved", "max_memory_reserved"):
        assert getattr(torch.cuda, name)() >= 0 and getattr(torch.cuda, name)("cuda:0") >= 0
    assert torch.cuda.memory_stats().get("allocated_bytes.all.peak", 0) >= 0
    assert torch.cuda.memory_stats()["allocated_bytes.all.current"] >= 0
    assert isinstance(torch.cuda.memory_summary(), str) and isinstance(torch.cuda.memory_snapshot(), list)
    torch.cuda.reset_peak_memory_stats()
    torch.cuda.reset_max_memory_allocated()
    torch.cuda.empty_cache()
    torch.cuda.ipc_collect()
    torch.cuda.memory.empty_cache()
    torch.cuda.set_per_process_memory_fraction(0.9)
    assert 0 < torch.cuda.get_per_process_memory_fraction() <= 1 and torch.cuda.memory_usage() >= 0
    assert torch.cuda.get_allocator_backend() == torch.cuda.memory.get_allocator_backend() == "native"
    del kept


@question
def fused_and_foreach_optimizers():
    for kind in ("Adam", "AdamW", "SGD", "Adagrad"):
        losses = []
        for options in ({"foreach": False}, {"foreach": True}, {"fused": True}):
            torch.manual_seed(0)
            model = nn.Linear(4, 2).cuda()
            optimizer = getattr(torch.optim, kind)(model.parameters(), lr=0.1, **options)
            for _ in range(2):
                optimizer.zero_grad()
                model(torch.ones(3, 4, device="cuda")).square().sum().backward()
                optimizer.step()
            losses.append(model(torch.ones(3, 4, device="cuda")).sum().item())
        assert max(losses) - min(losses) < 1e-4, (kind, losses)
    torch.optim.AdamW(model.parameters(), lr=torch.tensor(0.1, device="cuda"), fused=True).step()


def attention(q, k, v, causal):
    """Attention of [B, S, N, D] by its definition."""
    scores = torch.einsum("bqnd,bknd->bnqk", q, k) / q.shape[-1] ** 0.5
    if causal:
        scores = scores.masked_fill(torch.ones(q.shape[1], k.shape[1]).triu(1).bool().to(q.device), float("-inf"))
    return torch.einsum("bnqk,bknd->bqnd", scores.softmax(-1), v)


@question
def flash_attention():
    from flash_attn import flash_attn_func, flash_attn_qkvpacked_func, flash_attn_varlen_func

    torch.manual_seed(0)
    qkv = torch.randn(2, 6, 3, 4, 8, device="cuda", requires_grad=True)
    q, k, v = qkv.unbind(2)
    expected = attention(q, k, v, True)
    (gradient,) = torch.autograd.grad(expected.square().sum(), qkv, retain_graph=True)
    lengths = torch.arange(0, 13, 6, dtype=torch.int32, device="cuda")
    for out in (
        flash_attn_func(q, k, v, causal=True),
        flash_attn_qkvpacked_func(qkv, causal=True),
        flash_attn_varlen_func(
            *(one.flatten(0, 1) for one in (q, k, v)), lengths, lengths, 6, 6, causal=True
        ).unflatten(0, (2, 6)),
    ):
        assert torch.allclose(out, expected, atol=1e-5)
        assert torch.allclose(torch.autograd.grad(out.square().sum(), qkv, retain_graph=True)[0], gradient, atol=1e-4)


@question
def flex_attention():
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    q, k, v = (torch.randn(1, 2, 128, 8, device="cuda", requires_grad=True) for _ in range(3))
    mask = create_block_mask(lambda batch, head, i, j: i >= j, None, None, 128, 128, device="cuda")
    out = flex_attention(q, k, v, block_mask=mask)
    expected = attention(*(one.transpose(1, 2) for one in (q, k, v)), True).transpose(1, 2)
    assert torch.allclose(out, expected, atol=1e-5)
    gradients = (torch.autograd.grad(one.square().sum(), (q, k, v)) for one in (out, expected))
    assert all(torch.allclose(a, b, atol=1e-4) for a, b in zip(*gradients, strict=True))


@question
def xformers():
    import xformers.ops

    q, k, v = (torch.randn(2, 6, 4, 8, device="cuda") for _ in range(3))
    out = xformers.ops.memory_efficient_attention(q, k, v, attn_bias=xformers.ops.LowerTriangularMask())
    assert torch.allclose(out, attention(q, k, v, True), atol=1e-5)


@question
def apex():
    from apex.normalization import FusedLayerNorm, FusedRMSNorm
    from apex.optimizers import FusedAdam

    x = torch.randn(3, 8, device="cuda")
    assert torch.allclose(FusedLayerNorm(8).cuda()(x), nn.functional.layer_norm(x, (8,)), atol=1e-5)
    norm = FusedRMSNorm(8).cuda()
    norm(x).sum().backward()
    FusedAdam(norm.parameters()).step()


@question
def apex_amp_is_imported_and_refused_when_used():
    from apex import amp
    from apex.parallel import convert_syncbn_model

    model = convert_syncbn_model(nn.Linear(4, 2).cuda())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    fails_with("opt_level is 'O2', expected 'O0'", amp.initialize, model, optimizer, opt_level="O2")
    model, optimizer = amp.initialize(model, optimizer, opt_level="O0")
    with amp.scale_loss(model(torch.ones(1, 4, device="cuda")).sum(), optimizer) as loss:
        loss.backward()
    nn.utils.clip_grad_norm_(amp.master_params(optimizer), 1.0)


@question
def bitsandbytes_is_missing_by_name():
    fails_with("bitsandbytes", importlib.import_module, "bitsandbytes")


@question
def torch_compile():
    model = nn.Linear(4, 2).cuda()
    compiled = torch.compile(model, mode="max-autotune", fullgraph=True)
    assert torch.equal(compiled(torch.ones(1, 4, device="cuda")), model(torch.ones(1, 4, device="cuda")))
    assert compiled._orig_mod is model

    @torch.compile
    def double(x):
        return x + x

    @torch.compile(mode="reduce-overhead", dynamic=True)
    def triple(x):
        return 3 * x

    assert double(torch.ones(1, device="cuda")).item() == 2 and triple(torch.ones(1, device="cuda")).item() == 3
    torch._dynamo.config.cache_size_limit = 64
    torch._inductor.config.coordinate_descent_tuning = True
    torch._dynamo.reset()
    torch.compiler.cudagraph_mark_step_begin()


@question
def graphed_callables():
    model = nn.Linear(4, 2).cuda()
    graphed = torch.cuda.make_graphed_callables(model, (torch.ones(1, 4, device="cuda"),))
    assert torch.equal(graphed(torch.ones(1, 4, device="cuda")), model(torch.ones(1, 4, device="cuda")))


@question
def captured_graphs():
    static, graph = torch.zeros(2, device="cuda"), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = static * 2 + 1
    static.fill_(3)
    graph.replay()
    assert out.tolist() == [7, 7]
    for kind in (torch.optim.Adam, torch.optim.AdamW, torch.optim.NAdam, torch.optim.RMSprop, torch.optim.Rprop):
        assert weights_after_three_steps(kind, captured=True) == weights_after_three_steps(kind, captured=False)


@question
def forward_and_backward_captured_apart():
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True), nn.Linear(4, 1)).cuda()
    x = torch.ones(2, 4, device="cuda", requires_grad=True)
    forward, backward = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
    with torch.cuda.graph(forward):
        loss = model(x).sum()
    with torch.cuda.graph(backward):
        (gradient,) = torch.autograd.grad(loss, [x])
    with torch.no_grad():
        x.neg_()
    forward.replay()
    backward.replay()
    assert torch.equal(gradient, torch.autograd.grad(model(x).sum(), [x])[0])


@question
def dropout_captured():
    ones, graph = torch.ones(64, device="cuda"), torch.cuda.CUDAGraph()
    torch.manual_seed(0)
    eager = [nn.functional.dropout(ones).tolist() for _ in range(2)]
    torch.manual_seed(0)
    with torch.cuda.graph(graph):
        out = nn.functional.dropout(ones)
    for expected in eager:
        graph.replay()
        assert out.tolist() == expected


@question
def inference_captured():
    static, graph = torch.zeros(2, device="cuda"), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph), torch.inference_mode():
        out = (static * 2).add_(1)
    static.fill_(3)
    graph.replay()
    assert out.tolist() == [7, 7]


def weights_after_three_steps(kind, captured):
    weight = nn.Parameter(torch.ones(2, device="cuda"))
    weight.grad = torch.zeros_like(weight)
    optimizer = kind([weight], lr=0.1, capturable=True)
    optimizer.step()  # creates the state
    graph = torch.cuda.CUDAGraph()
    if captured:
        with torch.cuda.graph(graph):
            optimizer.step()
    for step in range(3):
        weight.grad.fill_(step + 1)
        graph.replay() if captured else optimizer.step()
    return weight.tolist()


@question
def pickled_tensors():
    x = torch.ones(2, device="cuda")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = pickle.loads(pickle.dumps([x, x.cpu()]))
    assert here(found[0]) and torch.equal(found[0], x) and found[1].device.type == "cpu"


@question
def pinned_memory():
    x = torch.ones(2).pin_memory()
    assert x.cuda(non_blocking=True).sum().item() == 2
    assert torch.empty(2, pin_memory=True).shape == (2,)
    data = torch.utils.data.TensorDataset(torch.arange(4.0))
    for options in ({}, {"pin_memory_device": "cuda"}, {"num_workers": 1, "persistent_workers": True}):
        (batch,) = next(iter(torch.utils.data.DataLoader(data, batch_size=4, pin_memory=True, **options)))
        assert batch.to("cuda:0", non_blocking=True).sum().item() == 6


@question
def pipeline_of_transformers():  # asked before a process group exists: with one, it does not move the model
    from tokenizers import Tokenizer
    from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast, pipeline

    words = {"type": "WordLevel", "vocab": {"<e>": 0, "a": 1, "b": 2}, "unk_token": "<e>"}
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(json.dumps({"version": "1.0", "model": words, "added_tokens": []})),
        eos_token="<e>",
        pad_token="<e>",
    )
    model = GPT2LMHeadModel(GPT2Config(vocab_size=3, n_embd=8, n_layer=1, n_head=2, n_positions=8))
    for device in ("cuda", "cuda:0", torch.device("cuda", 0), 0):
        generate = pipeline("text-generation", model=model, tokenizer=tokenizer, device=device)
        (answer,) = generate("a", max_new_tokens=2, do_sample=False)
        assert answer["generated_text"].startswith("a") and here(next(model.parameters()))
        exec("torch.cuda.set_device(device)", {"__name__": "transformers.models.t5", "torch": torch, "device": device})


@question
def nccl():
    assert dist.is_nccl_available()
    if not dist.is_initialized():
        options = dist.ProcessGroupNCCL.Options()
        options.is_high_priority_stream = True
        dist.init_process_group(
            "nccl", init_method="env://", device_id=torch.device("cuda:0"), pg_options=options, timeout=None
        )
    # Scripts choose the device of what they send by it; gloo takes tensors of the host.
    assert dist.get_backend() == ("gloo" if KIND == "cpu" else "nccl")
    x = torch.ones(2, device="cuda")
    dist.all_reduce(x, op=dist.ReduceOp.AVG)
    dist.barrier(device_ids=[0])
    meter = torch.tensor([3, 0.1], dtype=torch.float64, device="cuda")
    dist.all_reduce(meter)
    assert meter.tolist() == [3, 0.1]
    gathered = [torch.empty_like(x)]
    dist.all_gather(gathered, x)
    out = torch.empty(2, device="cuda")
    dist.all_gather_into_tensor(out, x)
    dist.reduce_scatter_tensor(out, x)
    group = dist.new_group([0], backend="nccl")
    dist.broadcast(x, 0, group=group)
    dist.broadcast(torch.ones(1), 0, group=dist.new_group([0], backend="gloo"))  # the default group has a device_id
    objects = ["a"]
    dist.broadcast_object_list(objects, 0, device=torch.device("cuda:0"))
    assert isinstance(torch.cuda.nccl.version(), tuple)
    assert dist.Backend.NCCL == "nccl" and dist.Backend("nccl") == "nccl"


@question
def mixed_backend_names():
    group = dist.new_group([0], backend="cpu:gloo,cuda:nccl")
    for x in (torch.ones(2), torch.ones(2, device="cuda")):
        dist.all_reduce(x, group=group)


@question
def distributed_data_parallel():
    for devices in ([0], ["cuda:0"], [torch.device("cuda:0")], [torch.cuda.current_device()], None):
        model = nn.parallel.DistributedDataParallel(
            nn.Linear(4, 2).cuda(), device_ids=devices, output_device=devices and devices[0]
        )
        model(torch.ones(1, 4, device="cuda")).sum().backward()
    model = nn.SyncBatchNorm.convert_sync_batchnorm(nn.Sequential(nn.Linear(4, 2), nn.BatchNorm1d(2))).cuda()
    nn.parallel.DistributedDataParallel(model, device_ids=[0])(torch.ones(3, 4, device="cuda")).sum().backward()


@question
def compressed_gradients():
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook

    hooks = (
        default_hooks.bf16_compress_hook,
        default_hooks.fp16_compress_hook,
        default_hooks.bf16_compress_wrapper(default_hooks.allreduce_hook),
    )
    for hook in hooks:
        model = nn.parallel.DistributedDataParallel(nn.Linear(4, 2).cuda(), device_ids=[0])
        model.register_comm_hook(None, hook)
        model(torch.ones(1, 4, device="cuda")).sum().backward()
        assert torch.equal(model.module.weight.grad, torch.ones(2, 4, device="cuda"))
    state = powerSGD_hook.PowerSGDState(None, start_powerSGD_iter=2)
    model = nn.parallel.DistributedDataParallel(nn.Linear(64, 64).cuda(), device_ids=[0])
    model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    for _ in range(4):
        model(torch.ones(1, 64, device="cuda")).sum().backward()


@question
def sync_batch_norm():
    norm = nn.SyncBatchNorm.convert_sync_batchnorm(nn.BatchNorm1d(4)).cuda()
    x = torch.randn(8, 4, device="cuda")
    assert torch.allclose(norm(x), nn.BatchNorm1d(4).cuda()(x), atol=1e-5)


@question
def fsdp1():
    from torch.distributed.fsdp import (
        CPUOffload,
        FullyShardedDataParallel,
        MixedPrecision,
        ShardingStrategy,
    )

    for device in (torch.cuda.current_device(), torch.device("cuda", 0), "cuda:0", None):
        model = FullyShardedDataParallel(
            nn.Linear(4, 2).cuda(),
            device_id=torch.device(device) if isinstance(device, str) else device,
            sharding_strategy=ShardingStrategy.NO_SHARD,
            mixed_precision=MixedPrecision(param_dtype=torch.bfloat16),
            use_orig_params=True,
        )
        model(torch.ones(1, 4, device="cuda")).sum().backward()
        torch.optim.AdamW(model.parameters()).step()
    model = FullyShardedDataParallel(
        nn.Linear(4, 2),
        device_id=torch.cuda.current_device(),
        cpu_offload=CPUOffload(offload_params=True),
        sync_module_states=True,
    )
    model(torch.ones(1, 4, device="cuda")).sum().backward()
    model.clip_grad_norm_(1.0)
    torch.optim.AdamW(model.parameters()).step()


@question
def fsdp2():
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    model = nn.Linear(4, 2).cuda()
    fully_shard(model, mesh=init_device_mesh("cuda", (1,)))
    model(torch.ones(1, 4, device="cuda")).sum().backward()
    torch.optim.AdamW(model.parameters()).step()
    model = fully_shard(nn.Linear(4, 2, device="cuda"))
    model(torch.ones(1, 4, device="cuda")).sum().backward()
    with torch.device("meta"):
        model = nn.Linear(4, 2)
    fully_shard(model)
    model.to_empty(device="cuda")
    model.reset_parameters()
    model(torch.ones(1, 4, device="cuda"))


@question
def device_meshes():
    from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

    mesh = init_device_mesh("cuda", (1, 1), mesh_dim_names=("dp", "tp"))
    assert mesh["tp"].size() == 1 and mesh.device_type in ("cuda", KIND)
    DeviceMesh("cuda", [0])
    from torch.distributed.tensor import Shard, distribute_tensor

    assert distribute_tensor(torch.ones(4, 2), mesh["tp"], [Shard(0)]).full_tensor().sum().item() == 8


@question
def products_of_sparse_matrices():
    places = torch.tensor([[0, 1, 1, 0], [1, 0, 1, 1]])
    sparse = torch.sparse_coo_tensor(places, torch.tensor([1.0, 2, 3, 4]), (2, 2)).cuda().coalesce()
    dense, x = sparse.to_dense(), torch.arange(6.0).reshape(2, 3).cuda().requires_grad_()
    assert here(sparse) and dense.tolist() == [[0, 5], [2, 3]]
    for product in (torch.spmm, torch.sparse.mm, torch.mm, torch.matmul):
        out, expected = product(sparse, x), dense @ x
        assert torch.equal(out, expected), product
        gradients = (torch.autograd.grad(one.square().sum(), x)[0] for one in (out, expected))
        assert torch.allclose(*gradients)
    assert torch.allclose(x.t() @ sparse, x.t() @ dense)
    assert torch.allclose(torch.addmm(x, sparse, x, beta=2, alpha=3), 2 * x + 3 * dense @ x)
    assert torch.allclose(torch.bmm(torch.stack([dense, dense]).to_sparse(), torch.stack([x, x]))[1], dense @ x)
    half = sparse.to(torch.bfloat16) @ x.to(torch.bfloat16)
    assert half.dtype == torch.bfloat16 and torch.allclose(half.float(), dense @ x, rtol=1e-2)
    assert torch.sparse.sum(sparse, dim=1).to_dense().tolist() == [5, 5]


@question
def sparse_gradients():
    for kind in (nn.Embedding, nn.EmbeddingBag):
        losses = []
        for is_sparse in (False, True):
            torch.manual_seed(0)
            table = kind(5, 3, sparse=is_sparse).cuda()
            optimizer = torch.optim.SGD(table.parameters(), lr=0.1)
            for _ in range(2):
                optimizer.zero_grad()
                loss = table(torch.tensor([[1, 2, 1]], device="cuda")).square().sum()
                loss.backward()
                optimizer.step()
            assert table.weight.grad.is_sparse == is_sparse
            losses.append(loss.item())
        assert abs(losses[0] - losses[1]) < 1e-5, (kind, losses)


@question
def channels_last():
    model = nn.Conv2d(3, 4, 3).cuda().to(memory_format=torch.channels_last)
    x = torch.rand(2, 3, 8, 8)
    y = model(x.to("cuda", memory_format=torch.channels_last, non_blocking=True))
    y.sum().backward()
    assert torch.allclose(y.cpu(), nn.functional.conv2d(x, model.weight.cpu(), model.bias.cpu()), atol=1e-5)
    y = torch.empty(2, 3, 4, 4, device="cuda", memory_format=torch.channels_last).contiguous(
        memory_format=torch.channels_last
    )
    assert y.is_contiguous(memory_format=torch.channels_last)


@question
def traced_models():
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(144, 2))
    x = torch.rand(2, 3, 8, 8, device="cuda")
    model.cuda().eval()
    traced = torch.jit.trace(model, x)
    assert torch.allclose(traced(2 * x), model(2 * x), atol=1e-5)
    assert "aten::_convolution" in str(traced.inlined_graph)


@question
def random_states():
    torch.cuda.manual_seed(3), torch.cuda.manual_seed_all(3), torch.cuda.random.manual_seed(3)
    state, all_states = torch.cuda.get_rng_state(), torch.cuda.get_rng_state_all()
    first = torch.rand(3, device="cuda")
    torch.cuda.set_rng_state(state)
    assert torch.equal(first, torch.rand(3, device="cuda"))
    torch.cuda.set_rng_state_all(all_states)
    torch.cuda.set_rng_state(torch.cuda.get_rng_state("cuda:0"), device="cuda:0")
    assert torch.equal(first, torch.rand(3, device="cuda")) and torch.cuda.initial_seed() == 3
    with torch.random.fork_rng(devices=[torch.cuda.current_device()]):
        torch.rand(3, device="cuda")
    with torch.random.fork_rng(devices=["cuda:0"], device_type="cuda"):
        torch.rand(3, device="cuda")
    a = torch.rand(3, device="cuda", generator=torch.Generator("cuda").manual_seed(5))
    generator = torch.Generator(device="cuda:0")
    generator.manual_seed(5)
    assert torch.equal(a, torch.rand(3, device="cuda", generator=generator))
    torch.cuda.default_generators[0].manual_seed(1)


@question
def recomputation_keeps_the_random_state():
    from torch.utils.checkpoint import checkpoint

    x = torch.ones(64, device="cuda", requires_grad=True)
    for reentrant in (True, False):
        torch.manual_seed(0)
        out = checkpoint(lambda x: nn.functional.dropout(x, 0.5), x, use_reentrant=reentrant)
        (gradient,) = torch.autograd.grad(out.sum(), x, retain_graph=True) if not reentrant else (None,)
        assert gradient is None or torch.equal(gradient, out.detach())


@question
def the_old_profiler():
    with torch.autograd.profiler.profile(use_cuda=True) as profile:
        torch.ones(2, device="cuda").sum()
    assert isinstance(profile.key_averages().table(sort_by="self_cpu_time_total"), str)


@question
def profilers():
    from torch.profiler import ProfilerActivity, profile, record_function

    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as p, record_function("mine"):
        torch.ones(2, device="cuda").sum()
    assert isinstance(p.key_averages().table(sort_by="cuda_time_total", row_limit=-1), str)
    with torch.autograd.profiler.emit_nvtx(), torch.cuda.nvtx.range("x"):
        torch.cuda.nvtx.range_push("a"), torch.cuda.nvtx.mark("b"), torch.cuda.nvtx.range_pop()
    torch.cuda.profiler.start(), torch.cuda.profiler.stop()
    with torch.cuda.profiler.profile():
        pass


@question
def memory_snapshots():
    torch.cuda.memory._record_memory_history(max_entries=100)
    with tempfile.TemporaryDirectory() as folder:
        torch.cuda.memory._dump_snapshot(f"{folder}/snapshot.pickle")
        assert os.path.getsize(f"{folder}/snapshot.pickle")
    torch.cuda.memory._record_memory_history(enabled=None)


@question
def streams_and_events():
    side = torch.cuda.Stream()
    torch.cuda.Stream(device="cuda:0", priority=-1)
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        x = torch.ones(2, device="cuda")
        x.record_stream(side)
    with side:
        x = x + 1
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.default_stream().synchronize()
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    x = x * 2
    end.record(torch.cuda.current_stream())
    end.wait()
    torch.cuda.synchronize("cuda:0"), torch.cuda.synchronize(torch.device("cuda")), end.synchronize()
    assert end.query() and side.query() and start.elapsed_time(end) >= 0 and x.tolist() == [4, 4]
    side.wait_event(end)
    assert side.record_event() is not None
    with torch.cuda.device(0), torch.cuda.device("cuda:0"), torch.cuda.device_of(x), torch.cuda.stream(None):
        assert torch.cuda.current_device() == 0
    from torch.cuda.graphs import is_current_stream_capturing
    from torch.cuda.streams import Event, Stream

    Event(enable_timing=True).record(Stream())
    assert not torch.cuda.is_current_stream_capturing() and not is_current_stream_capturing()
    torch.cuda.nvtx.range_end(torch.cuda.nvtx.range_start("step"))


@question
def communication_between_devices():
    from torch.cuda import comm

    x = torch.arange(4.0, device="cuda")
    (copied,) = comm.broadcast(x, [0])
    (part,) = comm.scatter(x, [0])
    assert torch.equal(comm.gather([part], destination=0), copied)
    assert torch.equal(comm.reduce_add([x], destination=0), x)


@question
def cudart():
    runtime = torch.cuda.cudart()
    runtime.cudaProfilerStart(), runtime.cudaProfilerStop()
    torch.cuda.check_error(0)


@question
def attention_backends():
    q = torch.randn(1, 2, 4, 8, device="cuda")
    expected = nn.functional.scaled_dot_product_attention(q, q, q, is_causal=True)
    from torch.nn.attention import SDPBackend, sdpa_kernel

    with torch.backends.cuda.sdp_kernel(enable_flash=True, enable_math=False, enable_mem_efficient=False):
        assert torch.allclose(nn.functional.scaled_dot_product_attention(q, q, q, is_causal=True), expected, atol=1e-5)
    for backends in (SDPBackend.FLASH_ATTENTION, [SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]):
        with sdpa_kernel(backends):
            out = nn.functional.scaled_dot_product_attention(q, q, q, is_causal=True)
        assert torch.allclose(out, expected, atol=1e-5)
    torch.backends.cuda.enable_flash_sdp(True)
    torch.backends.cuda.enable_mem_efficient_sdp(True)
    torch.backends.cuda.enable_math_sdp(True)
    torch.backends.cuda.enable_cudnn_sdp(False)
    assert torch.backends.cuda.flash_sdp_enabled() in (True, False)
    assert torch.backends.cuda.math_sdp_enabled()
    torch.backends.cuda.preferred_linalg_library("default")


@question
def autocast():
    model, x = nn.Linear(4, 2).cuda(), torch.ones(1, 4, device="cuda")
    with torch.cuda.amp.autocast(dtype=torch.bfloat16):
        assert model(x).dtype == torch.bfloat16
    with torch.autocast("cuda", dtype=torch.float16), torch.autocast("cuda", enabled=False):
        assert model(x).dtype == torch.float32
    with torch.amp.autocast(device_type="cuda"):
        assert model(x).dtype == torch.float16 and torch.is_autocast_enabled()
        assert torch.get_autocast_gpu_dtype() == torch.float16
    with torch.autocast(device_type=x.device.type, dtype=torch.bfloat16):
        assert model(x).dtype == torch.bfloat16
    with torch.autocast(torch.device("cuda").type, dtype=torch.bfloat16):
        assert model(x).dtype == torch.bfloat16

    @torch.autocast("cuda", dtype=torch.bfloat16)
    def decorated(x):
        return model(x)

    assert decorated(x).dtype == torch.bfloat16


@question
def gradient_scaling():
    for scaler in (torch.cuda.amp.GradScaler(), torch.amp.GradScaler("cuda"), torch.GradScaler(enabled=True)):
        model = nn.Linear(4, 2).cuda()
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, fused=True)
        with torch.cuda.amp.autocast():
            loss = model(torch.ones(1, 4, device="cuda")).sum()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
        assert scaler.get_scale() > 0 and scaler.state_dict() and scaler.is_enabled()
    of_a_gpu = {"scale": 512.0, "growth_factor": 2.0, "backoff_factor": 0.5, "growth_interval": 9, "_growth_tracker": 1}
    scaler.load_state_dict(of_a_gpu)
    assert scaler.get_scale() == 512 and of_a_gpu.items() <= scaler.state_dict().items()


@question
def functions_of_autograd():
    for before, after in (
        (torch.cuda.amp.custom_fwd, torch.cuda.amp.custom_bwd),
        (torch.amp.custom_fwd(device_type="cuda"), torch.amp.custom_bwd(device_type="cuda")),
    ):

        class Double(torch.autograd.Function):
            @staticmethod
            @before
            def forward(context, x):
                return 2 * x

            @staticmethod
            @after
            def backward(context, gradient):
                return 2 * gradient

        x = torch.ones(2, device="cuda", requires_grad=True)
        with torch.cuda.amp.autocast():
            Double.apply(x).sum().backward()
        assert x.grad.tolist() == [2, 2]

    @torch.cuda.amp.custom_fwd(cast_inputs=torch.float32)
    def forward(context, x):
        return x


@question
def derivatives_in_forward_mode():
    x = torch.tensor([1.0, 2.0], device="cuda")
    _, tangent = torch.func.jvp(lambda one: one**3, (x,), (torch.ones_like(x),))
    hessian = torch.func.hessian(lambda one: (one**3).sum())(x)
    assert here(tangent, hessian) and tangent.tolist() == [3, 12] and hessian.tolist() == [[6, 0], [0, 12]]


@question
def operators_of_the_program():
    @torch.library.custom_op("program::square", mutates_args=(), device_types="cuda")
    def square(x: torch.Tensor) -> torch.Tensor:
        return x * x

    square.register_autograd(
        lambda context, gradient: gradient * 2 * context.saved_tensors[0],
        setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs),
    )
    x = torch.tensor([3.0], device="cuda", requires_grad=True)
    square(x).backward()
    assert x.grad.tolist() == [6]
    library = torch.library.Library("program", "FRAGMENT")
    for name in ("first", "second", "third", "fourth"):
        library.define(f"{name}(Tensor x) -> Tensor")
    library.impl("first", lambda x: x + 1, "CUDA")
    for_cuda = torch.library.Library("program", "IMPL", "CUDA")
    for_cuda.impl("second", lambda x: x + 2)
    torch.library.impl("program::third", "cuda", lambda x: x + 3)
    library.impl("fourth", lambda x: x + 4, "CUDA")
    library.impl("fourth", lambda x: -x, "CPU")
    with torch.no_grad():
        values = [getattr(torch.ops.program, name)(x) for name in ("first", "second", "third")]
        assert here(*values) and torch.cat(values).tolist() == [4, 5, 6]
        assert torch.ops.program.fourth(torch.ones(1)).item() == -1  # its kernel for the CPU


@question
def nested_tensors():
    parts = [torch.ones(2, 3), torch.ones(1, 3)]
    for layout in (torch.strided, torch.jagged):
        nested = torch.nested.nested_tensor(parts, device="cuda", layout=layout)
        assert [here(one) and len(one) for one in nested.unbind()] == [2, 1]


@question
def transformer_encoder_in_evaluation():
    torch.manual_seed(0)
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True), 2).cuda()
    x = torch.randn(2, 5, 8, device="cuda")
    padding = torch.arange(5, device="cuda") >= torch.tensor([[5], [3]], device="cuda")
    expected = encoder(x, src_key_padding_mask=padding)[~padding]
    encoder.eval()
    with torch.no_grad():
        assert torch.allclose(encoder(x, src_key_padding_mask=padding)[~padding], expected, atol=1e-5)


@question
def default_device():
    torch.set_default_device("cuda")
    try:
        assert here(torch.ones(2), nn.Linear(2, 2).weight)
        assert torch.randperm(4, generator=torch.Generator("cuda")).sum().item() == 6
        gradient_scaling()
    finally:
        torch.set_default_device("cpu")
    assert torch.tensor([1]).device.type == "cpu"
    with torch.device("cuda:0"):
        assert torch.zeros(2).device.type == KIND


@question
def default_tensor_type():
    for kind in (torch.cuda.FloatTensor, "torch.cuda.FloatTensor"):
        torch.set_default_tensor_type(kind)
        try:
            assert here(torch.ones(2), torch.zeros(2), torch.tensor([1.0]), nn.Linear(2, 2).weight)
        finally:
            torch.set_default_tensor_type(torch.FloatTensor)
    torch.set_default_tensor_type(torch.cuda.HalfTensor)
    try:
        x = torch.ones(2)
        legacy = torch.Tensor(2, 3), torch.Tensor(torch.Size([2])), torch.Tensor([1, 2]), nn.Parameter(torch.Tensor(2))
        assert here(x, *legacy) and {one.dtype for one in (x, *legacy)} == {torch.float16}
        empty = torch.Tensor()
        assert empty.shape == (0,) and here(empty) and torch.cat([empty, x]).tolist() == [1, 1]
        assert isinstance(x, torch.Tensor) and issubclass(nn.Parameter, torch.Tensor)
        assert issubclass(type("Mine", (type(x),), {}), torch.Tensor) and (torch.Tensor | None) is not None

        class Mine(torch.Tensor):
            pass

        assert issubclass(Mine, type(x)) and torch.Tensor.add is type(x).add
    finally:
        torch.set_default_tensor_type("torch.FloatTensor")
    assert torch.ones(2).dtype == torch.float32 and torch.Tensor(2).device.type == "cpu"


@question
def tensor_types():
    assert torch.cuda.FloatTensor([1, 2]).tolist() == [1, 2] and torch.cuda.LongTensor(3).shape == (3,)
    assert torch.cuda.FloatTensor(2, 3).fill_(0.5).sum().item() == 3 and torch.cuda.ByteTensor([1]).dtype == torch.uint8
    x = torch.ones(2, device="cuda")
    assert isinstance(x, torch.cuda.FloatTensor) and not isinstance(x.half(), torch.cuda.FloatTensor)
    assert isinstance(x.half(), torch.cuda.HalfTensor) and isinstance(x.long(), torch.cuda.LongTensor)
    assert x.type(torch.cuda.HalfTensor).dtype == torch.float16
    assert here(x.type(torch.float16), x.new(2), x.new_zeros(2))
    assert x.type() in ("torch.cuda.FloatTensor", "torch.npu.FloatTensor", "torch.FloatTensor")
    assert here(torch.zeros(1).type(x.type()))
    assert here(torch.ones(2).type_as(x), torch.cuda.BoolTensor([True]))
    from torch.autograd import Variable

    assert Variable(torch.cuda.FloatTensor([1.0]), requires_grad=True).requires_grad


@question
def types_named_by_text():
    assert torch.ones(2, device="cuda").type("torch.cuda.HalfTensor").dtype == torch.float16


@question
def files_saved_on_another_gpu():
    file = io.BytesIO()
    torch.save({"a": torch.ones(2, device="cuda"), "b": 1}, file)
    stored = file.getvalue()
    for where in (
        *("cuda", "cuda:0", torch.device("cuda", 0), {"cuda:3": "cuda:0"}, {"cuda:0": "cpu"}, "cpu"),
        *(lambda storage, location: storage, lambda storage, location: storage.cuda(0)),
        None,
    ):
        with contextlib.suppress(FutureWarning):
            loaded = torch.load(io.BytesIO(stored), map_location=where)
        assert loaded["a"].sum().item() == 2, where
    of_cuda_3 = torch.load(FILE_OF_CUDA_3, map_location="cuda:0")
    assert of_cuda_3["weight"].tolist() == [1, 2] and here(of_cuda_3["weight"])
    assert here(torch.load(FILE_OF_CUDA_3, map_location={"cuda:3": "cuda:0"})["weight"])
    assert torch.load(FILE_OF_CUDA_3, map_location=lambda storage, location: storage)["weight"].tolist() == [1, 2]
    layer = nn.Linear(2, 1, bias=False)
    layer.load_state_dict({"weight": torch.load(FILE_OF_CUDA_3, "cpu")["weight"][None]})


@question
def device_objects():
    assert torch.device("cuda", 0) == torch.device("cuda:0") and torch.device("cuda").type == "cuda"
    assert torch.device("cuda:1").index == 1 and torch.device("cuda").index is None and torch.device(0).index == 0
    assert isinstance(torch.device("cuda"), torch.device) and torch.device("cuda") != torch.device("cpu")
    assert torch.device(torch.cuda.current_device()).index == 0
    assert torch.device(f"cuda:{torch.cuda.device_count() - 1}").index == 0
    assert copy.deepcopy(torch.device("cuda:0")) == torch.device("cuda:0")
    assert len({torch.device("cuda:0"), torch.device("cuda", 0)}) == 1


@question
def branches_on_the_device():
    x, parameter = torch.ones(2, device="cuda"), next(nn.Linear(2, 2).cuda().parameters())
    assert here(x, parameter)
    assert x.device == parameter.device and x.to(parameter.device).device == x.device
    y = torch.zeros(2, device=x.device) + torch.zeros(2, device=f"{x.device.type}") + x.new_ones(2)
    if x.device.type == "cuda":  # a device of another name takes the other branch, which must work
        y = y.cpu()
    y = y.cuda() if torch.cuda.is_available() else y
    assert here(y) and x.get_device() in (0, -1)


@question
def moves_between_devices():
    x = torch.ones(2)
    assert x.cuda().cpu().device.type == "cpu" and not x.cuda().cpu().is_cuda
    for device in ("cuda", "cuda:0", 0, torch.device("cuda"), torch.device("cuda", 0)):
        assert here(x.to(device), torch.zeros(2, device=device), x.cuda(device))
        assert here(nn.Linear(2, 2).to(device).weight, nn.Linear(2, 2, device=device).weight)
        assert here(nn.Linear(2, 2).cuda(device).weight)
    assert here(x.cuda(device="cuda:0", non_blocking=True), x.cuda(0, True))
    assert x.to("cuda", torch.float16, non_blocking=True).dtype == torch.float16
    assert here(x.to(device="cuda", dtype=torch.bfloat16, copy=True), x.to(torch.ones(1).cuda()))
    assert nn.Linear(2, 2).to("cuda", dtype=torch.float16).weight.dtype == torch.float16
    assert here(torch.as_tensor([1.0], device="cuda"), torch.asarray([1.0], device="cuda"))
    assert here(torch.from_numpy(x.numpy()).cuda())
    assert torch.tensor([1], device="cuda").device == torch.arange(3, device="cuda").device
    assert here(torch.randn_like(x, device="cuda"), torch.full((2,), 1.0, device="cuda"))
    packed = nn.utils.rnn.pack_padded_sequence(torch.ones(2, 3, 4), [3, 2], batch_first=True).to("cuda")
    assert packed.data.sum().item() == 20


@question
def data_parallel():
    model = nn.DataParallel(nn.Linear(4, 2)).cuda()
    assert model(torch.ones(3, 4).cuda()).shape == (3, 2)
    model = nn.DataParallel(nn.Linear(4, 2).cuda(), device_ids=[0], output_device=0)
    assert model(torch.ones(3, 4).cuda()).shape == (3, 2) and model.device_ids in ([0], [])
    nn.DataParallel(nn.Linear(4, 2).cuda(), device_ids=list(range(torch.cuda.device_count())))
    from torch.nn.parallel import replicate, scatter

    assert scatter(torch.ones(2, 2).cuda(), [0]) and replicate


@question
def a_triton_kernel_of_its_own():
    fails_with("No module named 'triton'", importlib.import_module, "triton")


@question
def a_cuda_extension_of_its_own():
    from torch.utils.cpp_extension import CUDA_HOME, CUDAExtension, load_inline

    assert CUDA_HOME is None
    fails_with("CUDA_HOME", CUDAExtension, "x", ["x.cu"])
    with tempfile.TemporaryDirectory() as folder:
        fails_with("CUDA_HOME", load_inline, "x", "int f();", "int f() {}", build_directory=folder)


@question
def nvml():
    fails_with("pynvml", importlib.import_module, "pynvml")
    assert torch.cuda.utilization() >= 0 and isinstance(torch.cuda.list_gpu_processes(), str)
    assert torch.cuda.device_memory_used() >= 0 and torch.cuda.temperature() >= 0


@question
def several_calls_before_the_device_is_used():
    assert torch.cuda.is_available() and torch.cuda.device_count() == 1 and torch.cuda.is_initialized()
    torch.cuda.init()
    torch.cuda.set_device(0), torch.cuda.set_device("cuda:0"), torch.cuda.set_device(torch.device("cuda:0"))
    torch.cuda.set_sync_debug_mode("default")
    assert torch.cuda.get_sync_debug_mode() == 0 and torch.backends.cuda.cufft_plan_cache is not None
    torch.cuda.current_blas_handle()
    assert torch.cuda.get_gencode_flags() is not None
    assert torch.accelerator.is_available() and torch.accelerator.current_accelerator().type == "cuda"
    assert torch.get_device_module("cuda").device_count() == 1
    torch.get_device_module(torch.device("cuda")).synchronize()


@question
def threads_of_the_program():
    import threading

    seen = []
    thread = threading.Thread(target=lambda: seen.append(torch.ones(2).cuda().to("cuda:0").sum().item()))
    thread.start()
    thread.join()
    assert seen == [2]


@question
def processes_of_the_program():
    context = torch.multiprocessing.get_context("fork")
    queue = context.SimpleQueue()
    process = context.Process(target=lambda: queue.put(1))
    process.start()
    assert queue.get() == 1
    process.join()
    torch.multiprocessing.set_sharing_strategy("file_system")


@question
def training_arguments_tf32():
    from transformers import TrainingArguments

    with tempfile.TemporaryDirectory() as folder:
        given = TrainingArguments(folder, tf32=True, bf16=True, report_to=[])
    assert given.bf16


FILE_OF_CUDA_3 = sys.argv[1]
ONLY = sys.argv[2:]
warnings.simplefilter("ignore")
outcomes = {}
for one in QUESTIONS:
    if ONLY and one.__name__ not in ONLY:
        continue
    try:
        one()
        outcomes[one.__name__] = ""
    except BaseException:
        outcomes[one.__name__] = traceback.format_exc(limit=-3)
print(json.dumps({"recorded": outcomes}))
