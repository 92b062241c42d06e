"""Removed names of torch and numpy, for older DeepSpeed, and of DeepSpeed, for code bases that use it."""

from __future__ import annotations

import logging
from typing import Any

from ascend_adapt import Symptom, add, provide

from .. import torch_six as removed

numpy_bufsize = add(
    "numpy:BUFSIZE",
    value=8192,
    name="numpy_bufsize",
    requires=("deepspeed<0.14.4", "numpy>=2"),
    why="the autotuner imports it from numpy, which removed it in 2.0",
    until="support for DeepSpeed 0.14.3 ends",
    without="crash",
)


torch_six = provide(
    "torch._six",
    name="torch_six",
    requires=("deepspeed<0.8.2", "torch>=2"),
    why="ZeRO imports inf from it; torch removed it in 2.0",
    until="support for DeepSpeed 0.8.1 ends",
    without="crash",
)(removed.fill)

ELASTIC_API = "torch.distributed.elastic.agent.server.api"
# Before 0.10.1, the agent is only imported with torch 1.
_IMPORTS_THE_AGENT = Symptom(
    "required_torch_version(min_version=1.11)", at="deepspeed.elasticity.utils:is_torch_elastic_compatible"
)
elastic_log = add(
    f"{ELASTIC_API}:log",
    value=logging.getLogger(ELASTIC_API),
    name="elastic_log",
    requires=("deepspeed>=0.10.1,<0.14.1", "torch>=2"),
    why="the elastic agent imports it from torch, which renamed it to logger",
    until="support for DeepSpeed 0.14.0 ends",
    without="crash",
    symptom=_IMPORTS_THE_AGENT,
)


@add(
    f"{ELASTIC_API}:_get_socket_with_port",
    requires=("deepspeed>=0.10.1,<0.14.4", "torch>=2"),
    why="the elastic agent imports it from torch, which moved it",
    until="support for DeepSpeed 0.14.3 ends",
    without="crash",
    symptom=_IMPORTS_THE_AGENT,
)
def _get_socket_with_port() -> Any:
    """Return a bound socket on a free port."""
    from torch.distributed.elastic.utils.distributed import get_socket_with_port

    return get_socket_with_port()


def _loss_scale_of(topic: str, name: str) -> Any:
    """Return the patch for one fp16 optimizer; ZeRO's optimizers have kept the attribute."""
    return add(
        f"deepspeed.runtime.fp16.{topic}:{name}.cur_scale",
        value=property(lambda self: self.loss_scale),
        name=f"{topic}_cur_scale",
        requires="deepspeed>=0.18.6",
        why="GPT-NeoX and Megatron-DeepSpeed log it in fp16 without ZeRO; DeepSpeed moved it to loss_scale_config",
        until="the optimizers have the attribute again",
        without="crash",
        symptom=Symptom("self.loss_scale_config.cur_scale = value", at=f"deepspeed.runtime.fp16.{topic}:{name}"),
    )


fused_cur_scale = _loss_scale_of("fused_optimizer", "FP16_Optimizer")
unfused_cur_scale = _loss_scale_of("unfused_optimizer", "FP16_UnfusedOptimizer")
