"""The native trainer starts from weights of other trainers, at iteration 0; case ckpt-1."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.distributed as dist
from native.small_models import GPT2, NEOX, config

from ascend_adapt.checkpoint.dialects import deepspeed_writing, megatron, native
from ascend_adapt.checkpoint.writing import Output
from ascend_adapt.config.train_config import Checkpoint
from ascend_adapt.errors import TrainingError
from ascend_adapt.native.checkpoint.folder import SUMS, checksum
from ascend_adapt.native.checkpoint.load import load
from ascend_adapt.native.checkpoint.state import TrainState
from ascend_adapt.native.parallel import mesh as meshes
from ascend_adapt.native.step.trainer import Trainer

ALONE = meshes.single(torch.device("cpu"))
WRITERS = {
    "neox": (deepspeed_writing.write_neox, NEOX),
    "megatron": (megatron.write, GPT2),
    "native": (native.write, GPT2),
}


@pytest.fixture(scope="module", autouse=True)
def process_group():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def trainer_of(model, **checkpoint):
    return Trainer(replace(config(model), checkpoint=Checkpoint(**checkpoint)), ALONE)


def written(kind, folder):
    write, model = WRITERS[kind]
    trainer = trainer_of(model)
    with torch.no_grad():
        for one in trainer.parameters:
            one.local.uniform_(-1, 1)
    state = {one.name: one.local.clone() for one in trainer.parameters}
    folder.mkdir()
    write(
        Output(model, state.__getitem__, lambda amount: None, torch.float32, tensor=1 if kind == "native" else 2),
        folder,
    )
    if kind == "native":
        folder = folder / "iter_0000000"
        sums = {one.name: checksum(one) for one in folder.iterdir()}
        (folder / SUMS).write_text("".join(f"{value}  {name}\n" for name, value in sums.items()))
    return model, state


@pytest.mark.parametrize("kind", WRITERS)
def test_weights_are_loaded_at_iteration_0_and_a_resume_is_refused(tmp_path, kind):
    model, state = written(kind, tmp_path / "in")
    for more in ({"finetune": True}, {"load_optimizer": False}):
        trainer = trainer_of(model, load=str(tmp_path / "in"), **more)
        progress, messages = load(trainer)
        assert progress == TrainState()
        assert all(torch.equal(one.local, state[one.name]) for one in trainer.parameters)
        assert messages[0].startswith(f"weights of {tmp_path / 'in'}/")
        assert messages[0].endswith(", from iteration 0")
    with pytest.raises(
        TrainingError, match="expected (optimizer states|a checkpoint of the native trainer) .*--finetune"
    ):
        load(trainer_of(model, load=str(tmp_path / "in")))


def test_another_number_of_rows_is_padded(tmp_path):
    model, state = written("neox", tmp_path / "in")
    trainer = trainer_of(replace(model, padded_vocab_size=128), load=str(tmp_path / "in"), finetune=True)
    _, messages = load(trainer)
    assert f"vocabulary: 96 -> 128 rows, for {model.vocab_size} ids" in messages
    words = next(one.local for one in trainer.parameters if one.name == "embedding.words.weight")
    assert torch.equal(words[:96], state["embedding.words.weight"])


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"tied_embeddings": True}, "has head.weight, which this model lacks"),
        ({"norm": "rmsnorm"}, "has final_norm.bias, which this model lacks"),
        ({"num_layers": 2}, "has layers.2.attention.dense.bias, which this model lacks"),
        ({"ffn_hidden_size": 96}, r"layers.0.mlp.dense_4h_to_h.weight is \[32, 64\], expected \[32, 96\]"),
        ({"positions": "learned"}, "has no embedding.positions.weight"),
    ],
)
def test_another_model_is_refused_with_both_facts(tmp_path, change, problem):
    model, _ = written("neox", tmp_path / "in")
    with pytest.raises(TrainingError, match=f"{problem}.* — configure the model that was saved"):
        load(trainer_of(replace(model, **change), load=str(tmp_path / "in"), finetune=True))


def test_what_differs_without_another_shape_is_logged(tmp_path):
    model, _ = written("neox", tmp_path / "in")
    changed = replace(model, parallel_residual=False, activation="gelu_tanh")
    _, messages = load(trainer_of(changed, load=str(tmp_path / "in"), finetune=True))
    assert messages[-1] == (
        "warning: the model differs from the saved one: parallel_residual was True, is False; "
        "activation was gelu, is gelu_tanh"
    )
