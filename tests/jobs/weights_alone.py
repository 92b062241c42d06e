"""An ordinary DeepSpeed job: a checkpoint of one model is loaded into another without the optimizer's states.

Usage: weights_alone.py STAGE float32|float16|bfloat16 kept|removed FOLDER. STAGE is that of ZeRO, 0 is none; between
the two, the files of the optimizer's states are kept or removed. Prints a JSON line: by how much the weights are away
from those that were saved, at most, when they are loaded, and after a step whose learning rate is zero. Knows nothing
of ascend_adapt.
"""

import json
import sys
from pathlib import Path

import deepspeed
import torch
from deepspeed.accelerator import get_accelerator


def engine_of(stage, dtype, seed):
    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
    config = {
        "train_batch_size": 1,
        "zero_optimization": {"stage": stage},
        "zero_allow_untested_optimizer": True,
        "fp16": {"enabled": dtype == "float16", "loss_scale": 1},
        "bf16": {"enabled": dtype == "bfloat16"},
    }
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    return deepspeed.initialize(model=model, optimizer=optimizer, config=config, dist_init_required=False)[0]


def main():
    stage, dtype, files, folder = sys.argv[1:]
    # What is shown is arithmetic on weights: a CPU without fast float16 does it as well.
    type(get_accelerator()).is_fp16_supported = lambda self: True
    deepspeed.init_distributed("gloo")
    first = engine_of(int(stage), dtype, seed=1)
    first.save_checkpoint(folder, tag="saved")
    if files == "removed":
        for path in Path(folder, "saved").glob("*optim_states.pt"):
            path.unlink()
    second = engine_of(int(stage), dtype, seed=2)
    second.load_checkpoint(folder, tag="saved", load_optimizer_states=False, load_lr_scheduler_states=False)

    def away():
        pairs = zip(second.module.parameters(), first.module.parameters(), strict=True)
        return max((one - other).abs().max().item() for one, other in pairs)

    loaded = away()
    second.backward(second(torch.ones(1, 8, dtype=getattr(torch, dtype))).sum())
    second.step()
    reported = {"deepspeed": deepspeed.__version__, "loaded": loaded, "after a step of nothing": away()}
    print(json.dumps(reported), flush=True)


if __name__ == "__main__":
    main()
