"""Train as a config.yaml says; rank 1 is slow in getting samples and in its MLPs: train_slowly.py CONFIG."""

from __future__ import annotations

import os
import sys
import time

from ascend_adapt.native.__main__ import main
from ascend_adapt.native.model.layers import MLP
from ascend_adapt.native.samples.loader import Samples

# Getting samples must be a share of a step, also where other work makes that long.
SAMPLES_S, MLP_S = 0.2, 0.03


def slowed(function, seconds):
    def slow(self, *given):
        time.sleep(seconds)
        return function(self, *given)

    return slow


if __name__ == "__main__":
    if os.environ["RANK"] == "1":
        Samples.next = slowed(Samples.next, SAMPLES_S)
        MLP._activated = slowed(MLP._activated, MLP_S)
    main(sys.argv[1:], os.environ)
