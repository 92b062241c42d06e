"""Small configurations that tests change."""

from __future__ import annotations

import dataclasses
from typing import Any

from ascend_adapt.config.train_config import (
    Batch,
    Checkpoint,
    Data,
    Logging,
    Model,
    OptimizerConfig,
    Parallel,
    Precision,
    Schedule,
    TrainConfig,
)


def config(**parts: Any) -> TrainConfig:
    """A run of two small layers; each part of ``parts`` is a part of TrainConfig, or changes to ours as a dict."""
    whole = {
        "dialect": "megatron",
        "model": Model(250, 256, 64, 2, 4, 4, 16, 256, 64),
        "parallel": Parallel(stages=(2,)),
        "batch": Batch(2, 1, 2),
        "optimizer": OptimizerConfig(),
        "schedule": Schedule("megatron", 1e-3, decay=100),
        "precision": Precision(),
        "data": Data(("text",), 32),
        "logging": Logging(interval=2),
        "checkpoint": Checkpoint(),
        "iterations": 10,
    }
    for name, value in parts.items():
        whole[name] = dataclasses.replace(whole[name], **value) if isinstance(value, dict) else value
    return TrainConfig(**whole)
