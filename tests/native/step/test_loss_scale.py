"""Loss scale, by both rules."""

from __future__ import annotations

import pytest

from ascend_adapt.config.train_config import LossScale, Precision
from ascend_adapt.errors import TrainingError
from ascend_adapt.native.step.loss_scale import Scaler


def scaler(rule="megatron", **rules):
    settings = {"initial": 4.0, "minimum": 1.0, "window": 3, "hysteresis": 1, **rules}
    return Scaler(Precision("fp16", loss_scale=LossScale(rule=rule, **settings)))


def scales(one, overflows):
    found = []
    for overflowed in overflows:
        one.update(overflowed)
        found.append(one.scale)
    return found


def test_only_overflows():
    assert scales(scaler(), [True] * 3) == [2, 1, 1]
    deepspeed = scaler("deepspeed")
    assert scales(deepspeed, [True] * 2) == [2, 1]
    with pytest.raises(TrainingError, match="loss scale: overflow at 1, the minimum scale — lower"):
        deepspeed.update(True)


def test_hysteresis_and_growth():
    # Megatron halves at each overflow once its hysteresis is used up; growth restores it.
    good, bad = False, True
    assert scales(scaler(hysteresis=2), [bad, good, bad, good, good, good, bad, bad]) == [4, 4, 2, 2, 2, 4, 4, 2]


def test_what_is_not_fp16_has_none():
    assert Scaler(Precision("bf16")).scale == 1.0
    fixed = scaler(fixed=128.0)
    assert scales(fixed, [True, False]) == [128, 128]


def test_a_resumed_run():
    one, other = scaler(hysteresis=2), scaler(hysteresis=2)
    scales(one, [True, False, False])
    other.load_state_dict(one.state_dict())
    assert scales(one, [False, True, True]) == scales(other, [False, True, True]) == [8, 8, 4]


def test_a_run_resumed_with_another_scale():
    moved, fixed, none = scaler(), scaler(fixed=128.0), Scaler(Precision("fp32"))
    scales(moved, [True])
    for one, before in ((fixed, 128.0), (none, 1.0)):
        one.load_state_dict(moved.state_dict())
        assert one.scale == before
        # A dynamic scale learns nothing from them.
        other = scaler()
        other.load_state_dict(one.state_dict())
        assert (other.scale, scales(other, [False] * 3)) == (4.0, [4, 4, 8])
    shorter = scaler(window=2)
    scales(moved, [False, False])
    shorter.load_state_dict(moved.state_dict())
    assert scales(shorter, [False]) == [4]
