"""Every dialect gives back, bit for bit, what was written in it, whatever the parallel sizes."""

from __future__ import annotations

import dataclasses
import re

import pytest
import torch
from checkpoint.small_checkpoints import MODELS, new_folder, output_of, state_of

from ascend_adapt.checkpoint.canonical import parameters
from ascend_adapt.checkpoint.detection import open_checkpoint
from ascend_adapt.checkpoint.dialects import deepspeed_writing, megatron, megatron_core, native
from ascend_adapt.checkpoint.hugging_face import files as hugging_face
from ascend_adapt.native.model.decoder import Decoder
from ascend_adapt.native.parallel.parameters import placed
from ascend_adapt.native.parallel.tensor_parallel import TensorParallel

GPT2, NEOX, LLAMA = (
    [name for name in MODELS if name.startswith(kind)] for kind in (("gpt2",), ("neox",), ("llama", "qwen2"))
)
CORE = [*GPT2, "neox one after the other", *LLAMA]
SIZES = [(1, 1), (2, 1), (4, 2), (1, 2)]
# Dialect, its writer, the models that it expresses, and the sizes of its files.
WRITERS = {
    "native": (native.write, list(MODELS), [(1, 1)], {}),
    "hf": (hugging_face.write, list(MODELS), [(1, 1)], {}),
    "neox": (deepspeed_writing.write_neox, [*GPT2, *NEOX, "llama", "llama shared key heads"], SIZES, {}),
    "neox, sequential": (deepspeed_writing.write_neox, [*GPT2, *NEOX], [(1, 0), (2, 0)], {}),
    "neox v2.0": (deepspeed_writing.write_neox, [*GPT2, *NEOX], SIZES, {"version": "v2.0"}),
    "megatron-deepspeed": (deepspeed_writing.write_megatron_deepspeed, ["gpt2"], SIZES, {}),
    "megatron": (megatron.write, [*GPT2, "neox one after the other", "llama shared key heads"], SIZES, {}),
    "megatron-core": (
        lambda output, folder: megatron.write(output, folder, names=megatron.LOCAL),
        CORE,
        SIZES,
        {},
    ),
    "megatron-core, Transformer Engine": (
        lambda output, folder: megatron.write(output, folder, names=megatron.TRANSFORMER_ENGINE),
        CORE,
        [(2, 2)],
        {},
    ),
    "megatron-core, torch_dist": (megatron_core.write, CORE, [(1, 1)], {}),
}
CASES = [
    (dialect, name, *sizes) for dialect, (_, names, every, _) in WRITERS.items() for name in names for sizes in every
]


@pytest.mark.parametrize("name", MODELS)
def test_the_canonical_state_is_the_native_models(name):
    model = MODELS[name]
    with torch.device("meta"):
        decoder = Decoder(model, TensorParallel(None, 2, 0, False), range(model.num_layers))
    ours = {one.name: (one.whole_shape(2), one.layout.cut) for one in placed([decoder])}
    assert {one.name: (one.shape, one.cut) for one in parameters(model)} == ours


@pytest.mark.parametrize(("dialect", "name", "tensor", "pipeline"), CASES)
def test_what_is_written_is_read_bit_for_bit(tmp_path, dialect, name, tensor, pipeline):
    write, _, _, more = WRITERS[dialect]
    model = MODELS[name]
    state = state_of(model)
    write(output_of(model, state, tensor=tensor, pipeline=pipeline, **more), new_folder(tmp_path / "written"))
    source = open_checkpoint(tmp_path / "written")
    assert source.dialect == dialect.partition(",")[0].removesuffix(" v2.0")
    read = {one.name: source.read(one.name) for one in source.parameters()}
    # A norm that attention and MLP share is two equal ones for Hugging Face.
    copies = {each: state[each.replace("post_attention", "input")] for each in read.keys() - state.keys()}
    assert bool(copies) == (dialect == "hf" and model.shared_norm)
    state |= copies
    assert read.keys() == state.keys()
    assert [each for each, tensor in read.items() if not torch.equal(tensor, state[each])] == []
    assert same_arithmetic(source.model, model)


@pytest.mark.parametrize("dialect", ["megatron", "megatron-core"])
@pytest.mark.parametrize(("sizes", "stages"), [({"first": 1}, [1, 2, 2]), ({"first": 2, "last": 1}, [2, 2, 1])])
def test_stages_of_unequal_size_are_read_bit_for_bit(tmp_path, dialect, sizes, stages):
    model = dataclasses.replace(MODELS["gpt2"], num_layers=5)
    state = state_of(model)
    WRITERS[dialect][0](output_of(model, state, pipeline=3, **sizes), new_folder(tmp_path / "written"))
    source = open_checkpoint(tmp_path / "written")
    assert {name for name, tensor in state.items() if not torch.equal(source.read(name), tensor)} == set()
    files = [torch.load(path) for path in sorted((tmp_path / "written/release").glob("mp_rank_*/*.pt"))]
    assert [len(set(re.findall(r"layers\.\d+", str(file["model"])))) for file in files] == stages


def same_arithmetic(one, other):
    """Compare what two models compute; initialisation, dropout and the number of ids are not of the weights."""
    apart = {
        field.name
        for field in dataclasses.fields(one)
        if getattr(one, field.name) != getattr(other, field.name)
        and not field.name.endswith(("init", "dropout"))
        and field.name != "vocab_size"
    }
    # Settings without effect on this model.
    apart -= {"rotary_fraction", "rotary_base"} if one.positions != "rotary" else set()
    return apart - ({"shared_norm"} if other.shared_norm else set()) == set()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_sixteen_bits_stay_as_they_are(tmp_path, dtype):
    model = MODELS["neox"]
    state = state_of(model, dtype)
    for number, (write, sizes) in enumerate(((deepspeed_writing.write_neox, {"tensor": 2}), (native.write, {}))):
        write(output_of(model, state, **sizes), new_folder(tmp_path / str(number)))
        source = open_checkpoint(tmp_path / str(number))
        assert source.dtype == dtype
        assert all(torch.equal(source.read(name), tensor) for name, tensor in state.items())
