"""A user's own script that uses CUDA, on the emulated NPU with no environment variable."""

from __future__ import annotations

import re


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


def test_a_job_that_leaves_its_npu_unused_fails(job):
    ended = job("on_the_host.py")
    assert ended.code == 1
    assert "on_the_host.py: ended without a tensor on an NPU" in ended.stderr
    assert job("on_the_host.py", options=("--cuda-code", "off")).code == 0
