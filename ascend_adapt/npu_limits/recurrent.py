"""Limits of npu_lstm, npu_lstm_cell and npu_gru."""

from __future__ import annotations

from ascend_adapt.npu_limits.limit import Limit, check, document

_PAGE = document("torch_npu-npu_lstm.md")

DTYPES = Limit(
    "npu_lstm, npu_lstm_cell, npu_gru",
    "input, weight and states have one dtype of float16 and float32",
    f"{_PAGE}, torch_npu-npu_gru.md",
)
SHAPES = Limit(
    "npu_lstm, npu_lstm_cell, npu_gru",
    "input is [T, B, I], weight [I + H, gates * H], bias [gates * H], and each state ends in [B, H]",
    check("aclops/LstmKernelNpu.cpp, LstmCellKernelNpu.cpp, GruKernelNpu.cpp"),
)
DROPOUT = Limit(
    "npu_lstm, npu_gru",
    "there is one layer, or no dropout in training: dropout between layers is not applied",
    check("aclops/LstmKernelNpu.cpp, GruKernelNpu.cpp (keep_prob is always 1)"),
    silent=True,
)
DIRECTION = Limit("npu_lstm", "flag_seq and direction are False: packed sequences are not supported", _PAGE)
