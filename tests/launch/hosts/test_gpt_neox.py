"""GPT-NeoX's own deepy.py under a hostfile of the guides: DeepSpeed's launcher trains on two hosts, adapted on both.

What it starts its ranks with is in a file of the working folder, so that one is on a storage which the hosts share.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from code_bases import NotHere, code_base
from gpt_neox.jobs import LOSS, settings
from upstream_job import Ended, Place, apart, report_of

OLD = Path(__file__).parents[3] / ".nox/deepspeed-0-9-2/bin/python"
DEEPSPEEDS = {"newest": Path(sys.executable), "0.9.2": OLD}
# What GPT-NeoX imports beside DeepSpeed; the packages are called so too.
NEEDS = ("ftfy", "regex", "requests", "sentencepiece", "six", "tiktoken", "tokenizers", "transformers")
HOSTFILE = "# the guides' spelling\r\n\r\nw-1 slot=1  # head\r\nw-2 slot=1\r\n"


def lacks(python: Path, release: str) -> str:
    """Return why this interpreter cannot run GPT-NeoX on that release of DeepSpeed, or an empty string."""
    if not python.exists():
        return f"DeepSpeed {release}: {python} is not there (make .nox/deepspeed-{release}.installed)"
    asked = f"from importlib.util import find_spec; print(*[name for name in {NEEDS} if find_spec(name) is None])"
    missing = subprocess.run([str(python), "-c", asked], capture_output=True, text=True, check=True).stdout.strip()
    return f"{missing}: not installed ({python} -m pip install {missing})" if missing else ""


@pytest.fixture(params=DEEPSPEEDS)
def python(request):
    """An interpreter with a release of DeepSpeed and what GPT-NeoX needs."""
    if shutil.which("pdsh") is None:
        pytest.skip("not checked: pdsh: is not installed (Debian: pdsh)")
    if reason := lacks(DEEPSPEEDS[request.param], request.param):
        pytest.skip(f"not checked: GPT-NeoX on several hosts, DeepSpeed {request.param}: {reason}")
    return DEEPSPEEDS[request.param]


@pytest.fixture(params=["gpt-neox", "gpt-neox-v2.0"])
def neox(request):
    """The checkout of one version of GPT-NeoX."""
    try:
        return code_base(request.param).checkout(os.environ)
    except NotHere as error:
        pytest.skip(f"not checked: {request.param} on several hosts: {error}")


@pytest.fixture
def train(cluster, python, neox, tmp_path):
    """train(name, **changes): two pipeline stages of a tiny configuration, started on the first host."""

    def run(name, **changes):
        place = Place(tmp_path / name, tmp_path / "shared", neox, "cpu", "float32")
        place.folder.mkdir()
        place.shared.mkdir(exist_ok=True)
        reported = {"global_num_gpus": 2, "pipe-parallel-size": 2, "master_port": 29544, **changes}
        (place.folder / "tiny.yml").write_text(settings(place, 1, reported), newline="\r\n")
        command = [str(python), "-m", "ascend_adapt.launch.cli", "--device", "cpu", "--log-dir", "run"]
        command += [str(neox / "deepy.py"), str(neox / "train.py"), "-d", str(place.folder), "tiny.yml"]
        variables = {"PATH": f"{python.parent}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1"}
        job = cluster.run("w-1", "env", "-C", str(place.folder), *command, timeout=600, **variables)
        output, run_dir = job.stdout + job.stderr, place.folder / "run"
        losses = tuple(float(one) for one in re.findall(LOSS, output))
        ended = Ended(job.returncode, losses, output, report_of(run_dir, {**os.environ, **variables}), run_dir)
        assert ended.problems == [], output[-6000:]
        return ended

    return run


@pytest.mark.timeout(1300)
def test_two_stages_on_two_hosts(slow, cluster, train, tmp_path):
    hostfile = tmp_path / "hosts"
    hostfile.write_text(HOSTFILE, newline="")
    ended = train("two", hostfile=str(hostfile))
    assert "deepy.py starts ranks itself, so it is started once" in ended.output
    assert "slot=" in ended.output, "the guides' spelling was not reported"
    ranks = [json.loads((ended.run_dir / f"adapt-status.{rank}.json").read_text()) for rank in (0, 1)]
    assert [rank["host"] for rank in ranks] == ["w-1", "w-2"]
    for rank in ranks:
        applied = {f"{one['plugin']}.{one['patch']}" for one in rank["outcomes"] if one["state"] == "applied"}
        assert {"gpt_neox.cuda_on_cpu", "deepspeed.read_hostfile", "deepspeed.communication_backend"} <= applied
    assert not cluster.left()
    alone = train("one", num_gpus=2)
    print(f"two hosts: {ended.losses}\none host: {alone.losses}")
    assert len(ended.losses) >= 6
    assert apart(ended.losses, alone.losses) <= 1e-6
