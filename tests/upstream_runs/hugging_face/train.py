"""An ordinary Trainer script: python train.py --model gpt2 --output_dir DIR [any TrainingArguments]."""

from dataclasses import dataclass, field

from models import make_model
from text import Blocks, library_text, train_tokenizer
from transformers import HfArgumentParser, Trainer, TrainingArguments, set_seed


@dataclass
class ModelArguments:
    model: str = field(default="gpt2", metadata={"help": "gpt2, gpt_neox or llama"})
    length: int = field(default=64, metadata={"help": "tokens in a sample"})


def main() -> None:
    model_arguments, arguments = HfArgumentParser((ModelArguments, TrainingArguments)).parse_args_into_dataclasses()
    set_seed(arguments.seed)
    texts = library_text()
    tokenizer = train_tokenizer(texts)
    model = make_model(model_arguments.model, len(tokenizer))
    blocks = Blocks(tokenizer, texts, model_arguments.length)
    trainer = Trainer(model=model, args=arguments, train_dataset=blocks, processing_class=tokenizer)
    trainer.train()
    trainer.save_model()


if __name__ == "__main__":
    main()
