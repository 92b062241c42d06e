"""Each native example's --dry-run, compared with the numbers of its guide."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture(scope="module")
def gpt2_vocabulary(tmp_path_factory):
    """A vocab.json of GPT-2's size; only its size is looked at."""
    path = tmp_path_factory.mktemp("vocabulary") / "vocab.json"
    path.write_text(json.dumps({f"t{number}": number for number in range(50257)}))
    return path


def dry_run(*command, **environment):
    """The plan that the example prints, nothing of it started."""
    bin_dir = str(Path(sys.executable).parent)
    env = {**os.environ, "PATH": f"{bin_dir}{os.pathsep}{os.environ['PATH']}", **environment}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def shape(plan):
    layout = plan["layout"]
    return layout["data"], layout["tensor"], layout["pipeline"]


def sizes(plan):
    model = plan["config"]["model"]
    return model["num_layers"], model["hidden_size"], model["num_heads"], plan["config"]["data"]["seq_length"]


@pytest.mark.parametrize(
    ("script", "layout", "model", "batch", "table"),
    [
        ("117M", (1, 1, 1), (12, 768, 12, 1024), (8, 1, 8), 50304),
        ("345M", (1, 1, 1), (24, 1024, 16, 1024), (8, 1, 8), 50304),
        ("1n8d_2x4x1", (2, 4, 1), (16, 1536, 16, 2048), (8, 1, 16), 50688),
        ("4n8d_2x4x4", (2, 4, 4), (24, 2304, 24, 2048), (8, 32, 512), 50688),
    ],
)
def test_oneflow(script, layout, model, batch, table):
    # None of the four addresses is this machine's: which of them it is has to be said.
    here = ["--node-rank", "0"] if layout[2] > 1 else []
    plan = dry_run(
        "bash", str(EXAMPLES / "oneflow_gpt" / f"{script}.sh"), "--dry-run", "--json", "--device", "cpu", *here
    )
    config = plan["config"]
    assert plan["world_size"] == layout[0] * layout[1] * layout[2]
    assert shape(plan) == layout
    assert sizes(plan) == model
    assert tuple(config["batch"][name] for name in ("micro", "accumulation", "total")) == batch
    assert config["model"]["padded_vocab_size"] == table
    assert config["schedule"]["warmup"] == 3200  # 0.01 of 320000
    assert len(plan["layout"]["ranks"]) == len(plan["memory_bytes"]) == layout[0] * layout[1] * layout[2]


def test_the_megatron_guides_first_run(gpt2_vocabulary):
    script = str(EXAMPLES / "megatron_gpt2_345M" / "345M.sh")
    plan = dry_run("bash", script, "--dry-run", "--json", "--device", "cpu", VOCAB=str(gpt2_vocabulary))
    config = plan["config"]
    assert (shape(plan), sizes(plan)) == ((1, 1, 1), (24, 1024, 16, 1024))
    assert config["batch"] == {"micro": 4, "accumulation": 2, "total": 8, "rampup": None}
    # The rate counts samples: 320000 iterations of 8, and 1 % of that to warm up.
    assert (config["schedule"]["decay"], config["schedule"]["warmup"]) == (2560000, 25600)
    assert (config["model"]["padded_vocab_size"], config["model"]["activation"]) == (50304, "gelu_tanh")
    assert config["precision"]["dtype"] == "fp16"


@pytest.mark.parametrize(("tensor", "nproc", "data", "table"), [("4", "4", 1, 50688), ("1", "4", 4, 50304)])
def test_the_megatron_guides_zero_run(gpt2_vocabulary, tensor, nproc, data, table):
    script = str(EXAMPLES / "megatron_gpt2_345M" / "345M.sh")
    plan = dry_run(
        "bash",
        script,
        "--dry-run",
        "--json",
        "--device",
        "cpu",
        "--nproc",
        nproc,
        VOCAB=str(gpt2_vocabulary),
        TENSOR=tensor,
        MICRO="1",
        GLOBAL="4",
        DEEPSPEED_CONFIG=str(EXAMPLES / "megatron_gpt2_345M" / "zero3.json"),
    )
    parallel = plan["config"]["parallel"]
    assert (parallel["data"], parallel["zero_stage"], parallel["offload_optimizer"]) == (data, 3, True)
    assert plan["config"]["model"]["padded_vocab_size"] == table
    assert any("without --deepspeed" in note for note in plan["notes"])


@pytest.mark.parametrize(
    ("file", "layout", "layers", "total"),
    [("20B.yml", (1, 2, 4), 11, 128), ("2pp4mp2dp.yml", (2, 4, 2), 22, 256)],
)
def test_neox(file, layout, layers, total):
    run = [
        "ascend-run",
        "--device",
        "cpu",
        "--oversubscribe",
        "--native",
        "neox",
        "-d",
        str(EXAMPLES / "gpt_neox"),
        file,
    ]
    plan = dry_run(*run, "--vocab-size", "50277", "--dry-run", "--json")
    config = plan["config"]
    assert shape(plan) == layout
    assert sizes(plan) == (44, 6144, 64, 2048)
    assert config["parallel"]["stages"] == [layers] * layout[2]
    assert config["batch"] == {"micro": 4, "accumulation": 32, "total": total, "rampup": None}
    assert (config["model"]["rotary_fraction"], config["model"]["parallel_residual"]) == (0.25, True)
    assert plan["world_size"] == len(plan["ranks"]) == layout[0] * layout[1] * layout[2]


def test_the_20b_model_has_the_parameters_that_were_released():
    from ascend_adapt.config.memory_estimate import total_parameters
    from ascend_adapt.config.yaml_file import from_dict

    run = ["ascend-run", "--device", "cpu", "--native", "neox", "-d", str(EXAMPLES / "gpt_neox"), "20B"]
    plan = dry_run(*run, "--vocab-size", "50277", "--dry-run", "--json")
    # What EleutherAI/gpt-neox-20b holds, without its buffers.
    assert total_parameters(from_dict(plan["config"]).model) == 20_554_567_680


def test_the_guides_22_layers_on_8_devices():
    run = ["ascend-run", "--device", "cpu", "--native", "neox", "-d", str(EXAMPLES / "gpt_neox"), "20B.yml"]
    plan = dry_run(*run, "--num-layers", "22", "--vocab-size", "50277", "--dry-run", "--json")
    assert plan["config"]["parallel"]["stages"] == [6, 6, 5, 5]
