"""Compare what transformers makes of a converted checkpoint with the loss that GPT-NeoX printed for it.

    python converted.py MODEL DATA_PREFIX PRINTED SAMPLES BOUND

PRINTED is the output of a training that ended with an evaluation. Exit code 1 if the loss over the first 4 of SAMPLES
samples for validation, which is one batch of jobs.py, is further off than BOUND, relative.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

import torch
from transformers import AutoTokenizer, GPTNeoXForCausalLM

from ascend_adapt.data.torch_dataset import gpt_dataset

BATCH, SEQUENCE, SPLIT = 4, 32, "90,8,2"

folder, prefix, printed = sys.argv[1:4]
(theirs, *_) = re.findall(r"iteration 3 \| lm_loss value: ([0-9.E+-]+)", Path(printed).read_text())
data, _ = gpt_dataset(
    prefix, seq_length=SEQUENCE, num_samples=(None, int(sys.argv[4]), None), part="valid", split=SPLIT, dialect="neox"
)
model = GPTNeoXForCausalLM.from_pretrained(folder).float().eval()
batch = [data[number] for number in range(BATCH)]
tokens, labels = (torch.stack([sample[name] for sample in batch]) for name in ("tokens", "labels"))
with torch.no_grad():
    ours = torch.nn.functional.cross_entropy(model(tokens).logits.flatten(0, 1), labels.flatten()).item()
apart = abs(ours - float(theirs)) / ours
print(f"converted lm_loss: {ours:.6E}, {apart:.1e} apart from GPT-NeoX's {theirs}")
if len(AutoTokenizer.from_pretrained(folder)) != model.config.vocab_size:
    sys.exit("the tokenizer beside the model has another vocabulary")
if apart > float(sys.argv[5]):
    sys.exit(f"the loss is {apart:.1e} apart, expected at most {sys.argv[5]}")
