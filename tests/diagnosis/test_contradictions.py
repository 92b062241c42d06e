"""Variables and settings of a job that contradict each other, and jobs in which they agree."""

from __future__ import annotations

import pytest

from ascend_adapt.diagnosis import contradictions
from ascend_adapt.problems import reading

MEGATRON = "export PYTHONPATH=$PYTHONPATH:/nfs/{0}/Megatron-LM\nexport MEGATRON_LM_PATH=/nfs/{1}/Megatron-LM\n"


def found_in(text, folder, environ=None):
    (folder / "run.sh").write_text(text)
    found = contradictions.of_a_job(reading.read(folder / "run.sh"), environ or {})
    return [one.what.replace(str(folder), "") for one in found]


@pytest.mark.parametrize(
    ("text", "environ", "what"),
    [
        (
            "NPROC_PER_NODE=8 \\\nASCEND_RT_VISIBLE_DEVICES=0,1,2,3 \\\nswift sft\n",
            {},
            "/run.sh:1: NPROC_PER_NODE=8; ASCEND_RT_VISIBLE_DEVICES=0,1,2,3",
        ),
        (
            "torchrun --nproc_per_node 4 train.py\n",
            {"ASCEND_RT_VISIBLE_DEVICES": "6,7"},
            "/run.sh:1: torchrun --nproc_per_node 4 train.py; ASCEND_RT_VISIBLE_DEVICES=6,7",
        ),
        (
            "export ASCEND_RT_VISIBLE_DEVICES=0\npython data.py\ntorchrun --nproc_per_node 8 train.py\n",
            {},
            "/run.sh:3: torchrun --nproc_per_node 8 train.py; ASCEND_RT_VISIBLE_DEVICES=0",
        ),
        (
            MEGATRON.format("zsi", "zsj"),
            {},
            "/run.sh:2: export MEGATRON_LM_PATH=/nfs/zsj/Megatron-LM; PYTHONPATH has /nfs/zsi/Megatron-LM",
        ),
    ],
)
def test_a_contradiction_in_a_script(text, environ, what, tmp_path):
    assert found_in(text, tmp_path, environ) == [what]


@pytest.mark.parametrize(
    "text",
    [
        "ASCEND_RT_VISIBLE_DEVICES=0,1,2,3 NPROC_PER_NODE=4 swift sft\n",
        "ASCEND_RT_VISIBLE_DEVICES=0,1,2,3 NPROC_PER_NODE=2 swift sft\n",
        # Two commands, each with its own devices.
        "ASCEND_RT_VISIBLE_DEVICES=7 swift rollout\n\nASCEND_RT_VISIBLE_DEVICES=0,1 NPROC_PER_NODE=2 swift sft\n",
        "ASCEND_RT_VISIBLE_DEVICES=0 python serve.py &\ntorchrun --nproc_per_node 8 train.py\n",
        "ASCEND_RT_VISIBLE_DEVICES=0 \\\npython serve.py\ntorchrun --nproc_per_node 8 train.py\n",
        "export ASCEND_RT_VISIBLE_DEVICES=0\npython data.py\nunset ASCEND_RT_VISIBLE_DEVICES\n"
        "torchrun --nproc_per_node 8 train.py\n",
        "torchrun --nproc_per_node 8 train.py\nexport ASCEND_RT_VISIBLE_DEVICES=0\npython evaluate.py\n",
        "ASCEND_RT_VISIBLE_DEVICES=0 torchrun --nproc_per_node ² train.py\n",
        "torchrun --nproc_per_node 8 train.py\n",
        "ASCEND_RT_VISIBLE_DEVICES=0 NPROC_PER_NODE=² swift sft\n",
        "export ASCEND_RT_VISIBLE_DEVICES=$1\ntorchrun --nproc_per_node $N train.py\n",
        MEGATRON.format("zsi", "zsi"),
        "export MEGATRON_LM_PATH=/nfs/Megatron-LM\nexport PYTHONPATH=$PYTHONPATH:$MEGATRON_LM_PATH\n",
        "export MEGATRON_LM_PATH=/nfs/Megatron-LM\nexport PYTHONPATH=/job\n",
    ],
)
def test_a_script_that_agrees_with_itself(text, tmp_path):
    assert found_in(text, tmp_path) == []


def test_the_environment_without_files():
    environ = {"ASCEND_RT_VISIBLE_DEVICES": "0,1", "NPROC_PER_NODE": "4"}
    (found,) = contradictions.of_a_job(None, environ)
    assert found.must_fix
    assert found.what == "environment: NPROC_PER_NODE=4; ASCEND_RT_VISIBLE_DEVICES=0,1"
