"""The way in which scripts save a model that Trainer's --fsdp shards, on a CPU, where it does not."""

from __future__ import annotations

import pytest
import torch

import ascend_adapt


def save(model):
    from torch.distributed.fsdp import FullStateDictConfig, StateDictType
    from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

    with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT, FullStateDictConfig(rank0_only=True)):
        return model.state_dict()


@pytest.mark.filterwarnings("ignore:FSDP.state_dict_type:FutureWarning")
def test_a_model_that_is_not_sharded_is_saved():
    model = torch.nn.Linear(2, 3)
    with pytest.raises(KeyError):
        save(model)
    with ascend_adapt.enabled(device="cpu"):
        assert save(model).keys() == {"weight", "bias"}
