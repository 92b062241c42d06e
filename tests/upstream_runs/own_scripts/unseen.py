"""Programs that were chosen, and first run, before anything was changed for them: an estimate for any other program."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
from own_scripts import local_data
from own_scripts.from_scratch import DRAWN
from own_scripts.other_fields import NOT_COMPARED, citations
from own_scripts.program import program, words_of
from upstream_job import Place, UpstreamJob


def hourly_series(path: Path) -> None:
    """Write two years of random hourly measurements as ETTh1.csv has them."""
    import pandas

    path.parent.mkdir(parents=True, exist_ok=True)
    hours = 20 * 30 * 24
    table = pandas.DataFrame({"date": pandas.date_range("2016-07-01", periods=hours, freq="h")})
    draw = np.random.default_rng(local_data.RANDOM)
    for name in ("HUFL", "HULL", "MUFL", "MULL", "LUFL", "LULL", "OT"):
        table[name] = draw.standard_normal(hours).cumsum()
    table.to_csv(path, index=False)


def etth1(place: Place, code: Path) -> None:
    """Write the series where Autoformer's options say."""
    hourly_series(code / "data" / "ETTh1.csv")


def etth1_of_patchtst(place: Place, code: Path) -> None:
    """Write the series, and its folder into the line of datautils.py that a user has to edit."""
    folder = code / "PatchTST_self_supervised"
    hourly_series(folder / "data" / "ETTh1.csv")
    names = folder / "datautils.py"
    names.write_text(names.read_text().replace("/data/datasets/public/ETDataset/ETT-small/", "data/"))


def faces(place: Place, code: Path) -> None:
    """Write pictures with attributes as CelebA has them: stargan keeps the first 1,999 for testing."""
    local_data.write_pictures(code / "data", splits=("celeba",), each=1, size=64)
    picture = code / "data" / "celeba" / "cat" / "0.jpg"
    images = code / "data" / "celeba" / "images"
    images.mkdir()
    names = [f"{number:06d}.jpg" for number in range(1, 2032)]
    for name in names[:]:
        (images / name).hardlink_to(picture)
    attributes = ["Black_Hair", "Blond_Hair", "Brown_Hair", "Male", "Young"]
    rows = (f"{name} {' '.join('1' if (n >> bit) & 1 else '-1' for bit in range(5))}" for n, name in enumerate(names))
    text = "\n".join([str(len(names)), " ".join(attributes), *rows])
    (code / "data" / "celeba" / "list_attr_celeba.txt").write_text(text + "\n")


def enwik8(place: Place, code: Path) -> None:
    """Write enwik8's three files as its preparation does: numbers of bytes with spaces."""
    folder = code / "data"
    folder.mkdir()
    codes = " ".join(str(one) for one in local_data.text(8000).encode())
    for name in ("train", "valid", "test"):
        (folder / f"{name}.txt").write_text(codes)


def boxes(place: Place, code: Path) -> None:
    """Write pictures with one box each as YOLO reads them, and a font, which it would download."""
    import matplotlib
    import yaml

    (place.shared / "yolo").mkdir(exist_ok=True)
    fonts = Path(matplotlib.get_data_path()) / "fonts" / "ttf"
    shutil.copy(fonts / "DejaVuSans.ttf", place.shared / "yolo" / "Arial.ttf")

    draw = np.random.default_rng(local_data.RANDOM)
    local_data.write_pictures(code / "boxes", splits=("images",), each=4, size=64)
    for path in sorted((code / "boxes" / "images").rglob("*.jpg")):
        label = code / "boxes" / "labels" / path.parent.name / f"{path.stem}.txt"
        label.parent.mkdir(parents=True, exist_ok=True)
        label.write_text(
            f"{int(path.parent.name == 'dog')} {' '.join(f'{one:.3f}' for one in draw.uniform(0.3, 0.6, 4))}\n"
        )
    data = {"path": str(code / "boxes"), "train": "images", "val": "images", "names": {0: "cat", 1: "dog"}}
    (code / "boxes.yaml").write_text(yaml.safe_dump(data))


def papers(place: Place, code: Path) -> None:
    """Write Cora's two files with random features: 1,000 papers are for testing and 500 for validation."""
    folder = code / "gat" / "cora"
    folder.mkdir()
    draw = np.random.default_rng(local_data.RANDOM)
    features = draw.integers(0, 2, (1600, 32))
    rows = (f"{paper}\t" + "\t".join(map(str, features[paper])) + f"\tclass{paper % 7}" for paper in range(1600))
    (folder / "cora.content").write_text("\n".join(rows) + "\n")
    (folder / "cora.cites").write_text("".join(f"{paper}\t{paper * 7 % 1600}\n" for paper in range(1600)))


def large_pictures(place: Place, code: Path) -> None:
    """Write pictures where super_resolution's downloaded archive would be."""
    folder = code / "super_resolution" / "dataset" / "BSDS300" / "images"
    local_data.write_pictures(folder, splits=("train", "test"), each=2, size=300)
    for split in ("train", "test"):
        for number, picture in enumerate(sorted((folder / split).rglob("*.jpg"))):
            picture.rename(folder / split / f"{number}.jpg")
        for name in ("cat", "dog"):
            (folder / split / name).rmdir()


def passages(place: Place, code: Path) -> None:
    """Write token ids as contriever's preprocessing does, and a tiny BERT."""
    import torch

    local_data.write_model(place.shared / "bert", "bert")
    (code / "passages").mkdir()
    draw = np.random.default_rng(local_data.RANDOM)
    torch.save(torch.tensor(draw.integers(5, 250, 20000)), code / "passages" / "0.pkl")


def opacus_mnist(place: Place, code: Path) -> None:
    """Copy the example of opacus' source archive, and write MNIST where it expects it."""
    shutil.copy(place.checkout / "examples" / "mnist.py", code / "mnist.py")
    local_data.write_mnist(code / "data", train=256, test=64)


def countdown(place: Place, code: Path) -> None:
    """Write a tiny Qwen2 with the names that GRPO-Zero reads, arithmetic tasks, and its configuration."""
    import pandas
    import yaml

    local_data.write_model(place.shared / "qwen2", "qwen2")
    model = shutil.copytree(place.shared / "qwen2", code / "qwen2")
    config = json.loads((model / "config.json").read_text())
    rope = config.get("rope_parameters") or {}
    config |= {"rope_theta": rope.get("rope_theta", 10000.0), "torch_dtype": "float32"}
    (model / "config.json").write_text(json.dumps(config))
    words = json.loads((model / "tokenizer_config.json").read_text())
    words["chat_template"] = (
        "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}\n{% endfor %}"
    )
    (model / "tokenizer_config.json").write_text(json.dumps(words))
    (code / "tasks" / "data").mkdir(parents=True)
    rows = [{"nums": [number, 3, 5], "target": number + 8} for number in range(1, 17)]
    pandas.DataFrame(rows).to_parquet(code / "tasks" / "data" / "train.parquet")
    options = yaml.safe_load((code / "config.yaml").read_text())
    options["model"]["pretrained_model_path"] = "qwen2"
    options["data"] = {"path": "tasks", "test_size": 4}
    options["training"] |= {"max_gen_len": 8, "batch_size": 4, "num_questions_per_batch": 2, "eval_interval": 3}
    (code / "tiny.yaml").write_text(yaml.safe_dump(options))


JOBS: tuple[UpstreamJob, ...] = (
    program(
        "barlowtwins",
        words_of("main.py pictures --workers 1 --epochs 1 --batch-size 2 --projector 64-64 --print-freq 1"),
        code_base="barlowtwins",
        prepare=lambda place, code: local_data.write_pictures(code / "pictures", each=2),
        loss=r'"loss": ([0-9.]+)',
        seconds=900,
        **NOT_COMPARED,
    ),
    program(
        "pyGAT-sparse",
        words_of("train.py --epochs 2 --sparse --nb_heads 2"),
        code_base="pyGAT",
        prepare=citations,
        loss=r"loss_train: ([0-9.]+)",
        **DRAWN,
    ),
    program(
        "pyGAT",
        words_of("train.py --epochs 2 --nb_heads 1 --hidden 4"),
        code_base="pyGAT",
        prepare=citations,
        loss=r"loss_train: ([0-9.]+)",
        **DRAWN,
    ),
    program(
        "Autoformer",
        words_of(
            "run.py --is_training 1 --root_path data --data_path ETTh1.csv --model_id tiny --model Autoformer "
            "--data ETTh1 --seq_len 24 --label_len 12 --pred_len 12 --d_model 16 --d_ff 32 --n_heads 2 --e_layers 1 "
            "--train_epochs 1 --batch_size 512 --itr 1 --num_workers 0"
        ),
        code_base="Autoformer",
        prepare=etth1,
        loss=r"(?:Train|Vali|Test) Loss: ([0-9.]+)",
        **DRAWN,
    ),
    program(
        "PatchTST-pretraining",
        words_of(
            "patchtst_pretrain.py --context_points 96 --n_layers 1 --n_heads 2 --d_model 16 --d_ff 32 "
            "--batch_size 1024 --n_epochs_pretrain 1"
        ),
        code_base="PatchTST",
        inside="PatchTST_self_supervised",
        prepare=etth1_of_patchtst,
        loss=r"(?m)^ +\d+ +([0-9.]+) +[0-9.]+ +\d+:\d+",
        **DRAWN,
    ),
    program(
        "mixture-of-experts",
        ["example.py"],
        code_base="mixture-of-experts",
        loss=r"loss: ([0-9.]+)",
        **NOT_COMPARED,
    ),
    program(
        "ng-video-lecture-bigram",
        ["bigram.py"],
        code_base="ng-video-lecture",
        loss=r"step \d+: train loss ([0-9.]+)",
        enough=2,
        **DRAWN,
    ),
    program(
        "GRPO-Zero",
        words_of("train.py --config tiny.yaml"),
        code_base="GRPO-Zero",
        prepare=countdown,
        loss=r"grad_norm: ([0-9.]+)",
        enough=4,
        **NOT_COMPARED,
    ),
    program(
        "stargan",
        words_of(
            "main.py --image_size 32 --celeba_crop_size 48 --g_conv_dim 8 --d_conv_dim 8 --g_repeat_num 1 "
            "--d_repeat_num 3 --batch_size 4 --num_iters 4 --num_iters_decay 2 --n_critic 2 --log_step 1 "
            "--sample_step 4 --model_save_step 4 --lr_update_step 2 --use_tensorboard false"
        ),
        code_base="stargan",
        prepare=faces,
        loss=r"D/loss_(?:real|fake|cls|gp): (-?[0-9.]+)",
        **NOT_COMPARED,
    ),
    program(
        "transformer-xl",
        words_of(
            "train.py --cuda --data ../data --dataset enwik8 --n_layer 2 --d_model 32 --n_head 2 --d_head 16 "
            "--d_inner 64 --dropout 0.0 --dropatt 0.0 --optim adam --lr 0.001 --max_step 6 --tgt_len 16 --mem_len 16 "
            "--eval_tgt_len 16 --batch_size 4 --log-interval 2 --eval-interval 6 --multi_gpu --work_dir out"
        ),
        code_base="transformer-xl",
        inside="pytorch",
        prepare=enwik8,
        loss=r"\| loss +([0-9.]+)",
    ),
    program(
        "yolov5",
        words_of(
            "train.py --weights= --cfg models/yolov5n.yaml --data boxes.yaml --epochs 2 --batch-size 4 --img 64 "
            "--workers 1 --device 0 --noplots --noautoanchor"
        ),
        code_base="yolov5",
        prepare=boxes,
        variables={
            "YOLO_OFFLINE": "true",
            "YOLO_CONFIG_DIR": "{shared}/yolo",
            "YOLOV5_CONFIG_DIR": "{shared}/yolo",
            "YOLO_AUTOINSTALL": "false",
        },
        loss=r"\d/1 +\S+G +([0-9.]+)",
        enough=3,  # its validation needs torchvision's compiled operators
        **DRAWN,
    ),
    program(
        "pytorch-siamese_network",
        words_of("main.py --epochs 1 --batch-size 16 --log-interval 1 --test-batch-size 16"),
        code_base="pytorch-examples",
        parts=["siamese_network"],
        inside="siamese_network",
        prepare=lambda place, code: local_data.write_mnist(code / "data", train=256, test=64),
        loss=r"Loss: ([0-9.]+)",
        **DRAWN,
    ),
    program(
        "pytorch-mnist_forward_forward",
        words_of("main.py --epochs 3 --train_size 64 --test_size 32 --log-interval 1"),
        code_base="pytorch-examples",
        parts=["mnist_forward_forward"],
        inside="mnist_forward_forward",
        prepare=lambda place, code: local_data.write_mnist(code / "mnist_forward_forward" / "data"),
        loss=r"Loss:  ([0-9.]+)",
        **DRAWN,
    ),
    program(
        "ConvNeXt",
        words_of(
            "main.py --model convnext_tiny --drop_path 0 --batch_size 4 --input_size 64 --lr 4e-4 --update_freq 1 "
            "--model_ema true --data_set image_folder --data_path pictures/train --eval_data_path pictures/val "
            "--nb_classes 2 --epochs 1 --warmup_epochs 0 --num_workers 1 --output_dir out --mixup 0 --cutmix 0"
        ),
        code_base="ConvNeXt",
        prepare=lambda place, code: local_data.write_pictures(code / "pictures", each=8),
        loss=r"Averaged stats:.* loss: [0-9.]+ \(([0-9.]+)\)",
        enough=1,  # its validation needs five classes
        **DRAWN,
    ),
    program(
        "DeepSpeed-gan_baseline",
        words_of(
            "gan_baseline_train.py --dataset fake --cuda --batchSize 16 --imageSize 64 --workers 1 --ngpu 1 --ngf 8 "
            "--ndf 8 --tensorboard_path out"
        ),
        code_base="DeepSpeedExamples",
        parts=["training/gan"],
        inside="training/gan",
        loss=r"Loss_D: ([0-9.]+)",
        **NOT_COMPARED,
    ),
    program(
        "opacus-mnist",
        words_of("mnist.py -b 16 --test-batch-size 16 -n 1 -r 1 --data-root data"),
        release=("opacus", "1.6.0"),
        prepare=opacus_mnist,
        loss=r"(?:Loss|Average loss): ([0-9.]+)",
        **NOT_COMPARED,
    ),
    program(
        "pytorch-gat",
        words_of("main.py --epochs 2 --hidden-dim 8 --num-heads 2 --val-every 1"),
        code_base="pytorch-examples",
        parts=["gat"],
        inside="gat",
        prepare=papers,
        loss=r"(?i)loss:? ([0-9.]+)",
        **DRAWN,
    ),
    program(
        "pytorch-mnist_rnn",
        words_of("main.py --accel --epochs 1 --log-interval 1"),
        code_base="pytorch-examples",
        parts=["mnist_rnn"],
        inside="mnist_rnn",
        prepare=lambda place, code: local_data.write_mnist(code / "data", train=128, test=64),
        loss=r"(?:Loss|loss): ([0-9.]+)",
        **DRAWN,
    ),
    program(
        "pytorch-super_resolution",
        words_of("main.py --accel --upscale_factor 3 --batchSize 2 --testBatchSize 2 --nEpochs 1 --threads 1"),
        code_base="pytorch-examples",
        parts=["super_resolution"],
        inside="super_resolution",
        prepare=large_pictures,
        loss=r"Loss: ([0-9.]+)",
    ),
    program(
        "contriever",
        words_of(
            "train.py --retriever_model_id {shared}/bert --pooling average --augmentation delete "
            "--prob_augmentation 0.1 --train_data passages --loading_mode split --chunk_length 64 --momentum 0.9995 "
            "--queue_size 64 --temperature 0.05 --warmup_steps 2 --total_steps 4 --lr 5e-5 --per_gpu_batch_size 4 "
            "--output_dir out --num_workers 1 --log_freq 1 --projection_size 64"
        ),
        code_base="contriever",
        prepare=passages,
        loss=r"train/loss: ([0-9.]+)",
        **NOT_COMPARED,
    ),
)
