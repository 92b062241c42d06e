"""The modules of CUDA packages that are provided, with the names in each."""

from __future__ import annotations

from .provided import provided

FLASH_ATTENTION = [
    provided(module, *names, source="_flash_attn")
    for module, names in (
        (
            "flash_attn",
            (
                *("flash_attn_func", "flash_attn_kvpacked_func", "flash_attn_qkvpacked_func", "flash_attn_varlen_func"),
                *("flash_attn_varlen_kvpacked_func", "flash_attn_varlen_qkvpacked_func"),
            ),
        ),
        (
            "flash_attn.flash_attn_interface",
            (
                *("flash_attn_func", "flash_attn_kvpacked_func", "flash_attn_qkvpacked_func", "flash_attn_varlen_func"),
                *("flash_attn_varlen_kvpacked_func", "flash_attn_varlen_qkvpacked_func", "flash_attn_unpadded_func"),
                *("flash_attn_unpadded_kvpacked_func", "flash_attn_unpadded_qkvpacked_func"),
            ),
        ),
        ("flash_attn.flash_attention", ("FlashAttention",)),
        ("flash_attn.bert_padding", ("index_first_axis", "pad_input", "rearrange", "unpad_input")),
        ("flash_attn.layers", ()),
        ("flash_attn.layers.rotary", ("apply_rotary_emb", "apply_rotary_emb_func")),
        ("flash_attn.losses", ()),
        ("flash_attn.losses.cross_entropy", ("CrossEntropyLoss",)),
        ("flash_attn.ops", ()),
        ("flash_attn.ops.rms_norm", ("RMSNorm",)),
        ("flash_attn.ops.triton", ()),
        ("flash_attn.ops.triton.layer_norm", ("layer_norm_fn", "rms_norm_fn")),
        ("flash_attn.utils", ()),
        ("flash_attn.utils.distributed", ("all_gather",)),
        ("rotary_emb", ("apply_rotary",)),
    )
]
XFORMERS = [
    provided("xformers"),
    provided(
        "xformers.ops", "LowerTriangularMask", "SwiGLU", "memory_efficient_attention", "unbind", source="_xformers"
    ),
]
APEX = [
    provided("apex"),
    provided(
        "apex.amp",
        *("float_function", "half_function", "initialize", "load_state_dict", "master_params", "promote_function"),
        *("scale_loss", "state_dict"),
        source="_apex_amp",
    ),
    provided(
        "apex.parallel", "DistributedDataParallel", "SyncBatchNorm", "convert_syncbn_model", source="_apex_parallel"
    ),
    # GPT-NeoX falls back to DeepSpeed's FusedAdam, Megatron-LM to torch's AdamW.
    provided("apex.optimizers", "FusedAdam", "FusedSGD", source="_apex", has_fallback=("megatron",)),
    *(
        provided(
            module,
            *("FusedLayerNorm", "FusedLayerNormAffineFunction", "FusedRMSNorm"),
            *("MixedFusedLayerNorm", "MixedFusedRMSNorm"),
            source="_apex",
        )
        for module in ("apex.normalization", "apex.normalization.fused_layer_norm")
    ),
]
