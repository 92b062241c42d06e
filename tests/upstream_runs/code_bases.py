"""The code bases that are no packages: where each is had, and at which commit it was run."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

VARIABLE = "ASCEND_ADAPT_UPSTREAMS"


class NotHere(Exception):
    """A code base is not on this machine as it was published; the text says what to do."""


@dataclass(frozen=True)
class CodeBase:
    """One public repository at one commit; ``folder`` is its name below ASCEND_ADAPT_UPSTREAMS."""

    folder: str
    url: str
    commit: str

    @property
    def how_to_get(self) -> str:
        """The commands that make the checkout, to be given in the folder ASCEND_ADAPT_UPSTREAMS."""
        return f"git clone {self.url} {self.folder} && git -C {self.folder} checkout --quiet {self.commit}"

    def checkout(self, environ: Mapping[str, str]) -> Path:
        """Return the folder of the unmodified checkout.

        Raises:
            NotHere: there is none, or it is at another commit or edited.
        """
        if not environ.get(VARIABLE):
            raise NotHere(f"{VARIABLE} is not set, expected the folder of {self.folder} — there, {self.how_to_get}")
        path = Path(environ[VARIABLE]).absolute() / self.folder
        if not (path / ".git").exists():
            raise NotHere(f"{path}: is no git checkout — in {path.parent}, {self.how_to_get}")
        commit = _git(path, "rev-parse", "HEAD")
        if not commit.startswith(self.commit):
            raise NotHere(f"{path}: is at {commit[:12]}, expected {self.commit} — git checkout it")
        if edited := _git(path, "status", "--porcelain", "--untracked-files=no"):
            raise NotHere(f"{path}: is edited ({edited.split()[-1]}), expected it as published — git stash the edits")
        return path


def _git(folder: Path, *arguments: str) -> str:
    ended = subprocess.run(["git", "-C", str(folder), *arguments], capture_output=True, text=True)
    if ended.returncode:
        raise NotHere(f"{folder}: git {arguments[0]} says {ended.stderr.strip()} — make the checkout anew")
    return ended.stdout.strip()


CODE_BASES = (
    CodeBase("Megatron-DeepSpeed", "https://github.com/deepspeedai/Megatron-DeepSpeed", "4efb479d"),
    CodeBase("bigscience-Megatron-DeepSpeed", "https://github.com/bigscience-workshop/Megatron-DeepSpeed", "8387ae17"),
    CodeBase("Megatron-LM-0.12.0", "https://github.com/NVIDIA/Megatron-LM", "d580efc6"),
    CodeBase("Megatron-LM-0.14.0", "https://github.com/NVIDIA/Megatron-LM", "23e00ed0"),
    CodeBase("Megatron-LM-0.19.0", "https://github.com/NVIDIA/Megatron-LM", "5be96267"),
    CodeBase("gpt-neox", "https://github.com/EleutherAI/gpt-neox", "ea7aefd8"),
    # The tag v2.0 is no Python: a docstring is not closed. The next commit closes it, and changes nothing else.
    CodeBase("gpt-neox-v2.0", "https://github.com/EleutherAI/gpt-neox", "6edf2418"),
    CodeBase("GLM", "https://github.com/THUDM/GLM", "4f61ed72"),
    # Unmodified programs, for tests/upstream_runs/own_scripts.
    CodeBase("nanoGPT", "https://github.com/karpathy/nanoGPT", "3adf61e1"),
    CodeBase("minGPT", "https://github.com/karpathy/minGPT", "37baab71"),
    CodeBase("llama2.c", "https://github.com/karpathy/llama2.c", "350e04fe"),
    CodeBase("pytorch-examples", "https://github.com/pytorch/examples", "77f55b91"),
    # A copy of huggingface/transformers between 4.57 and 5.10, whose own repository could not be had.
    CodeBase("transformers-examples", "https://github.com/macorisd/transformers-qwen3", "4a42c1b0"),
    CodeBase("accelerate", "https://github.com/huggingface/accelerate", "16cb6eb8"),
    CodeBase("peft", "https://github.com/huggingface/peft", "5d602fdb"),
    CodeBase("trl", "https://github.com/huggingface/trl", "f2cd5771"),
    CodeBase("stanford_alpaca", "https://github.com/tatsu-lab/stanford_alpaca", "761dc5bf"),
    CodeBase("LLaMA-Factory", "https://github.com/hiyouga/LLaMA-Factory", "ff6d4d12"),
    CodeBase("LLMs-from-scratch", "https://github.com/rasbt/LLMs-from-scratch", "28c65cdf"),
    CodeBase("FastChat", "https://github.com/lm-sys/FastChat", "0e6d3e4b"),
    CodeBase("OpenRLHF", "https://github.com/OpenRLHF/OpenRLHF", "3c3be623"),
    CodeBase("TinyLlama", "https://github.com/jzhang38/TinyLlama", "bf122247"),
    CodeBase("RWKV-LM", "https://github.com/BlinkDL/RWKV-LM", "524481d5"),
    CodeBase("picotron", "https://github.com/huggingface/picotron", "59714b1b"),
    CodeBase("x-transformers", "https://github.com/lucidrains/x-transformers", "9252ed78"),
    CodeBase("pytorch-image-models", "https://github.com/huggingface/pytorch-image-models", "aa4b5850"),
    CodeBase("nanochat", "https://github.com/karpathy/nanochat", "92d63d4e"),
    CodeBase("open_clip", "https://github.com/mlfoundations/open_clip", "89fb801f"),
    CodeBase("DiT", "https://github.com/facebookresearch/DiT", "ed81ce22"),
    CodeBase("pytorch-lightning", "https://github.com/Lightning-AI/pytorch-lightning", "7f0c3436"),
    CodeBase("DeepSpeedExamples", "https://github.com/deepspeedai/DeepSpeedExamples", "45b4b715"),
    CodeBase("sentence-transformers", "https://github.com/UKPLab/sentence-transformers", "85ec6455"),
    CodeBase("Pytorch-UNet", "https://github.com/milesial/Pytorch-UNet", "21d7850f"),
    CodeBase("PyTorch-GAN", "https://github.com/eriklindernoren/PyTorch-GAN", "36d3c77e"),
    CodeBase("dino", "https://github.com/facebookresearch/dino", "7c446df5"),
    CodeBase("pytorch-cifar100", "https://github.com/weiaicunzai/pytorch-cifar100", "11d8418f"),
    CodeBase("SimCLR", "https://github.com/sthalles/SimCLR", "1848fc93"),
    CodeBase("Swin-Transformer", "https://github.com/microsoft/Swin-Transformer", "f82860bf"),
    CodeBase("pytorch-tutorial", "https://github.com/yunjey/pytorch-tutorial", "0500d3df"),
    CodeBase("edm", "https://github.com/NVlabs/edm", "008a4e53"),
    CodeBase("cleanrl", "https://github.com/vwxyzjn/cleanrl", "fe8d8a03"),
    CodeBase("pygcn", "https://github.com/tkipf/pygcn", "1600b5b7"),
    CodeBase("dlrm", "https://github.com/facebookresearch/dlrm", "090956ee"),
    CodeBase("NCF", "https://github.com/guoyang9/NCF", "89ff06ff"),
    CodeBase("makemore", "https://github.com/karpathy/makemore", "988aa59e"),
    CodeBase("BERT-pytorch", "https://github.com/codertimo/BERT-pytorch", "d10dc4f9"),
    CodeBase("LoRA", "https://github.com/microsoft/LoRA", "c4593f06"),
    CodeBase("llama3", "https://github.com/meta-llama/llama3", "a0940f9c"),
    CodeBase("gpt-fast", "https://github.com/pytorch-labs/gpt-fast", "32971d31"),
    CodeBase("diffusers", "https://github.com/huggingface/diffusers", "58eb52c0"),
    CodeBase("barlowtwins", "https://github.com/facebookresearch/barlowtwins", "8e8d284c"),
    CodeBase("pyGAT", "https://github.com/Diego999/pyGAT", "3664f2dc"),
    CodeBase("Autoformer", "https://github.com/thuml/Autoformer", "51c7d416"),
    CodeBase("PatchTST", "https://github.com/yuqinie98/PatchTST", "204c21ef"),
    CodeBase("mixture-of-experts", "https://github.com/davidmrau/mixture-of-experts", "f6629997"),
    CodeBase("ng-video-lecture", "https://github.com/karpathy/ng-video-lecture", "52201428"),
    CodeBase("GRPO-Zero", "https://github.com/policy-gradient/GRPO-Zero", "d41bb486"),
    CodeBase("stargan", "https://github.com/yunjey/stargan", "94dd002e"),
    CodeBase("transformer-xl", "https://github.com/kimiyoung/transformer-xl", "44781ed2"),
    CodeBase("yolov5", "https://github.com/ultralytics/yolov5", "5081342f"),
    CodeBase("alignment-handbook", "https://github.com/huggingface/alignment-handbook", "925acdfe"),
    CodeBase("open-r1", "https://github.com/huggingface/open-r1", "1416fa0c"),
    CodeBase("DistillKit", "https://github.com/arcee-ai/DistillKit", "a61c2e7d"),
    CodeBase("Firefly", "https://github.com/yangjianxin1/Firefly", "e22b406e"),
    CodeBase("contriever", "https://github.com/facebookresearch/contriever", "39fb2201"),
    CodeBase("ConvNeXt", "https://github.com/facebookresearch/ConvNeXt", "048efcea"),
)


def code_base(folder: str) -> CodeBase:
    """Return the code base of this folder name."""
    (found,) = [one for one in CODE_BASES if one.folder == folder]
    return found
