"""CUDA graphs of a training step: two graph launches per step, without waiting for the host in between.

One graph has the passes, the other has the norms, clipping and the optimizer step. For each number of micro batches,
they are captured after a few eager steps, in which kernels choose their backends, and then replayed with new inputs.
Other values that change from step to step, such as the learning rate and the votes of the ranks, are tensors too.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from packaging.version import Version

from ascend_adapt import switches
from ascend_adapt.alignment import updates as recorded
from ascend_adapt.config.train_config import TrainConfig
from ascend_adapt.errors import one_line
from ascend_adapt.native.parallel.mesh import Mesh
from ascend_adapt.native.parallel.parameters import MasterWeight, Placed
from ascend_adapt.native.step.pipeline import Batch
from ascend_adapt.whole_numbers import of_variable

VARIABLE = "ASCEND_ADAPT_STEP_GRAPH"
"""Environment variable; 0 runs every step eagerly."""
EAGER_STEPS = 3
"""Number of eager steps of a kind before its capture. With ``compile``, the first one is not compiled."""
KINDS_KEPT = 4
"""Maximum number of kinds of steps that are captured, because graphs hold memory; a ramp-up has more kinds."""
FREE_SHARE = 0.05
"""Share of device memory that must stay free for work outside the graphs, such as evaluation."""
KEEPS_HOST_MEMORY = "2.11"
"""The first release of torch known to keep the host memory of a graph (pytorch/pytorch#167507)."""

Update = tuple[Any, torch.Tensor]
"""Norms of the gradients, and the reduced sums."""


def why_not(config: TrainConfig, mesh: Mesh) -> str:
    """Return the reason why the steps of this run cannot be captured, or ""."""
    parallel, schedule, logging = config.parallel, config.schedule, config.logging
    changes = schedule.weight_decay_style != "constant" and schedule.start_weight_decay != schedule.end_weight_decay
    reasons = {
        f"on {mesh.device.type}": mesh.device.type != "cuda",
        # Captured collectives have only been tested on a single host. Some launchers do not set LOCAL_WORLD_SIZE.
        "several hosts": of_variable(os.environ, "LOCAL_WORLD_SIZE", 1) != parallel.world_size,
        # This dropout sets the state of a generator, which cannot be captured.
        "dropout of tensor-parallel ranks": config.model.has_dropout and parallel.tensor > 1,
        f"{VARIABLE}=0": not switches.is_on(os.environ, VARIABLE, default=True),
        # Earlier releases free the host memory from which a captured _chunk_cat copies its table at each replay.
        f"ZeRO with torch before {KEEPS_HOST_MEMORY}": mesh.shards > 1
        and Version(torch.__version__).release < Version(KEEPS_HOST_MEMORY).release,
        "FSDP": parallel.offload_optimizer,
        "the loss scale of fp16": config.precision.dtype == "fp16",
        f"the optimizer {config.optimizer.kind}": config.optimizer.kind == "sgd",
        "a weight decay that changes": changes,
        "dropout that is recomputed": config.model.has_dropout and parallel.recompute != "none",
        "logged parameter norms or zeros": logging.log_params_norm or logging.log_num_zeros,
        "finetuning": config.cloze is not None,
        "a recording": recorded.current() is not None,
    }
    return next((reason for reason, applies in reasons.items() if applies), "")


class StepGraphs:
    """CUDA graphs of one trainer's steps."""

    def __init__(
        self,
        mesh: Mesh,
        parameters: Sequence[Placed],
        passes: Callable[[Batch, int], torch.Tensor],
        update: Callable[[torch.Tensor, Any, float, torch.Tensor], Update],
        abandon: Callable[[], None],
    ) -> None:
        """Create the graphs of ``passes`` and ``update``; ``abandon`` drops what failed passes have left."""
        self._mesh, self._parameters, self._passes, self._update = mesh, parameters, passes, update
        self._abandon = abandon
        self._stream = torch.cuda.Stream(mesh.device)
        self._lr = torch.zeros((), device=mesh.device)
        self._marks = torch.zeros(3, device=mesh.device)
        self._marks_on_host = (False, False, False)
        self._pool: Any = None
        self._last: _Graphs | None = None
        self._graphs: dict[tuple[Any, ...], _Graphs] = {}
        self._seen: dict[tuple[Any, ...], int] = {}
        self._stopped = False
        self._messages: list[str] = []

    def run(
        self, batch: Batch, micro_batches: int, lr: float, weight_decay: float, marks: tuple[bool, bool, bool]
    ) -> Update:
        """Run a step, by replaying its graphs if they have been captured."""
        current = torch.cuda.current_stream(self._mesh.device)
        self._stream.wait_stream(current)
        try:
            # Kernels and libraries keep state per stream, so eager steps run on the stream that will be captured.
            with torch.cuda.stream(self._stream):
                return self._run(batch, micro_batches, lr, weight_decay, marks)
        finally:
            current.wait_stream(self._stream)

    def prefetch(self, batch: Batch) -> None:
        """Copy the batch of the next step into the inputs of the last step's graph, if the graph can compute it.

        The copy is queued behind the last step, so that the device does not wait for the host between steps.
        """
        if self._last is None or not self._last.fits(batch):
            return
        current = torch.cuda.current_stream(self._mesh.device)
        self._stream.wait_stream(current)
        with torch.cuda.stream(self._stream):
            self._last.set_inputs(batch)
        current.wait_stream(self._stream)

    def messages(self) -> list[str]:
        """Return the messages to log, and clear them."""
        messages, self._messages = self._messages, []
        return messages

    def forget(self) -> None:
        """Free all graphs. Call it before the passes change, and before the process group is destroyed.

        NCCL waits for graphs with its collectives before it destroys a communicator. Graphs are therefore reset
        explicitly: dropping them would not free a graph that an error's traceback refers to.
        """
        for graphs in self._graphs.values():
            graphs.reset()
        self._graphs.clear()
        self._seen.clear()
        self._pool, self._last, self._stopped = None, None, False

    def _run(
        self, batch: Batch, micro_batches: int, lr: float, weight_decay: float, marks: tuple[bool, bool, bool]
    ) -> Update:
        key = self._key(batch, micro_batches)
        graphs = self._graphs.get(key) if key is not None else None
        if graphs is None and key is not None:
            self._seen[key] = seen = self._seen.get(key, 0) + 1
            if seen > EAGER_STEPS and not self._stopped and len(self._graphs) < KINDS_KEPT:
                graphs = self._captured(key, batch, micro_batches)
        self._last = graphs
        if graphs is None:
            loss = self._passes(batch, micro_batches)
            self._set_values(lr, marks)
            return self._update(loss, self._lr, weight_decay, self._marks)
        graphs.set_inputs(batch)
        graphs.passes.replay()
        self._set_values(lr, marks)
        if graphs.update is None and graphs.updates_seen == 0:
            # Run once eagerly: kernels prepare tables of the gradients' new addresses.
            graphs.updates_seen = 1
            graphs.restore_gradients()
            return self._update(graphs.loss, self._lr, weight_decay, self._marks)
        if graphs.update is None:
            graphs.restore_gradients()
            graphs.update = torch.cuda.CUDAGraph()
            with self._capture(graphs.update):
                graphs.result = self._update(graphs.loss, self._lr, weight_decay, self._marks)
        graphs.update.replay()
        assert graphs.result is not None
        return graphs.result

    def _set_values(self, lr: float, marks: tuple[bool, bool, bool]) -> None:
        """Set the values that the update reads. The device computes the passes meanwhile."""
        self._lr.fill_(lr)
        if marks != self._marks_on_host:
            self._marks.copy_(torch.tensor(marks, dtype=torch.float32))
            self._marks_on_host = marks

    def _key(self, batch: Batch, micro_batches: int) -> tuple[Any, ...] | None:
        if not isinstance(batch, Mapping):
            return None
        return micro_batches, *_kinds(batch)

    def _captured(self, key: tuple[Any, ...], batch: Batch, micro_batches: int) -> _Graphs | None:
        """Capture the passes of a kind of step; None if this fails, or leaves too little memory, on any rank."""
        assert isinstance(batch, Mapping)
        torch.cuda.synchronize(self._mesh.device)
        torch.cuda.empty_cache()
        graphs, why = _Graphs({name: each.clone() for name, each in batch.items()}), ""
        try:
            with self._capture(graphs.passes):
                graphs.loss = self._passes(graphs.inputs, micro_batches)
        except RuntimeError as error:
            why = _why_failed(error)
        free, total = torch.cuda.mem_get_info(self._mesh.device)
        if not why and free < FREE_SHARE * total:
            why = f"they leave {free / 2**30:.1f} GiB free, less than {FREE_SHARE:.0%}"
        # All ranks must decide alike: a captured collective and an eager one may use different algorithms.
        failed = self._mesh.sum_over_all(torch.full((), float(bool(why)), device=self._mesh.device))
        if float(failed) > 0:
            graphs.reset()
            self._stop(why or "another rank cannot capture them")
            return None
        graphs.gradients = [(one, one.gradient) for one in self._parameters if one.gradient is not None]
        if not self._graphs:
            self._messages.append(f"training steps run as CUDA graphs from now on; {VARIABLE}=0 runs them eagerly")
        self._graphs[key] = graphs
        return graphs

    def _capture(self, graph: torch.cuda.CUDAGraph) -> Any:
        if self._pool is None:
            self._pool = torch.cuda.graph_pool_handle()
        # Other threads, such as those of NCCL and the data loader, may call CUDA meanwhile.
        return torch.cuda.graph(graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local")

    def _stop(self, why: str) -> None:
        self._stopped = True
        self._messages.append(f"no CUDA graphs of training steps: {why}; steps run eagerly")
        self._abandon()
        torch.cuda.empty_cache()


def _why_failed(error: BaseException) -> str:
    """Return why a capture failed. After running out of memory, the end of the capture raises another error."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, torch.cuda.OutOfMemoryError):
            return "the device does not have enough memory for them"
        cause = cause.__context__
    return f"the capture failed ({one_line(error)})"


def _kinds(batch: Mapping[str, torch.Tensor]) -> list[tuple[str, torch.Size, torch.dtype]]:
    return [(name, each.shape, each.dtype) for name, each in sorted(batch.items())]


class _Graphs:
    """The two graphs of one kind of step, and the tensors that they read and write."""

    def __init__(self, inputs: dict[str, torch.Tensor]) -> None:
        self.inputs = inputs
        self.passes = torch.cuda.CUDAGraph()
        self.update: torch.cuda.CUDAGraph | None = None
        self.updates_seen = 0
        self.loss = torch.zeros(2)
        self.gradients: list[tuple[Placed, torch.Tensor]] = []
        """The tensors that the passes write gradients to, kept alive as long as the graph may write to them."""
        self.result: Update | None = None
        self._copied: Batch | None = None

    def reset(self) -> None:
        """Free the graphs."""
        for graph in (self.passes, self.update):
            if graph is not None:
                graph.reset()

    def fits(self, batch: Batch) -> bool:
        """Return whether a batch has the names, shapes and dtypes of the inputs."""
        return isinstance(batch, Mapping) and _kinds(batch) == _kinds(self.inputs)

    def set_inputs(self, batch: Batch) -> None:
        """Copy a batch to where the graph reads it, unless it has been prefetched."""
        assert isinstance(batch, Mapping)
        if batch is self._copied:
            return
        for name, tensor in self.inputs.items():
            tensor.copy_(batch[name])
        self._copied = batch

    def restore_gradients(self) -> None:
        """Set the parameters' gradients to those that the passes have just written."""
        for one, gradient in self.gradients:
            parameter = one.parameter
            if isinstance(parameter, MasterWeight) and gradient.dtype != parameter.dtype:
                parameter.narrow_gradient = gradient
            else:
                parameter.grad = gradient
