"""npu_fusion_attention over layouts, sparse modes, versions and options, compared with attention in float64."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from emulation.operators.case import Gradient

F16, BF16, F32 = torch.float16, torch.bfloat16, torch.float32
FAR = 2147483647


@dataclass(frozen=True)
class Attention:
    """One call; ``lengths`` are (Sq, Skv) of each sequence, all equal except in TND."""

    name: str
    layout: str = "BNSD"
    lengths: tuple[tuple[int, int], ...] = ((9, 9), (9, 9))
    heads: int = 4
    kv_heads: int = 2
    size: int = 8
    value_size: int = 8
    mode: int = 0
    pre: int = FAR
    following: int = FAR
    prefix: tuple[int, ...] = ()
    mask: str = ""
    """"" for none, or the sizes of a full one: "SS", "11SS", "B1SS", "BNSS"; the compressed ones come with the mode."""
    empty_rows: bool = False
    pse: str = ""
    pse_type: int = 1
    starts: tuple[int, int] = (0, 0)
    keep: float = 1.0
    sink: bool = False
    rope: int = 0
    inner_precise: int = 0
    softmax_layout: str = ""
    version: int = 1
    dtype: torch.dtype = F32
    external_mask: bool = False

    @property
    def packed(self) -> bool:
        return self.layout == "TND"

    def visible(self, sequence: int, i: int, j: int) -> bool:
        """Whether query i attends to key j by the mode alone, as the documentation says."""
        rows, columns = self.lengths[sequence]
        shift = columns - rows
        band = -self.pre <= j - i - shift <= self.following
        last, first = sequence == len(self.lengths) - 1, sequence == 0
        if self.mode == 2 or (self.mode == 8 and not first):
            return j <= i
        if self.mode == 3 or (self.mode == 7 and not last):
            return j <= i + shift
        if self.mode in (4, 7, 8):
            return band
        if self.mode in (5, 6):
            return j <= i + shift or j < self.prefix[sequence]
        return True

    def mode_mask(self, sequence: int) -> torch.Tensor:
        rows, columns = self.lengths[sequence]
        seen = [[self.visible(sequence, i, j) for j in range(columns)] for i in range(rows)]
        return ~torch.tensor(seen, dtype=torch.bool).reshape(rows, columns)


def full_mask(case: Attention) -> torch.Tensor | None:
    """Return the mask argument of modes 0, 1 and 5: True is masked out."""
    rows, columns = (max(lengths) for lengths in zip(*case.lengths, strict=True))
    batch = len(case.lengths)
    if case.mode == 5:
        return torch.stack([case.mode_mask(sequence) for sequence in range(batch)])[:, None]
    if not case.mask:
        return None
    sizes = {
        "SS": (rows, columns),
        "11SS": (1, 1, rows, columns),
        "B1SS": (batch, 1, rows, columns),
        "BNSS": (batch, case.heads, rows, columns),
    }[case.mask]
    mask = torch.rand(sizes, generator=torch.Generator().manual_seed(5)) < 0.4
    if case.mode == 0 and case.following == 0:
        mask = torch.ones(rows, columns, dtype=torch.bool).triu(1).expand(sizes).clone()
    mask[..., 0] = False
    if case.empty_rows:
        mask[..., 2, :] = True
    return mask


def compressed_mask(mode: int) -> torch.Tensor:
    above = torch.ones(2048, 2048).triu(1)
    if mode == 6:
        below = torch.zeros(1024, 2048)
        below[:, 1024:] = 1
        above = torch.cat((above, below))
    return above.bool()


def mask_argument(case: Attention) -> torch.Tensor | None:
    if case.mode in (2, 3, 4, 6, 7, 8):
        return compressed_mask(case.mode)
    return full_mask(case)


def pse_argument(case: Attention) -> torch.Tensor | None:
    if not case.pse:
        return None
    batch, (rows, columns) = len(case.lengths), case.lengths[0]
    sizes = {
        "BNSS": (batch, case.heads, rows, columns),
        "BN1S": (batch, case.heads, 1, columns),
        "1NSS": (1, case.heads, rows, columns),
        "BN": (batch, case.heads),
        "N": (case.heads,),
    }
    if case.pse == "1024":
        distance = torch.arange(columns)[None] - torch.arange(rows)[-1024:, None]
        return (torch.tensor([0.01, 0.02])[None, :, None, None] * distance).to(case.dtype)
    sizes = sizes[case.pse]
    if case.pse in ("BN", "N"):
        return torch.rand(sizes, generator=torch.Generator().manual_seed(6))
    return torch.randn(sizes, generator=torch.Generator().manual_seed(6)).to(case.dtype)


def inputs_of(case: Attention) -> dict[str, torch.Tensor]:
    numbers = torch.Generator().manual_seed(3)
    rows = sum(lengths[0] for lengths in case.lengths) if case.packed else case.lengths[0][0]
    columns = sum(lengths[1] for lengths in case.lengths) if case.packed else case.lengths[0][1]

    def tensor(heads: int, length: int, size: int) -> torch.Tensor:
        batch = len(case.lengths)
        sizes = {
            "BNSD": (batch, heads, length, size),
            "BSND": (batch, length, heads, size),
            "BSH": (batch, length, heads * size),
            "SBH": (length, batch, heads * size),
            "TND": (length, heads, size),
        }[case.layout]
        return torch.randn(sizes, generator=numbers).to(case.dtype)

    inputs = {
        "query": tensor(case.heads, rows, case.size),
        "key": tensor(case.kv_heads, columns, case.size),
        "value": tensor(case.kv_heads, columns, case.value_size),
    }
    if case.pse:
        inputs["pse"] = pse_argument(case)
    if case.sink:
        inputs["sink"] = torch.randn(case.heads, generator=numbers)
    if case.rope:
        inputs["query_rope"] = tensor(case.heads, rows, case.rope)
        inputs["key_rope"] = tensor(case.kv_heads, columns, case.rope)
    return inputs


def call(case: Attention, **tensors: torch.Tensor) -> tuple[torch.Tensor, tuple[int, int]]:
    """Call the operator on the npu; return the attention, and the (seed, offset) of its dropout."""
    import torch_npu

    mask = mask_argument(case)
    tokens = ("pre_tokens", "next_tokens") if case.version == 2 else ("pre_tockens", "next_tockens")
    options = {
        "atten_mask": None if mask is None else mask.npu(),
        "scale": case.size**-0.5,
        "keep_prob": case.keep,
        tokens[0]: case.pre,
        tokens[1]: case.following,
        "inner_precise": case.inner_precise,
        "sparse_mode": case.mode,
        "softmax_layout": case.softmax_layout,
    }
    if case.prefix:
        options["prefix"] = list(case.prefix)
    if case.packed:
        ends = torch.tensor(case.lengths).cumsum(0)
        names = ("actual_seq_qlen", "actual_seq_kvlen")
        given = [ends[:, which] if case.version == 3 else ends[:, which].tolist() for which in (0, 1)]
        options |= dict(zip(names, given, strict=True))
    if case.version == 2:
        options["pse_type"] = case.pse_type
        options |= {"q_start_idx": [case.starts[0]], "kv_start_idx": [case.starts[1]]} if any(case.starts) else {}
    if case.external_mask:
        (rows, columns), batch = case.lengths[0], len(case.lengths)
        size = [batch, case.heads, rows, columns]
        bits = torch_npu._npu_dropout_gen_mask(torch.empty(1).npu(), size, p=1 - case.keep, seed=42, offset=8)
        options |= {"dropout_mask": bits, "seed": 42, "offset": 8}
    operator = getattr(
        torch_npu, {1: "npu_fusion_attention"}.get(case.version, f"npu_fusion_attention_v{case.version}")
    )
    query, key, value = (tensors.pop(name) for name in ("query", "key", "value"))
    results = operator(query, key, value, case.heads, case.layout, **tensors, **options)
    return results[0], (int(results[4]), int(results[5]))


def oracle(case: Attention, *, extra: tuple[int, int], **tensors: torch.Tensor) -> torch.Tensor:
    """Return the attention, sequence by sequence and head by head, in float64."""
    keep = dropout_bits(case, *extra)
    mask = full_mask(case)
    results = []
    start = [0, 0]
    for index, (rows, columns) in enumerate(case.lengths):
        query, key, value, query_rope, key_rope = (
            sequence_of(case, tensors.get(name), which, index, start[which], (rows, columns)[which], of_key)
            for name, which, of_key in (
                ("query", 0, False),
                ("key", 1, True),
                ("value", 1, True),
                ("query_rope", 0, False),
                ("key_rope", 1, True),
            )
        )
        masked = case.mode_mask(index).expand(case.heads, rows, columns)
        if mask is not None:
            own = mask[:rows, :columns] if mask.dim() == 2 else mask[min(index, mask.shape[0] - 1)]
            masked = masked | own
        heads = []
        for head in range(case.heads):
            of_key = head // (case.heads // case.kv_heads)
            scores = query[head] @ key[of_key].T
            if query_rope is not None:
                scores = scores + query_rope[head] @ key_rope[of_key].T
            scale = case.size**-0.5
            if case.pse:
                pse = bias_of(case, tensors["pse"], index, head, rows, columns)
                scores = (scores + pse) * scale if case.pse_type == 1 else scores * scale + pse
            else:
                scores = scores * scale
            weights = scores.exp().masked_fill(masked[head], 0)
            total = weights.sum(-1, keepdim=True)
            if case.sink:
                total = total + tensors["sink"][head].exp()
            shares = weights / total.masked_fill(total == 0, 1)
            if keep is not None:
                shares = shares * keep[index][head] / case.keep
            heads.append(shares @ value[of_key])
        results.append(torch.stack(heads))
        start = [start[0] + rows, start[1] + columns]
    return in_layout(case, results)


def bias_of(case: Attention, pse: torch.Tensor, index: int, head: int, rows: int, columns: int) -> torch.Tensor:
    distance = torch.arange(columns)[None] + case.starts[1] - torch.arange(rows)[:, None] - case.starts[0]
    if case.pse_type in (2, 3):
        slope = pse[head] if pse.dim() == 1 else pse[index, head]
        return -slope * (distance.abs().double().sqrt() if case.pse_type == 3 else distance.abs())
    if case.pse == "1024":
        return (0.01, 0.02)[head] * distance.double()
    return pse[min(index, pse.shape[0] - 1), head]


def sequence_of(
    case: Attention,
    tensor: torch.Tensor | None,
    which: int,
    index: int,
    start: int,
    length: int,
    of_key: bool,
) -> torch.Tensor | None:
    """Return [N, S, D] of one sequence."""
    if tensor is None:
        return None
    heads = case.kv_heads if of_key else case.heads
    if case.layout == "TND":
        return tensor[start : start + length].permute(1, 0, 2)
    if case.layout == "BNSD":
        return tensor[index]
    if case.layout == "BSND":
        return tensor[index].permute(1, 0, 2)
    rows = tensor[index] if case.layout == "BSH" else tensor[:, index]
    return rows.reshape(length, heads, -1).permute(1, 0, 2)


def in_layout(case: Attention, sequences: list[torch.Tensor]) -> torch.Tensor:
    if case.layout == "TND":
        return torch.cat([sequence.permute(1, 0, 2) for sequence in sequences])
    whole = torch.stack(sequences)
    if case.layout == "BNSD":
        return whole
    whole = whole.permute(0, 2, 1, 3)
    if case.layout == "BSND":
        return whole
    whole = whole.flatten(2)
    return whole if case.layout == "BSH" else whole.transpose(0, 1)


def dropout_bits(case: Attention, seed: int, offset: int) -> list[torch.Tensor] | None:
    """Return the dropout mask that _npu_dropout_gen_mask generates from the operator's returned seed and offset."""
    if case.keep == 1:
        return None
    import torch_npu

    counts = [case.heads * rows * columns for rows, columns in case.lengths]
    bits = torch_npu._npu_dropout_gen_mask(
        torch.empty(1).npu(), [sum(counts)], p=1 - case.keep, seed=seed, offset=offset
    )
    flat = ((bits.cpu().reshape(-1, 1) >> torch.arange(8)) & 1).reshape(-1)[: sum(counts)]
    return [
        part.reshape(case.heads, rows, columns)
        for part, (rows, columns) in zip(flat.split(counts), case.lengths, strict=True)
    ]


def gradient(case: Attention) -> Gradient:
    version = "" if case.version == 1 else f"V{case.version}"
    return Gradient(
        case.name,
        lambda **tensors: call(case, **tensors),
        lambda extra, **tensors: oracle(case, extra=extra, **tensors),
        inputs_of(case),
        f"NpuFusionAttention{version}Backward0",
        constant=frozenset({"pse"} if case.pse in ("BN", "N", "1024") else ()),
    )


def table():
    uneven = ((7, 7), (3, 5), (12, 12))
    for layout in ("BSH", "SBH", "BSND", "BNSD", "TND"):
        for dtype in (F32, F16, BF16):
            yield Attention(f"{layout} full {dtype}", layout, dtype=dtype)
        lengths = uneven if layout == "TND" else ((6, 9), (6, 9))
        base = Attention(layout, layout, lengths)
        yield replace(base, name=f"{layout} mode 0 mask", mask="SS")
        yield replace(base, name=f"{layout} mode 1 mask", mask="SS", mode=1)
        yield replace(base, name=f"{layout} mode 2", mode=2)
        yield replace(base, name=f"{layout} mode 3", mode=3)
        yield replace(base, name=f"{layout} mode 4", mode=4, pre=3, following=1)
        yield replace(base, name=f"{layout} mode 6", mode=6, prefix=tuple(columns - 1 for _, columns in lengths))
        yield replace(base, name=f"{layout} dropout", mode=3, keep=0.7)
        yield replace(base, name=f"{layout} sink", mode=3, sink=True)
        yield replace(base, name=f"{layout} sink bfloat16", mode=3, sink=True, dtype=BF16)
        yield replace(base, name=f"{layout} small value", value_size=4)
        yield replace(base, name=f"{layout} one head of keys", kv_heads=1, mode=3)
        yield replace(base, name=f"{layout} as many heads of keys", kv_heads=4, mode=3)
        yield replace(base, name=f"{layout} v2", mode=4, pre=2, following=0, version=2)
        yield replace(base, name=f"{layout} v3", mode=3, version=3)
        if layout != "TND":
            yield replace(base, name=f"{layout} mode 5", mode=5, prefix=(4, 8))
            yield replace(base, name=f"{layout} pse", pse="BNSS")
            yield replace(base, name=f"{layout} v2 pse after scaling", pse="BNSS", version=2, pse_type=0)
    square = Attention("square", lengths=((9, 9), (9, 9)))
    for mask in ("11SS", "B1SS", "BNSS"):
        yield replace(square, name=f"mask {mask}", mask=mask, mode=1)
    for pse in ("BN1S", "1NSS"):
        yield replace(square, name=f"pse {pse}", pse=pse, mask="SS")
    yield replace(square, name="pse sink dropout mask", pse="BNSS", sink=True, keep=0.5, mask="B1SS")
    yield replace(square, name="mode 0 causal by tokens", mask="SS", following=0)
    yield replace(square, name="empty rows", mask="BNSS", mode=1, empty_rows=True, inner_precise=2)
    yield replace(square, name="empty rows with a sink", mask="SS", mode=1, empty_rows=True, inner_precise=2, sink=True)
    yield replace(square, name="more queries than keys", lengths=((9, 6), (9, 6)), mode=3)
    yield replace(square, name="dropout mask from outside", keep=0.8, external_mask=True)
    yield replace(square, name="v3 dropout", keep=0.8, version=3)
    yield replace(square, name="v2 dropout", keep=0.8, version=2)
    for pse_type in (2, 3):
        yield replace(square, name=f"v2 pse {pse_type} [B, N]", pse="BN", pse_type=pse_type, mode=3, version=2)
        yield replace(square, name=f"v2 pse {pse_type} [N]", pse="N", pse_type=pse_type, mode=3, version=2, dtype=BF16)
    yield replace(square, name="v2 pse 2 of a part", pse="BN", pse_type=2, version=2, starts=(18, 9))
    long = ((1030, 1030),)
    yield Attention("pse of 1024 rows", lengths=long, heads=2, kv_heads=1, size=4, value_size=4, pse="1024", mode=3)
    packed = Attention("packed", "TND", ((4, 4), (2, 6), (5, 8)))
    yield replace(packed, name="TND mode 7", mode=7, pre=8, following=-2)
    yield replace(packed, name="TND mode 8", mode=8, pre=4, following=1)
    yield replace(packed, name="TND softmax in TND", mode=3, softmax_layout="TND")
    yield replace(packed, name="TND v3 dropout", mode=3, keep=0.7, version=3)
    documents = ((4, 4), (6, 6), (5, 5))
    yield replace(packed, name="TND v2 pse 2", lengths=documents, pse="BN", pse_type=2, mode=3, version=2)
    yield replace(packed, name="TND rope", mode=3, rope=8, version=2, dtype=BF16)
    yield replace(packed, name="TND empty document", lengths=((4, 4), (0, 3), (5, 8)), mode=3)


CASES = [gradient(case) for case in table()]
