"""An ordinary training loop on accelerate: accelerate launch loop.py --model DIR [--steps N]."""

import argparse

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from text import Blocks, library_text
from transformers import AutoModelForCausalLM, AutoTokenizer, get_linear_schedule_with_warmup


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--output", required=True)
    options = parser.parse_args()
    accelerator = Accelerator(gradient_accumulation_steps=2)
    set_seed(0)
    tokenizer = AutoTokenizer.from_pretrained(options.model)
    model = AutoModelForCausalLM.from_pretrained(options.model)
    blocks = Blocks(tokenizer, library_text(), 64)
    loader = torch.utils.data.DataLoader(blocks, batch_size=options.batch, shuffle=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    schedule = get_linear_schedule_with_warmup(optimizer, 2, 100)
    model, optimizer, loader, schedule = accelerator.prepare(model, optimizer, loader, schedule)
    model.train()
    for step, batch in enumerate(loader):
        if step == options.steps:
            break
        with accelerator.accumulate(model):
            loss = model(**batch).loss
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
        mean = accelerator.gather(loss.detach().float()).mean().item()
        accelerator.print(f"step {step} loss: {mean:.6f}", flush=True)
    accelerator.wait_for_everyone()
    accelerator.save_model(model, options.output)
    accelerator.end_training()


if __name__ == "__main__":
    main()
