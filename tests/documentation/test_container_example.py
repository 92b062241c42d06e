"""The container example names releases that belong together."""

import re
from pathlib import Path

from ascend_adapt.diagnosis.findings.cann_versions import CANN_OF

DOCKERFILE = Path(__file__).parents[2] / "examples" / "container" / "Dockerfile"


def test_the_dockerfile_pairs_cann_torch_and_torch_npu():
    defaults = dict(re.findall(r"^ARG (\w+)=(\S+)$", DOCKERFILE.read_text(), re.MULTILINE))
    assert CANN_OF[defaults["TORCH_NPU"]] == defaults["CANN"].partition("-")[0]
    assert defaults["TORCH_NPU"].partition(".post")[0] == defaults["TORCH"]


def test_every_copied_path_exists():
    copied = re.findall(r"^COPY (.+) \S+$", DOCKERFILE.read_text(), re.MULTILINE)
    missing = [path for line in copied for path in line.split() if not (DOCKERFILE.parents[2] / path).exists()]
    assert copied
    assert not missing
