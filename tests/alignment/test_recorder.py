"""What is recorded, and that recording leaves the program as it is."""

from __future__ import annotations

import json
import os

import pytest
import torch
from alignment.small_training import Decoder, Run, adamw, batches, loss_of
from torch import nn
from torch.nn.modules import module as hooks
from torch.optim import optimizer as optimizers

from ascend_adapt.alignment import kept_inputs, recording
from ascend_adapt.alignment.recorder import Recorder
from ascend_adapt.alignment.selection import Selection


def train(model, optimizer, steps=3, **settings):
    """Return the losses of some steps."""
    torch.manual_seed(7)
    losses = []
    for step in range(1, steps + 1):
        ids, labels = batches(step)[0]
        loss = loss_of(model(ids), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def decoder():
    torch.manual_seed(0)
    return Decoder()


def names(record):
    return [line["name"] for line in record.calls]


def test_the_numbers_of_a_program_do_not_change(tmp_path):
    model = decoder()
    plain = train(model, adamw(model))
    model = decoder()
    with Recorder(tmp_path, Selection()):
        assert train(model, adamw(model)) == plain


def test_no_hook_is_left(tmp_path):
    model = decoder()
    with Recorder(tmp_path, Selection()):
        train(model, adamw(model), steps=1)
    for found in (
        hooks._global_forward_hooks,
        hooks._global_forward_pre_hooks,
        optimizers._global_optimizer_pre_hooks,
        optimizers._global_optimizer_post_hooks,
        *(one._backward_hooks or {} for one in model.parameters()),
    ):
        assert not found


def test_only_selected_steps_have_hooks_on_modules(tmp_path):
    model = decoder()
    optimizer = adamw(model)
    with Recorder(tmp_path, Selection.parse("2,4", "", 1)):
        during = []
        model.words.register_forward_hook(lambda *_: during.append(bool(hooks._global_forward_hooks)))
        train(model, optimizer, steps=6)
    # Step 1 and 3 end before 2 and 4, which then begin; 5 begins before the hooks are removed.
    assert during == [False, True, False, True, False, False]
    assert list(recording.read(tmp_path)[0].steps) == [2, 4]


def test_calls_are_numbered_and_nested(clean):
    step = recording.read(clean())[0].steps[1]
    rotary = [line for line in step.calls if line["name"] == "blocks.0.attention.rotary"]
    assert [line["call"] for line in rotary] == [0, 1, 2, 3]
    by_id = {line["id"]: line for line in step.calls}
    assert {by_id[line["parent"]]["name"] for line in rotary} == {"blocks.0.attention"}
    assert [line["name"] for line in step.calls if line["parent"] is None] == ["", ""]


def test_recomputed_calls_are_marked(clean):
    step = recording.read(clean(True))[0].steps[1]
    again = [line["name"] for line in step.calls if line.get("recomputed")]
    assert {"blocks.0.mlp.up", "blocks.1.mlp.up"} <= set(again)
    assert "head" not in again


class Wrapper(nn.Module):
    def __init__(self, module):
        super().__init__()
        self.module = module

    def forward(self, *args):
        return self.module(*args)


def test_a_wrapper_changes_no_name(clean, compared, tmp_path):
    model = Wrapper(decoder())
    with Recorder(tmp_path, Selection()):
        train(model, adamw(model), steps=1)
    calls = names(recording.read(tmp_path)[0].steps[1])
    assert calls.count("") == 1
    assert "blocks.0.mlp.up" in calls


@pytest.mark.filterwarnings(
    "ignore::UserWarning"
)  # torch warns of global hooks, and of a gradient that it reads itself
def test_a_compiled_module_is_recorded_as_one(tmp_path):
    model = decoder()
    model.blocks[0] = torch.compile(model.blocks[0], backend="eager")
    with Recorder(tmp_path, Selection()):
        train(model, adamw(model), steps=1)
    rank = recording.read(tmp_path)[0]
    calls = names(rank.steps[1])
    assert "blocks.0" in calls
    assert not [name for name in calls if name.startswith("blocks.0.")]
    assert rank.facts["compiled"] == ["OptimizedModule"]


def test_an_evaluation_belongs_to_no_step(tmp_path):
    model = decoder()
    optimizer = adamw(model)
    ids, _ = batches(1)[0]
    with Recorder(tmp_path, Selection()):
        for _ in range(2):
            with torch.no_grad():
                model(ids)
            train(model, optimizer, steps=1)
    assert [names(step).count("") for step in recording.read(tmp_path)[0].steps.values()] == [1, 1]


def test_modules_that_change_their_input_in_place_can_be_recorded(tmp_path):
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True), nn.Linear(4, 1))
    with Recorder(tmp_path, Selection()):
        model(torch.ones(2, 4)).sum().backward()
    assert names(recording.read(tmp_path)[0].steps[1]) == ["0", "1", "2", ""]


def test_a_forward_pass_that_raises_leaves_no_trace(tmp_path):
    model = decoder()
    with Recorder(tmp_path, Selection()):
        with pytest.raises(RuntimeError):
            model(torch.zeros(1, 3, dtype=torch.long))
        train(model, adamw(model), steps=1)
    step = recording.read(tmp_path)[0].steps[1]
    assert [line["parent"] for line in step.calls if line["name"] == ""] == [None]


def test_only_selected_ranks_are_recorded(tmp_path, monkeypatch):
    monkeypatch.setenv("RANK", "3")
    for ranks in ("0-2", "3"):
        with Recorder(tmp_path / ranks, Selection(), Selection.parse(ranks, "", 0)):
            model = decoder()
            train(model, adamw(model), steps=1)
    assert not (tmp_path / "0-2").exists()
    assert list(recording.read(tmp_path / "3")) == [3]


def test_kept_inputs_replay_a_module(tmp_path):
    with Recorder(tmp_path, Selection(), keep_inputs=("blocks.1.mlp",)):
        model = decoder()
        train(model, adamw(model), steps=1)
    kept = kept_inputs.load(tmp_path / "rank-0", "blocks.1.mlp")
    module = Decoder().blocks[1].mlp
    module.load_state_dict(kept["state"])
    assert torch.equal(module(*kept["args"], **kept["kwargs"]), kept["output"])


def test_a_folder_that_cannot_be_written_stops_no_training(tmp_path):
    (tmp_path / "file").touch()
    said = []
    with Recorder(tmp_path / "file", Selection(), report=said.append):
        model = decoder()
        assert len(train(model, adamw(model))) == 3
    assert len(said) == 1
    assert "recording stops in this process" in said[0]


def test_a_running_process_keeps_its_recording(tmp_path):
    Run(steps=1).record(tmp_path)
    run = tmp_path / "rank-0" / "run.json"
    run.write_text(json.dumps({**json.loads(run.read_text()), "pid": os.getppid()}))
    said = []
    with Recorder(tmp_path, Selection(), report=said.append):
        model = decoder()
        train(model, adamw(model), steps=1)
    assert f"process {os.getppid()} records there" in said[0]
