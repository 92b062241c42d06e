"""Programs of other fields: vision, reinforcement learning, graphs, recommenders, and generation and evaluation."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
from own_scripts import local_data
from own_scripts.from_scratch import DRAWN
from own_scripts.program import program, words_of
from upstream_job import Place, UpstreamJob

# A program that prints no loss: a marker of its progress, or its speed, is found, and not compared.
NOT_COMPARED = {"bound": 1e9}
CIFAR = {"path": str(Path(__file__).parent / "cifar")}


def masks(place: Place, code: Path) -> None:
    """Write pictures and masks of two classes for a segmentation."""
    from PIL import Image

    draw = np.random.default_rng(local_data.RANDOM)
    for folder, colours in (("imgs", (256, 3)), ("masks", (2,))):
        (code / "data" / folder).mkdir(parents=True, exist_ok=True)
        for number in range(6):
            array = draw.integers(0, colours[0], (48, 48, *colours[1:]), dtype=np.uint8)
            Image.fromarray(array).save(code / "data" / folder / f"{number}.png")


def citations(place: Place, code: Path) -> None:
    """Write the features of the papers that Cora's citations name: its repository has lost them."""
    folder = code / "data" / "cora"
    papers = sorted({word for line in (folder / "cora.cites").read_text().splitlines() for word in line.split()})
    draw = np.random.default_rng(local_data.RANDOM)
    rows = (f"{paper}\t{' '.join(map(str, draw.integers(0, 2, 32)))}\tclass{n % 7}" for n, paper in enumerate(papers))
    (folder / "cora.content").write_text("\n".join(rows).replace(" ", "\t") + "\n")


def cifar_100(place: Place, code: Path) -> None:
    """Write CIFAR-100's files with random pictures."""
    folder = code / "data" / "cifar-100-python"
    folder.mkdir(parents=True, exist_ok=True)
    draw = np.random.default_rng(local_data.RANDOM)
    for name, count in (("train", 32), ("test", 16)):
        labels = [number % 100 for number in range(count)]
        made = {"data": draw.integers(0, 256, (count, 3072), dtype=np.uint8), "fine_labels": labels}
        (folder / name).write_bytes(pickle.dumps(made))
    (folder / "meta").write_bytes(pickle.dumps({"fine_label_names": [str(number) for number in range(100)]}))


def ratings(place: Place, code: Path) -> None:
    """Write ratings of 20 users, and the configuration that names their folder."""
    lines = [f"{user}\t{item}\t1\t0\n" for user in range(20) for item in range(user % 5, 120, 7)]
    (code / "ml-1m.train.rating").write_text("".join(lines))
    (code / "ml-1m.test.rating").write_text("".join(lines[:20]))
    tests = ("\t".join([f"({user}, {user})", *map(str, range(20, 119))]) for user in range(20))
    (code / "ml-1m.test.negative").write_text("\n".join(tests) + "\n")
    config = code / "config.py"
    config.write_text(config.read_text().replace("/home/share/guoyangyang/recommendation/NCF-Data/", f"{code}/"))


def pairs_of_lines(place: Place, code: Path) -> None:
    """Write pairs of sentences, and have the program's own command make their vocabulary."""
    lines = [" ".join(one.split()) for one in local_data.sentences(32, 100)]
    (code / "corpus.txt").write_text("".join(f"{one[:40]}\t{one[40:]}\n" for one in lines if len(one) > 60))
    build = "from bert_pytorch.dataset.vocab import build; build()"
    subprocess.run([sys.executable, "-c", build, "-c", "corpus.txt", "-o", "vocab"], cwd=code, check=True)
    (code / "bert.py").write_text("from bert_pytorch.__main__ import train\n\ntrain()\n")  # as its command `bert`


def llama_3(place: Place, code: Path) -> None:
    """Write a checkpoint as Meta publishes them, with random weights, and a vocabulary of the 256 bytes."""
    import base64

    import torch

    folder = code / "ckpt"
    folder.mkdir(exist_ok=True)
    tokens = "".join(f"{base64.b64encode(bytes([one])).decode()} {one}\n" for one in range(256))
    (folder / "tokenizer.model").write_text(tokens)
    sizes = {"dim": 32, "n_layers": 1, "n_heads": 4, "n_kv_heads": 2, "vocab_size": 512, "multiple_of": 32}
    (folder / "params.json").write_text(json.dumps({**sizes, "norm_eps": 1e-5, "rope_theta": 500000.0}))
    shapes = {"wq": (32, 32), "wk": (16, 32), "wv": (16, 32), "wo": (32, 32)}
    shapes = {f"layers.0.attention.{name}.weight": shape for name, shape in shapes.items()}
    shapes |= {f"layers.0.feed_forward.{name}.weight": (96, 32) for name in ("w1", "w3")}
    shapes |= {"layers.0.feed_forward.w2.weight": (32, 96), "tok_embeddings.weight": (512, 32)}
    shapes |= {"output.weight": (512, 32)}
    weights = {name: torch.randn(shape) * 0.05 for name, shape in shapes.items()}
    norms = ("layers.0.attention_norm.weight", "layers.0.ffn_norm.weight", "norm.weight")
    torch.save({**weights, **{name: torch.ones(32) for name in norms}}, folder / "consolidated.00.pth")


def gpt_fast(place: Place, code: Path) -> None:
    """Write random weights of its smallest model, and a vocabulary by sentencepiece, with empty pieces to its size."""
    import io

    import sentencepiece
    from sentencepiece import sentencepiece_model_pb2

    folder = code / "checkpoints" / "stories15M"
    folder.mkdir(parents=True, exist_ok=True)
    written, lines = io.BytesIO(), iter(local_data.sentences(200, 100))
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=lines, model_writer=written, vocab_size=300, minloglevel=2, hard_vocab_limit=False
    )
    model = sentencepiece_model_pb2.ModelProto.FromString(written.getvalue())
    for number in range(len(model.pieces), 32000):
        model.pieces.add(piece=f"<{number}>", score=-100.0)
    (folder / "tokenizer.model").write_bytes(model.SerializeToString())
    write = (
        "import torch; from model import Transformer; torch.manual_seed(1); "
        "torch.save(Transformer.from_name('stories15M').state_dict(), 'checkpoints/stories15M/model.pth')"
    )
    subprocess.run([sys.executable, "-c", write], cwd=code, check=True)


def e2e(place: Place, code: Path) -> None:
    """Write encoded examples of the E2E challenge."""
    draw = np.random.default_rng(local_data.RANDOM)
    rows = [
        {"context": draw.integers(0, 50000, 12).tolist(), "completion": draw.integers(0, 50000, 12).tolist()}
        for _ in range(8)
    ]
    for name in ("train", "valid"):
        local_data.write_jsonl(code / "examples" / "NLG" / f"{name}.jsonl", rows)


def zip_of_pictures(place: Place, code: Path) -> None:
    """Write a folder of 16x16 pictures as edm's dataset_tool.py does."""
    from PIL import Image

    draw = np.random.default_rng(local_data.RANDOM)
    (code / "pictures").mkdir(exist_ok=True)
    for number in range(16):
        array = draw.integers(0, 256, (16, 16, 3), dtype=np.uint8)
        Image.fromarray(array).save(code / "pictures" / f"{number:04d}.png")


def captions(place: Place, code: Path) -> None:
    """Write pictures with captions, and a tiny Stable Diffusion."""
    folder = local_data.write_pictures(code / "pairs", splits=("train",), size=32)
    names = sorted(path.relative_to(folder / "train") for path in folder.rglob("*.jpg"))
    local_data.write_jsonl(
        folder / "train" / "metadata.jsonl", [{"file_name": str(name), "text": name.parent.name} for name in names]
    )
    local_data.write_model(place.shared / "stable-diffusion", "stable-diffusion")


def views(place: Place, code: Path) -> None:
    """Write pictures, and an empty list of models in torch.hub's cache: its options name those of XCiT."""
    local_data.write_pictures(code / "pictures", each=1)
    (code / "out").mkdir()
    listed = place.shared / "torch" / "hub" / "facebookresearch_xcit_main"
    listed.mkdir(parents=True, exist_ok=True)
    (listed / "hubconf.py").write_text("")


def perplexity_task(place: Place, code: Path) -> None:
    """Write a model, and a task of lm-eval on local text."""
    local_data.write_model(place.shared / "gpt2", "gpt2")
    local_data.write_jsonl(code / "texts.jsonl", [{"text": text} for text in local_data.sentences(4)])
    task = {
        "task": "local_text",
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": "texts.jsonl"}},
        "output_type": "loglikelihood_rolling",
        "test_split": "test",
        "doc_to_text": "",
        "doc_to_target": "{{text}}",
        "metric_list": [{"metric": "bits_per_byte"}],
    }
    (code / "local_text.yaml").write_text(json.dumps(task))


PYTORCH_GAN = {
    "code_base": "PyTorch-GAN",
    "prepare": lambda place, code: local_data.write_mnist(code / "data" / "mnist"),
    "loss": r"\[[DG] loss: (-?[0-9.]+)\]",
}
TUTORIAL = {"code_base": "pytorch-tutorial", **DRAWN}
MAKEMORE = {"code_base": "makemore", "loss": r"step \d+ \| loss ([0-9.]+)", **DRAWN}
VISION = (
    program(
        "Pytorch-UNet",
        words_of("train.py --epochs 1 --batch-size 2 --scale 1 --validation 34 --amp"),
        code_base="Pytorch-UNet",
        prepare=masks,
        loss=r"loss \(batch\)=([0-9.]+)",
        **DRAWN,
    ),
    program(
        "PyTorch-GAN-gan",
        words_of("gan.py --n_epochs 1 --batch_size 16"),
        inside="implementations/gan",
        **PYTORCH_GAN,
        **DRAWN,
    ),
    program(
        "PyTorch-GAN-wgan_gp",
        words_of("wgan_gp.py --n_epochs 1 --batch_size 16"),
        inside="implementations/wgan_gp",
        **PYTORCH_GAN,
        **NOT_COMPARED,
    ),
    program(
        "dino",
        words_of(
            "main_dino.py --arch vit_tiny --data_path pictures/train --batch_size_per_gpu 1 --epochs 1 "
            "--warmup_epochs 0 --out_dim 256 --local_crops_number 2 --num_workers 1 --output_dir out"
        ),
        code_base="dino",
        prepare=views,
        variables={"TORCH_HOME": "{shared}/torch"},
        loss=r"Epoch: .*loss: ([0-9.]+)",
        **DRAWN,
    ),
    program(
        "dino-2-ranks",
        words_of(
            "main_dino.py --arch vit_tiny --data_path pictures/train --batch_size_per_gpu 1 --epochs 1 "
            "--warmup_epochs 0 --out_dim 256 --local_crops_number 0 --num_workers 1 --output_dir out --use_fp16 false"
        ),
        code_base="dino",
        prepare=views,
        variables={"TORCH_HOME": "{shared}/torch"},
        loss=r"Epoch: .*loss: ([0-9.]+)",
        nproc=2,
        **DRAWN,
    ),
    program(
        "pytorch-cifar100",
        words_of("train.py -net squeezenet -gpu -b 16"),
        code_base="pytorch-cifar100",
        prepare=cifar_100,
        loss=r"Training Epoch: .*Loss: ([0-9.]+)",
        enough=4,
        **CIFAR,
        **DRAWN,
    ),
    program(
        "SimCLR",
        words_of("run.py -data data -dataset-name cifar10 -b 8 -j 1 --epochs 1 --log-every-n-steps 5 --fp16-precision"),
        code_base="SimCLR",
        prepare=lambda place, code: local_data.write_cifar(code / "data", each=8),
        loss=r"(100)%",
        **CIFAR,
        **NOT_COMPARED,
    ),
    program(
        "Swin-Transformer",
        words_of(
            "main.py --cfg configs/swin/swin_tiny_patch4_window7_224.yaml --data-path pictures --batch-size 4 "
            "--local_rank 0 --opts MODEL.SWIN.EMBED_DIM 24 MODEL.SWIN.DEPTHS [1,1,2,1] TRAIN.EPOCHS 1 "
            "TRAIN.WARMUP_EPOCHS 0 DATA.NUM_WORKERS 1 PRINT_FREQ 1"
        ),
        code_base="Swin-Transformer",
        prepare=lambda place, code: local_data.write_pictures(code / "pictures"),
        loss=r"Train: .*loss ([0-9.]+)",
        **DRAWN,
    ),
    program(
        "pytorch-tutorial-resnet",
        ["main.py"],
        inside="tutorials/02-intermediate/deep_residual_network",
        prepare=lambda place, code: local_data.write_cifar(code / "tutorials" / "data", each=2000),
        loss=r"Step \[\d+/\d+\] Loss: ([0-9.]+)",
        enough=1,
        **CIFAR,
        **TUTORIAL,
    ),
    program(
        "edm",
        words_of(
            "train.py --outdir out --data pictures --batch 4 --duration 0.00002 --tick 1 --snap 1 --dump 1 --cbase 16 "
            "--cres 1,1 --augment 0 --dropout 0 --seed 1 --precond edm --workers 1 --fp16 true --ls 128"
        ),
        code_base="edm",
        prepare=zip_of_pictures,
        loss=r"tick (\d+)",
        **NOT_COMPARED,
    ),
    program(
        "diffusers-train_text_to_image",
        words_of(
            "train_text_to_image.py --pretrained_model_name_or_path {shared}/stable-diffusion "
            "--train_data_dir pairs/train --resolution 32 --train_batch_size 2 --max_train_steps 3 --output_dir out "
            "--mixed_precision bf16 --dataloader_num_workers 0 --seed 1"
        ),
        code_base="diffusers",
        parts=["examples/text_to_image"],
        inside="examples/text_to_image",
        prepare=lambda place, code: captions(place, code / "examples/text_to_image"),
        loss=r"step_loss=([0-9.]+)",
        **DRAWN,
    ),
)
OTHERS = (
    program(
        "cleanrl-ppo",
        words_of("cleanrl/ppo.py --total-timesteps 512 --num-steps 64"),
        code_base="cleanrl",
        loss=r"SPS: ([0-9.]+)",
        **NOT_COMPARED,
    ),
    program(
        "cleanrl-dqn",
        words_of("cleanrl/dqn.py --total-timesteps 400 --learning-starts 100 --buffer-size 500"),
        code_base="cleanrl",
        path="{code}",
        loss=r"SPS: ([0-9.]+)",
        **NOT_COMPARED,
    ),
    program(
        "pygcn",
        words_of("train.py --epochs 3"),
        code_base="pygcn",
        inside="pygcn",
        prepare=citations,
        path="{code}",
        loss=r"loss_train: ([0-9.]+)",
        **DRAWN,
    ),
    program(
        "dlrm",
        words_of(
            "dlrm_s_pytorch.py --use-gpu --mini-batch-size 8 --data-size 64 --print-freq 1 "
            "--arch-mlp-bot 4-8-4 --arch-mlp-top 8-4-1 --arch-sparse-feature-size 4 --arch-embedding-size 40-30-20"
        ),
        code_base="dlrm",
        loss=r"loss ([0-9.]+)",
    ),
    program(
        "NCF",
        words_of("main.py --batch_size 64 --epochs 2 --factor_num 4 --num_layers 2"),
        code_base="NCF",
        prepare=ratings,
        loss=r"HR: ([0-9.]+)",
        **NOT_COMPARED,
    ),
    program(
        "makemore",
        words_of("makemore.py --device cuda --max-steps 41 -n 0 --n-layer 2 --n-embd 16"),
        **MAKEMORE,
    ),
    program(
        "makemore-gru",
        words_of("makemore.py --device cuda --max-steps 41 -n 1 --type gru"),
        **MAKEMORE,
    ),
    program(
        "BERT-pytorch",
        words_of("bert.py -c corpus.txt -t corpus.txt -v vocab -o model -hs 32 -l 2 -a 2 -b 8 -e 1 -w 1 --log_freq 1"),
        code_base="BERT-pytorch",
        prepare=pairs_of_lines,
        loss=r"'loss': ([0-9.]+)",
        **DRAWN,
    ),
    program(
        "pytorch-tutorial-language_model",
        ["main.py"],
        inside="tutorials/02-intermediate/language_model",
        prepare=lambda place, code: local_data.write_text(
            code / "tutorials/02-intermediate/language_model/data/train.txt", 8000
        ),
        loss=r"Loss: ([0-9.]+)",
        enough=2,
        **TUTORIAL,
    ),
    program(
        "LoRA-gpt2_ft",
        words_of(
            "src/gpt2_ft.py --train_data train.jsonl --valid_data valid.jsonl --train_batch_size 2 --seq_len 32 "
            "--model_card gpt2.sm --platform local --max_epoch 1 --log_interval 1 --lora_dim 4 --save_interval 1000 "
            "--eval_interval 4 --lr 0.001"
        ),
        code_base="LoRA",
        inside="examples/NLG",
        prepare=e2e,
        path="{code}",
        loss=r"\| loss +([0-9.]+)",
        **DRAWN,
    ),
    program(
        "llama3-text_completion",
        words_of(
            "example_text_completion.py --ckpt_dir ckpt --tokenizer_path ckpt/tokenizer.model --max_seq_len 256 "
            "--max_batch_size 4 --max_gen_len 8"
        ),
        code_base="llama3",
        prepare=llama_3,
        loss=r"Loaded in ([0-9.]+)",
        **NOT_COMPARED,
    ),
    program(
        "gpt-fast",
        words_of(
            "generate.py --checkpoint_path checkpoints/stories15M/model.pth --prompt return --max_new_tokens 8 "
            "--num_samples 1 --compile"
        ),
        code_base="gpt-fast",
        prepare=gpt_fast,
        loss=r"Average tokens/sec: ([0-9.]+)",
        **NOT_COMPARED,
    ),
    program(
        "lm-evaluation-harness",
        words_of(
            "-m lm_eval --model hf --model_args pretrained={shared}/gpt2,dtype=float32 --tasks local_text "
            "--include_path . --device cuda:0 --batch_size 2"
        ),
        needs=("lm_eval",),
        prepare=perplexity_task,
        loss=r"bits_per_byte\|.*?\| *([0-9.]+)\|",
    ),
    program(
        "FastChat-huggingface_api",
        words_of("-m fastchat.serve.huggingface_api --model-path {shared}/llama --max-new-tokens 4 --message 7"),
        needs=("fastchat",),
        prepare=lambda place, code: local_data.write_model(place.shared / "llama", "llama"),
        loss=r"(?m): (7)$",
        **NOT_COMPARED,
    ),
)
JOBS: tuple[UpstreamJob, ...] = (*VISION, *OTHERS)
