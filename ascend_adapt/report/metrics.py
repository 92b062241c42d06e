"""The metrics that a report draws, in the order of its charts."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Metric:
    """A metric with a chart. ``is_geometric``: the axis is logarithmic if values differ by orders of magnitude."""

    name: str
    title: str
    unit: str = ""
    is_geometric: bool = False


LOSS = Metric("loss", "Training loss")
VALIDATION = Metric("validation", "Validation loss")
LEARNING_RATE = Metric("learning_rate", "Learning rate")
GRAD_NORM = Metric("grad_norm", "Gradient norm", is_geometric=True)
LOSS_SCALE = Metric("loss_scale", "Loss scale", is_geometric=True)
SAMPLES_PER_S = Metric("samples_per_s", "Throughput", "samples/s")
TOKENS_PER_S = Metric("tokens_per_s", "Token throughput", "tokens/s")
SECONDS = Metric("seconds", "Time of an iteration", "s", is_geometric=True)
TFLOPS = Metric("tflops", "Compute per device", "TFLOP/s")
MFU = Metric("mfu", "Model FLOPs utilization (MFU)", "%")
MEMORY = Metric("memory", "Peak device memory", "GB")
SAMPLES_STRAGGLERS = Metric("samples_stragglers", "Stragglers: loading samples", "ms", is_geometric=True)
MLP_STRAGGLERS = Metric("mlp_stragglers", "Stragglers: first MLP of a step", "ms", is_geometric=True)

METRICS = (
    *(LOSS, VALIDATION, LEARNING_RATE, GRAD_NORM, LOSS_SCALE, SAMPLES_PER_S, TOKENS_PER_S, SECONDS, TFLOPS, MFU),
    *(MEMORY, SAMPLES_STRAGGLERS, MLP_STRAGGLERS),
)
