"""A script for another release of an installed package is refused before its ranks start."""

from __future__ import annotations

import os
import shutil
import sys

import pytest

from ascend_adapt.errors import LaunchError
from ascend_adapt.launch.jobs import missing_modules
from ascend_adapt.launch.request import parse

SCRIPT = "import torch\nfrom deepspeed.sequence.fpdt_layer import FPDT_InputConstruct\n"


@pytest.fixture
def start(tmp_path, monkeypatch):
    """start(text, *words): check a job whose script has this text, beside a deepspeed 0.9.2 without its modules."""
    (tmp_path / "deepspeed").mkdir()
    (tmp_path / "deepspeed" / "__init__.py").write_text("")
    (tmp_path / "deepspeed-0.9.2.dist-info").mkdir()
    (tmp_path / "deepspeed-0.9.2.dist-info" / "METADATA").write_text("Name: deepspeed\nVersion: 0.9.2\n")
    monkeypatch.syspath_prepend(tmp_path)

    def check(text, *words):
        (tmp_path / "train.py").write_text(text)
        missing_modules.check(parse([*words, str(tmp_path / "train.py")]), dict(os.environ))

    return check


@pytest.mark.parametrize("words", [(), ("--nproc", "2"), (sys.executable,), ("torchrun", "--nproc-per-node", "2")])
def test_a_script_for_a_newer_release_is_refused(start, words):
    if words[:1] == ("torchrun",):
        words = (os.path.join(os.path.dirname(sys.executable), "torchrun"), *words[1:])
    with pytest.raises(
        LaunchError,
        match=r"train\.py:2: `from deepspeed\.sequence\.fpdt_layer import FPDT_InputConstruct`, but deepspeed 0\.9\.2 "
        r"has no deepspeed\.sequence: .* needs DeepSpeed >= 0\.16\.1",
    ):
        start(SCRIPT, *words)


def test_every_missing_module_is_reported(start):
    another, unknown = SCRIPT.replace("InputConstruct", "FFN"), "from deepspeed.sequence.layer import Any\n"
    with pytest.raises(LaunchError) as refused:
        start(SCRIPT + another + unknown)
    lines = [line.split(": ")[0].rpartition(":")[2] for line in str(refused.value).splitlines()]
    assert lines == ["2", "4"], refused.value


@pytest.mark.parametrize(
    "text",
    [
        "try:\n    from deepspeed.sequence.fpdt_layer import FPDT_FFN\nexcept ImportError:\n    FPDT_FFN = None\n",
        "from deepspeed.sequence.layer import DistributedAttention\n",  # no known problem states its releases
        "from torch._six import inf\n",  # provided by a patch
        "import sys\nsys.path.insert(0, 'vendored')\nfrom deepspeed.sequence.fpdt_layer import FPDT_FFN\n",
        "not Python",
    ],
)
def test_what_may_still_be_there_is_not_refused(start, text):
    start(text)


def test_folders_without_init_are_packages(start, tmp_path):
    # As megatron.core.tokenizers.utils in Megatron-LM 0.19.
    (tmp_path / "deepspeed" / "sequence" / "inner").mkdir(parents=True)
    (tmp_path / "deepspeed" / "sequence" / "inner" / "part.py").touch()
    start("import deepspeed.sequence.inner.part\n")


def test_the_packages_of_another_interpreter_are_not_judged(start, tmp_path):
    shutil.copy("/bin/true", tmp_path / "python")
    start(SCRIPT, str(tmp_path / "python"))


def test_the_newest_release_is_not_refused(tmp_path):
    pytest.importorskip("deepspeed.sequence.fpdt_layer")
    (tmp_path / "train.py").write_text(SCRIPT)
    missing_modules.check(parse([str(tmp_path / "train.py")]), {})
