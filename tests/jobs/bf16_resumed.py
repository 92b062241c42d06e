"""An ordinary DeepSpeed job: the pipeline engine in bf16, without ZeRO, saved after two of four steps, and resumed.

Usage: bf16_resumed.py FOLDER. Prints a JSON line with the fp32 weights after each of the last two steps, of the run
itself and of one that was begun from other weights and loaded, and the parameters whose shapes were saved. Knows
nothing of ascend_adapt.
"""

import json
import sys
from pathlib import Path

import deepspeed
import torch
from deepspeed.pipe import LayerSpec, PipelineModule
from torch import nn

WIDTH = 8


def engine_of(seed):
    torch.manual_seed(seed)
    layers = [LayerSpec(nn.Linear, WIDTH, WIDTH), LayerSpec(nn.Linear, WIDTH, 1)]
    model = PipelineModule(layers=layers, num_stages=1, loss_fn=lambda made, wanted: (made - wanted).square().mean())
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": 1,
        "bf16": {"enabled": True},
        "zero_optimization": {"stage": 0},
        "optimizer": {"type": "Adam", "params": {"lr": 1e-2, "torch_adam": True}},
    }
    return deepspeed.initialize(model=model, model_parameters=list(model.parameters()), config=config)[0]


def step(engine, number):
    row = torch.randn(1, WIDTH, generator=torch.Generator().manual_seed(number)).bfloat16()
    engine.train_batch(data_iter=iter([(row, row[:, :1])]))
    # FP16_UnfusedOptimizer, which 0.17.6 to 0.18.4 take here, has them one by one.
    optimizer = engine.optimizer
    flat = getattr(optimizer, "fp32_groups_flat_partition", None)
    fp32 = [one for group in optimizer.fp32_groups for one in group] if flat is None else flat
    return torch.cat([one.detach().flatten() for one in fp32]).tolist()


def main():
    folder = sys.argv[1]
    deepspeed.init_distributed("gloo")
    first = engine_of(seed=1)
    for number in (1, 2):
        step(first, number)
    first.save_checkpoint(folder, tag="saved")
    second = engine_of(seed=2)
    second.load_checkpoint(folder, tag="saved")
    runs = {name: [step(engine, number) for number in (3, 4)] for name, engine in (("on", first), ("resumed", second))}
    saved = torch.load(Path(folder, "saved", "mp_rank_00_model_states.pt"), weights_only=False)
    shapes = [name for group in saved["param_shapes"] or () for name in group]
    if torch.distributed.get_rank() == 0:
        print(json.dumps({"deepspeed": deepspeed.__version__, "shapes": shapes, **runs}), flush=True)


if __name__ == "__main__":
    main()
