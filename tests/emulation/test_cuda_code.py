"""A user's own script that uses CUDA, on the emulated NPU with no environment variable."""

from __future__ import annotations

import re
import sys

from emulation.conftest import JOBS


def losses(ended) -> list[float]:
    return [float(one) for one in re.findall(r"step \d loss (\S+)", ended.check().stdout)]


def test_a_script_for_a_gpu_trains_as_on_the_cpu(job):
    on_cpu, on_npus = losses(job("own_script.py", device="cpu")), losses(job("own_script.py", nproc=2))
    assert len(on_cpu) == 3
    assert all(abs(a - b) < 1e-4 for a, b in zip(on_cpu, on_npus, strict=True))


def test_what_cuda_packages_compute(job):
    assert "all the same npu" in job("cuda_packages.py").check().stdout


def test_libraries_that_know_an_npu_still_see_no_cuda(job):
    ended = job("asks_libraries.py").check()
    assert ended.recorded[0] == [[False, False, "npu", "npu", "npu"]]
    assert "asks_libraries.py uses CUDA: " in ended.stderr


UNUSED = "ended without a tensor on an NPU, expected a job for --device npu-emulated to use one"


def test_a_job_that_leaves_its_npus_unused_fails(job):
    ended = job("on_the_host.py")
    assert ended.code == 1
    assert f"on_the_host.py: {UNUSED}" in ended.stderr
    assert job("on_the_host.py", options=("--cuda-code", "off")).code == 0


def test_a_command_that_leaves_its_npu_unused_fails(launch):
    ended = launch("--device", "npu-emulated", sys.executable, str(JOBS / "on_the_host.py"))
    assert ended.returncode == 1
    assert UNUSED in ended.stderr
    prepares_data = "import torch; torch.ones(2).sum()"
    assert launch("--device", "npu-emulated", sys.executable, "-c", prepares_data).returncode == 0


def test_a_job_that_fails_for_another_reason_is_not_said_to_leave_its_npu_unused(job):
    ended = job("on_the_host.py", "fail")
    assert ended.code == 1
    assert "failed first: ValueError: for another reason" in ended.stderr
    assert UNUSED not in ended.stderr


def test_lightning_creates_its_process_group_on_npus(launch, tmp_path):
    module = tmp_path / "site-packages" / "lightning_fabric" / "utilities" / "distributed.py"
    module.parent.mkdir(parents=True)
    module.write_text(  # as in lightning_fabric 2.6
        "import torch\n\n\ndef _get_default_process_group_backend_for_device(device):\n"
        "    device_backend_map = torch.distributed.Backend.default_device_backend_map\n"
        '    return device_backend_map.get(device.type, "gloo")\n'
    )
    metadata = tmp_path / "site-packages" / "lightning_fabric-2.6.6.dist-info" / "METADATA"
    metadata.parent.mkdir()
    metadata.write_text("Metadata-Version: 2.1\nName: lightning-fabric\nVersion: 2.6.6\n")
    (tmp_path / "train.py").write_text(
        "import torch\nfrom lightning_fabric.utilities import distributed\n"
        "backend = distributed._get_default_process_group_backend_for_device\n"
        "torch.distributed.init_process_group(backend(torch.device('cuda', 0)))\n"
        "sums = torch.ones(2, device='cuda')\ntorch.distributed.all_reduce(sums)\n"
        "print(sums.tolist(), backend(torch.device('cpu')))\n"
    )
    ended = launch("--device", "npu-emulated", "train.py", PYTHONPATH=str(tmp_path / "site-packages"))
    assert "[1.0, 1.0] gloo" in ended.stdout, ended.stderr
