"""An ordinary Trainer script: python train.py --model DIR --output_dir DIR [--lora] [any TrainingArguments]."""

from dataclasses import dataclass, field

from text import Blocks, library_text
from transformers import AutoModelForCausalLM, AutoTokenizer, HfArgumentParser, Trainer, TrainingArguments, set_seed


@dataclass
class ModelArguments:
    model: str = field(metadata={"help": "the folder of a model and its tokenizer"})
    length: int = field(default=64, metadata={"help": "tokens in a sample"})
    lora: bool = field(default=False, metadata={"help": "train adapters on the attention's projections only"})


def main() -> None:
    options, arguments = HfArgumentParser((ModelArguments, TrainingArguments)).parse_args_into_dataclasses()
    set_seed(arguments.seed)
    tokenizer = AutoTokenizer.from_pretrained(options.model)
    model = AutoModelForCausalLM.from_pretrained(options.model)
    if options.lora:
        from peft import LoraConfig, get_peft_model

        model = get_peft_model(model, LoraConfig(task_type="CAUSAL_LM", r=8, lora_alpha=16, lora_dropout=0.0))
        model.print_trainable_parameters()
    blocks = Blocks(tokenizer, library_text(), options.length)
    trainer = Trainer(model=model, args=arguments, train_dataset=blocks, processing_class=tokenizer)
    trainer.train()
    trainer.save_model()


if __name__ == "__main__":
    main()
