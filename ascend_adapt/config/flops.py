"""FLOPs of a step: the formula that each upstream logs, and the model FLOPs.

Sources: paper, arXiv 2104.04473 equation 3, as bigscience Megatron-DeepSpeed@8387ae17 and gpt-neox@ea7aefd8 print it;
mcore, Megatron-LM@core_v0.9.0 megatron/training/training.py num_floating_point_operations; neox-v2, gpt-neox@9610391a
megatron/logging.py get_flops, whose attention term is five times the usual one.
"""

from __future__ import annotations

from ascend_adapt.config.memory_estimate import total_parameters
from ascend_adapt.config.train_config import Model, TrainConfig

# Dense half-precision FLOP/s from the vendors' data sheets; no data sheet was available for Ascend devices.
_PEAK = {"A100": 312e12, "H100": 989e12, "H100 PCIe": 756e12, "H200": 989e12}


def model_flops(config: TrainConfig, samples: int) -> float:
    """Model FLOPs of a step on ``samples`` samples: a matrix product counts once in forward and twice in backward.

    As in the upstream programs, recomputation does not count, and attention counts as if it were not masked.
    """
    model, length = config.model, config.data.seq_length
    return 3 * samples * length * (model.num_layers * layer_flops(model, length) + head_flops(model))


def layer_flops(model: Model, length: int) -> float:
    """FLOPs of one layer per token, forward, in sequences of this length."""
    hidden, ratio = model.hidden_size, model.head_dim * model.num_heads / model.hidden_size
    attention = (1 + model.num_query_groups / model.num_heads + length / hidden) * ratio
    mlp = model.ffn_hidden_size / hidden * (1.5 if model.gated else 1.0)
    return 4 * hidden**2 * (attention + mlp)


def head_flops(model: Model) -> float:
    """FLOPs of the output layer per token, forward."""
    return 2.0 * model.hidden_size * model.padded_vocab_size


def dialect_flops(config: TrainConfig, samples: int) -> float:
    """FLOPs of a step on ``samples`` samples, by the dialect's formula."""
    kind = config.logging.flops
    if kind == "mcore":
        return model_flops(config, samples)
    if kind == "neox-v2":
        return _neox_v2(config, samples)
    model, length = config.model, config.data.seq_length
    passes = 4 if config.parallel.recompute == "full" else 3
    share = 1 + length / (6 * model.hidden_size)
    logits = model.padded_vocab_size / (16 * model.num_layers * model.hidden_size)
    factor = 32 if model.gated else 24
    return factor * passes * samples * length * model.num_layers * model.hidden_size**2 * (share + logits)


def _neox_v2(config: TrainConfig, samples: int) -> float:
    model, length = config.model, config.data.seq_length
    attention = 60 * length * model.hidden_size * model.num_layers
    return float(samples * length * (6 * total_parameters(model) + attention))


def peak_flops(device_name: str) -> float | None:
    """Peak dense half-precision FLOP/s of a device by its name, or None if unknown."""
    found = [kind for kind in _PEAK if kind in device_name]
    return _PEAK[max(found, key=len)] if found else None
