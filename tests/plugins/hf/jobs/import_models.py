"""Make a tiny model of transformers and an Accelerator, and print the devices."""

from accelerate import Accelerator
from transformers import GPT2Config, GPT2LMHeadModel

ids = {"bos_token_id": 0, "eos_token_id": 0}
model = GPT2LMHeadModel(GPT2Config(n_layer=1, n_embd=8, n_head=1, vocab_size=8, **ids))
print("devices", model.device, Accelerator().device)
