"""Finds operators that touch tensors of a collective before its ``wait``; on a device this is a race.

With gloo such a program may give right results, since a collective is often finished by then.
"""

from __future__ import annotations

from contextlib import ExitStack
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch.distributed.pipelining import schedules
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves

REDUCTIONS = ("all_reduce",)
SPLIT = ("all_gather_into_tensor", "all_gather_single", "reduce_scatter_tensor", "reduce_scatter_single")


class _Watched:
    """A work handle, with the tensors that its collective reads and writes."""

    def __init__(self, work, started, read, written):
        self.work, self.started = work, started
        self.read, self.written = ({_storage(one) for one in tensors} for tensors in (read, written))
        started.append(self)

    def wait(self, *given):
        with _disable_current_modes():  # gloo copies the result here
            done = self.work.wait(*given)
        if self in self.started:
            self.started.remove(self)
        return done


class InFlight(TorchDispatchMode):
    """Watches collectives and operators while it is entered; ``races`` has what it found, ``most`` how many at once."""

    def __init__(self):
        super().__init__()
        self.started, self.races, self.most = [], [], 0

    def __enter__(self):
        self.changes = ExitStack()
        for name in (*REDUCTIONS, *SPLIT):
            if hasattr(dist, name):
                self.changes.enter_context(patch.object(dist, name, self._watching(name)))
        self.changes.enter_context(patch.object(schedules, "_batch_p2p", self._watching_batch()))
        return super().__enter__()

    def __exit__(self, *error):
        self.changes.close()
        return super().__exit__(*error)

    def _watching(self, name):
        original = getattr(dist, name)

        def call(written, *given, **named):
            work = original(written, *given, **named)
            if not named.get("async_op"):
                return work
            return _Watched(work, self.started, given[:1] if name in SPLIT else (), [written])

        return call

    def _watching_batch(self):
        original = schedules._batch_p2p

        def call(transfers, desc=None):
            works = original(transfers, desc=desc)
            sent = [one.tensor for one in transfers if one.op is dist.isend]
            received = [one.tensor for one in transfers if one.op is dist.irecv]
            # Any of the handles may be of any of the transfers.
            return [_Watched(work, self.started, sent, received) for work in works]

        return call

    def __torch_dispatch__(self, function, types, given=(), named=None):
        named = named or {}
        self.most = max(self.most, len(self.started))
        if self.started and function.namespace != "c10d" and not function.is_view:
            self._check(function, given, named)
        return function(*given, **named)

    def _check(self, function, given, named):
        written, read = set(), set()
        places = [*given, *(named.get(one.name) for one in function._schema.arguments[len(given) :])]
        for argument, value in zip(function._schema.arguments, places, strict=False):
            writes = argument.alias_info is not None and argument.alias_info.is_write
            (written if writes else read).update(
                _storage(one) for one in tree_leaves(value) if isinstance(one, torch.Tensor)
            )
        for one in self.started:
            if one.written & (read | written) or one.read & written:
                self.races.append(str(function))


def _storage(tensor):
    return tensor.untyped_storage()._cdata
