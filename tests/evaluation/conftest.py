"""Small models with random weights, saved by transformers, with one token for each byte."""

from __future__ import annotations

import pytest
import torch

from ascend_adapt.evaluation.language_model import LanguageModel
from ascend_adapt.native.parallel import mesh

transformers = pytest.importorskip("transformers")
CONTEXT = 64
SHAPES = {"vocab_size": 512, "max_position_embeddings": CONTEXT, "hidden_size": 32, "intermediate_size": 64}
CONFIGS = {
    "gpt2": lambda: transformers.GPT2Config(
        vocab_size=512, n_positions=CONTEXT, n_embd=32, n_layer=2, n_head=4, bos_token_id=0, eos_token_id=0
    ),
    "gpt_neox": lambda: transformers.GPTNeoXConfig(
        num_hidden_layers=2, num_attention_heads=4, bos_token_id=0, eos_token_id=0, **SHAPES
    ),
    "llama": lambda: transformers.LlamaConfig(
        num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, bos_token_id=0, eos_token_id=0, **SHAPES
    ),
}


@pytest.fixture(scope="session")
def folders(tmp_path_factory):
    """Folder of each model."""
    made = {}
    for name, config in CONFIGS.items():
        torch.manual_seed(0)
        model = transformers.AutoModelForCausalLM.from_config(config()).eval()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.3 * torch.randn_like(parameter))
        made[name] = tmp_path_factory.mktemp(name)
        model.save_pretrained(made[name])
    return made


@pytest.fixture(scope="session")
def theirs(folders):
    """Transformers' own model of each folder."""
    return {name: transformers.AutoModelForCausalLM.from_pretrained(folder).eval() for name, folder in folders.items()}


@pytest.fixture(scope="session")
def ours(folders):
    """The native model of each folder."""
    alone = mesh.single(torch.device("cpu"))
    return {name: LanguageModel.load(folder, alone) for name, folder in folders.items()}
