"""Train as a config.yaml says; rank 1 is slow in getting samples and in its MLPs: train_slowly.py CONFIG."""

from __future__ import annotations

import os
import sys
import time

from ascend_adapt.native.__main__ import main
from ascend_adapt.native.metrics import stragglers
from ascend_adapt.native.model.layers import MLP
from ascend_adapt.native.samples.loader import Samples

MLP_S = 0.03


def slowed(function, seconds):
    def slow(self, *given):
        time.sleep(seconds())
        return function(self, *given)

    return slow


def half_a_step():
    """Return half of the seconds since the last call: a share of a step, however long other work makes it."""
    before = half_a_step.called
    half_a_step.called = time.monotonic()
    return max(0.05, (half_a_step.called - before) / 2)


half_a_step.called = time.monotonic()


if __name__ == "__main__":
    stragglers.INTERVALS = 1
    if os.environ["RANK"] == "1":
        Samples.next = slowed(Samples.next, half_a_step)
        MLP._activated = slowed(MLP._activated, lambda: MLP_S)
    main(sys.argv[1:], os.environ)
