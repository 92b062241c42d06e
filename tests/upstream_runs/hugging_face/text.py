"""Real text in blocks of tokens: the sources of Python's own library, and a tokenizer trained on them on the spot."""

import sysconfig
from pathlib import Path

import torch
from tokenizers import ByteLevelBPETokenizer
from transformers import PreTrainedTokenizerFast

END = "<|endoftext|>"


def library_text(files: int = 12) -> list[str]:
    folder = Path(sysconfig.get_paths()["stdlib"])
    return [path.read_text(encoding="utf-8", errors="replace") for path in sorted(folder.glob("a*.py"))[:files]]


def train_tokenizer(texts: list[str], vocabulary: int = 509) -> PreTrainedTokenizerFast:
    trained = ByteLevelBPETokenizer()
    trained.train_from_iterator(texts, vocab_size=vocabulary, special_tokens=[END])
    return PreTrainedTokenizerFast(tokenizer_object=trained._tokenizer, eos_token=END, pad_token=END, bos_token=END)


class Blocks(torch.utils.data.Dataset):
    """Blocks of ``length`` tokens, as the Trainer takes them."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast, texts: list[str], length: int) -> None:
        tokens = [token for text in texts for token in tokenizer(text)["input_ids"] + [tokenizer.eos_token_id]]
        self.blocks = torch.tensor(tokens[: len(tokens) // length * length]).view(-1, length)

    def __len__(self) -> int:
        return len(self.blocks)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"input_ids": self.blocks[index], "labels": self.blocks[index]}
