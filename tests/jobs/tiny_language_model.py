"""Train a tiny language model of transformers on real text and print its losses as JSON.

``python tiny_language_model.py {gpt2,gpt_neox,llama} STEPS [--adapt] [--device D] [--dtype D] [--autocast D] [--lr L]``
"""

import argparse
import contextlib
import inspect
import json

parser = argparse.ArgumentParser()
parser.add_argument("model", choices=["gpt2", "gpt_neox", "llama"])
parser.add_argument("steps", type=int)
parser.add_argument("--adapt", action="store_true")
parser.add_argument("--device", default="cpu")
parser.add_argument("--dtype", default="float32", help="of the weights")
parser.add_argument("--autocast", help="what the model computes in, over weights of --dtype")
parser.add_argument("--lr", type=float, default=1e-3)
options = parser.parse_args()
if options.adapt:
    import ascend_adapt

    ascend_adapt.enable()

import torch  # noqa: E402
import transformers  # noqa: E402

torch.manual_seed(0)
torch.set_num_threads(1)
LENGTH, BATCH, VOCABULARY = 64, 8, 257
SIZES = {
    "gpt2": {"n_layer": 2, "n_embd": 64, "n_head": 4, "n_positions": LENGTH, "bos_token_id": 0, "eos_token_id": 0},
    "gpt_neox": {
        "num_hidden_layers": 2,
        "hidden_size": 64,
        "num_attention_heads": 4,
        "intermediate_size": 256,
        "max_position_embeddings": LENGTH,
    },
    "llama": {
        "num_hidden_layers": 2,
        "hidden_size": 64,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "intermediate_size": 172,
        "max_position_embeddings": LENGTH,
    },
}
NAMES = {"gpt2": "GPT2", "gpt_neox": "GPTNeoX", "llama": "Llama"}
DROPOUT = {"gpt2": {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}}
name = NAMES[options.model]
config = getattr(transformers, f"{name}Config")(
    vocab_size=VOCABULARY, **SIZES[options.model], **DROPOUT.get(options.model, {})
)
model = getattr(transformers, "GPT2LMHeadModel" if name == "GPT2" else f"{name}ForCausalLM")(config)
model = model.to(options.device, getattr(torch, options.dtype))
# Of torch, not of the standard library: the losses must not depend on the version of Python.
text = torch.frombuffer(bytearray(inspect.getsource(torch.nn.functional).encode()), dtype=torch.uint8).long()
starts = torch.randint(len(text) - LENGTH, (options.steps, BATCH), generator=torch.Generator().manual_seed(1))
optimizer = torch.optim.AdamW(model.parameters(), lr=options.lr)
losses = []
mixed = (
    torch.autocast(options.device, getattr(torch, options.autocast)) if options.autocast else contextlib.nullcontext()
)
for each in starts:
    batch = torch.stack([text[start : start + LENGTH] for start in each]).to(options.device)
    with mixed:
        loss = model(input_ids=batch, labels=batch).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    losses.append(float(loss.detach()))
reported = {"losses": losses}
if options.adapt:
    from ascend_adapt.kernels import dispatch

    reported["states"] = {one.patch: one.state for one in ascend_adapt.status().outcomes if one.plugin == "hf"}
    reported["choices"] = sorted({f"{one.kernel}: {one.backend}" for one in dispatch.choices()})
print(json.dumps(reported))
