"""Megatron-core's tracker of RNG states, which every attention with dropout forks."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from typing import Any

from ascend_adapt import Call, Symptom, wrap

from .. import call_arguments
from .releases import HOST, REQUIRES

_MODEL_PARALLEL = "model-parallel-rng"  # upstream's default
_NAME = "_current_state_name"  # the attribute exists from 0.16 on


@wrap(
    "megatron.core.tensor_parallel.random:CudaRNGStatesTracker.fork",
    bodies=("2ccf8f6f1ccace74", "a0ead0407a1a1303"),
    requires=REQUIRES,
    host=HOST,
    devices="cuda",
    why="it looks up the device's generator four times, and compares states in three operations",
    until="Megatron-core looks up the generator once in each fork",
    without="slower",
    symptom=Symptom("_set_cuda_rng_state(self.states_[name], graph_safe=self.use_cudagraphable_rng)"),
)
def fork_with_one_generator_lookup(call: Call) -> Any:
    """Return a context that uses the named RNG state.

    Megatron's code handles nested forks, unknown names, and generators of CUDA graphs.
    """
    given, tracker = call_arguments.known(("name",), call), call.instance
    if given is None or tracker.use_cudagraphable_rng or getattr(tracker, _NAME, "default-rng") != "default-rng":
        return call.proceed()
    name = given.get("name", _MODEL_PARALLEL)
    return forked(tracker, name) if name in tracker.states_ else call.proceed()


@contextlib.contextmanager
def forked(tracker: Any, name: str) -> Iterator[None]:
    """Set the device's generator to the tracked state ``name``, and on exit restore its previous state."""
    import torch

    device = torch.cuda.current_device()  # initializes CUDA, and thereby the generators
    generator = torch.cuda.default_generators[device]
    before, of_cpu = generator.get_state(), torch.default_generator.get_state()
    outer = vars(tracker).get(_NAME)
    generator.set_state(tracker.states_[name])
    if outer is not None:
        setattr(tracker, _NAME, name)
    try:
        yield
    finally:
        if not torch.equal(of_cpu, torch.default_generator.get_state()):
            logger = logging.getLogger("megatron.core.tensor_parallel.random")
            logger.warning("CPU RNG state changed within GPU RNG context")
        tracker.states_[name] = generator.get_state()
        generator.set_state(before)
        if outer is not None:
            setattr(tracker, _NAME, outer)
