"""Train as a config.yaml says; rank 1 is slow in getting samples and in its MLPs: train_slowly.py CONFIG."""

from __future__ import annotations

import os
import sys
import time

from ascend_adapt.native.__main__ import main
from ascend_adapt.native.layers import MLP
from ascend_adapt.native.samples import Samples

SLEEP_S = 0.03


def slowed(function):
    def slow(self, *given):
        time.sleep(SLEEP_S)
        return function(self, *given)

    return slow


if __name__ == "__main__":
    if os.environ["RANK"] == "1":
        Samples.next = slowed(Samples.next)
        MLP._activated = slowed(MLP._activated)
    main(sys.argv[1:], os.environ)
