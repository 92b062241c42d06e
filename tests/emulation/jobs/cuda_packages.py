"""Functions of packages for CUDA, compared with their definitions."""

import torch
import xformers.ops as xops
from apex.normalization import FusedRMSNorm
from apex.normalization.fused_layer_norm import FusedLayerNormAffineFunction
from apex.optimizers import FusedAdam
from flash_attn import flash_attn_func, flash_attn_varlen_func
from flash_attn.bert_padding import pad_input, unpad_input
from flash_attn.flash_attention import FlashAttention
from flash_attn.flash_attn_interface import flash_attn_unpadded_func

torch.manual_seed(0)
q, k, v = (torch.randn(2, 6, 4, 8).cuda() for _ in range(3))


def plain(q, k, v, masked=None, bias=0):
    s = torch.einsum("bqnd,bknd->bnqk", q, k) / 8**0.5 + bias
    if masked is not None:
        s = s.masked_fill(masked, float("-inf"))
    return torch.einsum("bnqk,bknd->bqnd", s.softmax(-1), v)


i = torch.arange(6)
ahead = (i - i[:, None]).to(q.device)


def same(a, b):
    assert torch.allclose(a, b, atol=1e-5), (a - b).abs().max()


same(flash_attn_func(q, k, v), plain(q, k, v))
same(flash_attn_func(q, k, v, causal=True), plain(q, k, v, ahead > 0))
same(flash_attn_func(q, k, v, causal=True, window_size=(2, 0)), plain(q, k, v, (ahead > 0) | (ahead < -2)))
same(flash_attn_func(q, k, v, window_size=(2, 1)), plain(q, k, v, (ahead > 1) | (ahead < -2)))
slopes = torch.tensor([0.5, 0.25, 0.125, 0.1]).to(q.device)
same(
    flash_attn_func(q, k, v, causal=True, alibi_slopes=slopes),
    plain(q, k, v, ahead > 0, -slopes[:, None, None] * ahead.abs()),
)
mask = torch.tensor([[1] * 6, [1] * 4 + [0] * 2]).to(q.device)
(uq, kept, cu, longest, _), uk, uv = unpad_input(q, mask), unpad_input(k, mask)[0], unpad_input(v, mask)[0]
out = pad_input(flash_attn_varlen_func(uq, uk, uv, cu, cu, longest, longest, causal=True), kept, 2, 6)
same(out[0], plain(q, k, v, ahead > 0)[0])
same(out[1, :4], plain(q, k, v, ahead > 0)[1, :4])
assert not out[1, 4:].any()
whole = torch.stack((q, k, v), 2)
same(FlashAttention()(whole)[0], plain(q, k, v))
same(FlashAttention()(whole, mask.bool(), causal=True)[0], out)
packed = torch.stack((uq, uk, uv), 1)
same(
    FlashAttention()(packed, causal=True, cu_seqlens=cu, max_s=longest)[0],
    flash_attn_unpadded_func(uq, uk, uv, cu, cu, longest, longest, causal=True),
)
w = flash_attn_varlen_func(uq, uk, uv, cu, cu, longest, longest, causal=True, window_size=(1, 0))
same(w[:6], plain(q, k, v, (ahead > 0) | (ahead < -1))[0])
same(xops.memory_efficient_attention(q, k, v, attn_bias=xops.LowerTriangularMask()), plain(q, k, v, ahead > 0))
s = xops.SwiGLU(8, 16).cuda()
x = torch.randn(3, 8, device="cuda")
a, b = s.w12(x).chunk(2, -1)
same(s(x), s.w3(torch.nn.functional.silu(a) * b))
m = torch.nn.Linear(8, 8).to(0)
d = torch.device(0)
assert isinstance(d, torch.device)
FusedAdam(m.parameters()).step()
same(FusedRMSNorm(8).cuda()(x), torch.nn.functional.rms_norm(x, (8,), eps=1e-5))
# Megatron-core calls it directly.
weight, bias = torch.ones(8).cuda(), torch.zeros(8).cuda()
same(FusedLayerNormAffineFunction.apply(x, weight, bias, (8,), 1e-5), torch.nn.functional.layer_norm(x, (8,)))
print("all the same", d.type, torch.accelerator.device_count())
