"""Complete jobs under `ascend-run --device npu-emulated`, compared with the same jobs on the CPU."""

from __future__ import annotations

import json
import re

import pytest

from ascend_adapt.alignment import comparison, recording

LOSSES = {"rtol": 1e-5}


def close(found, expected, rtol):
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        assert one == pytest.approx(other, rel=rtol)


def test_collectives(job):
    ended = job("collectives.py", nproc=2)
    first, second = (dict(pairs) for pairs in ended.recorded.values())
    for name in ("float32", "bfloat16", "float16", "int64", "int32", "int8"):
        assert first[f"sum {name}"] == second[f"sum {name}"] == [5] * 3, name
    assert first["sum bool"] == [True] * 3
    assert [first[name][0] for name in ("MAX", "MIN", "PRODUCT", "AVG")] == [3, 2, 6, 2.5]
    assert first["buffers"] == second["buffers"] == [400, 400, 0, 100]
    assert first["AVG int32"] == second["AVG int32"] == [2] * 3
    assert first["float64 of HCCL"].startswith("HCCL allreduce: Unsupported data type at::kDouble")
    assert first["float64"] == second["float64"] == [5] * 3
    assert first["broadcast"] == second["broadcast"] == [1, 1]
    assert first["reduce"] == [3, 3]
    assert first["all_gather"] == second["all_gather"] == [[0, 0], [1, 1]]
    assert first["all_gather_into_tensor"] == [0, 0, 1, 1]
    assert (first["reduce_scatter_tensor"], second["reduce_scatter_tensor"]) == ([0, 2], [4, 6])
    assert (first["reduce_scatter"], second["reduce_scatter"]) == ([1, 1], [3, 3])
    assert (first["all_to_all_single"], second["all_to_all_single"]) == ([0, 1, 10, 11], [2, 3, 12, 13])
    assert (first["all_to_all_single uneven"], second["all_to_all_single uneven"]) == ([0, 1], [0, 0, 1, 1])
    assert (first["all_to_all"], second["all_to_all"]) == ([0, 1], [0, 0, 1, 1])
    assert first["gather"] == [[0, 0], [1, 1]]
    assert (first["scatter"], second["scatter"]) == ([0, 0], [1, 1])
    assert second["recv"] == [0, 1, 2, 3]
    assert (first["batch_isend_irecv"], second["batch_isend_irecv"]) == ([1], [0])
    assert first["groups"] == [2, 2]
    assert first["async"][2] == [2]
    for rank in (first, second):
        assert rank["npu_all_gather_base_mm"] == [True, True]
        assert rank["npu_mm_reduce_scatter_base"] is rank["npu_all_gather_base_mm int8"] is True
    assert first["objects"] == [[0, [0, 0]], [1, [1, 1]]]
    assert first["coalesced all_reduce"] == second["coalesced all_reduce"] == [[1, 1], [3, 3]]
    assert first["coalesced all_gather"] == second["coalesced all_gather"] == [[0, 0, 1, 1], [1, 1, 2, 2]]
    assert (first["coalesced reduce_scatter"], second["coalesced reduce_scatter"]) == ([[0, 2]] * 2, [[4, 6]] * 2)
    assert (first["coalesced messages"], second["coalesced messages"]) == ([1], [0])
    assert first["SyncBatchNorm"] == second["SyncBatchNorm"] == [True, True]
    assert first["context_parallel"] is second["context_parallel"] is True


def test_one_process_with_several_devices(job):
    ended = [
        job("several_devices.py", nproc=2, device=device, options=("--once",)).check()
        for device in ("cpu", "npu-emulated")
    ]
    expected, found = (json.loads(re.search(r'{"devices".*', one.stdout)[0]) for one in ended)
    assert found["devices"] == 2
    close(found["losses"], expected["losses"], **LOSSES)
    assert sorted(ended[1].rehearsal["ranks"]["0"]["peak_bytes"]) == ["0", "1"]
    assert re.search(r"patches applied: \w", ended[1].stderr)


def test_one_process_with_a_device_that_is_full(job):
    """The other device, where two buffers of 31.7 GiB fit, does not wait for it."""
    given = {"HCCL_BUFFSIZE": "32500", "HCCL_CONNECT_TIMEOUT": "5"}
    ended = job("one_device_full.py", nproc=2, options=("--once",), **given).check()
    assert "error code is 3 (memory error)" in ended.stdout
    assert "device 1 has 68719476736 bytes" in ended.stdout


def test_data_parallel(job, tmp_path):
    """Their recordings agree as well, in every module of every step."""
    ended = job("data_parallel.py", "npu", nproc=2, options=("--record", "npu")).check()
    expected = job("data_parallel.py", "cpu", nproc=2, device="cpu", options=("--record", "cpu")).check().recorded
    report = comparison.compare(*(recording.read(tmp_path / device) for device in ("cpu", "npu")))
    assert report.first is None, report.first
    assert report.steps == [1, 2, 3]
    for rank in (0, 1):
        close(ended.recorded[rank], expected[rank], **LOSSES)
        facts = ended.rehearsal["ranks"][str(rank)]
        assert facts["steps"] == 10
        assert facts["synchronisations"]["aten::_local_scalar_dense"] >= 10
        assert facts["peak_bytes"][str(rank)] > 0
    assert ended.rehearsal["evidence"] == "emulated"
    for word in ("on an emulated Ascend910B2, 2 ranks", "10 optimizer steps", "host-device syncs", "it does not prove"):
        assert word in ended.stderr


def test_deepspeed_zero(job):
    """In bfloat16: with two ranks gloo and the emulated HCCL round a sum in the same way."""
    ended = job("zero.py", nproc=2).check()
    expected = job("zero.py", nproc=2, device="cpu").check().recorded
    for rank in (0, 1):
        assert ended.recorded[rank][0] == ["npu", "hccl"]
        for (stage, kind, losses), (_, _, others) in zip(ended.recorded[rank][1:], expected[rank][1:], strict=True):
            assert kind.startswith("DeepSpeedZeroOptimizer" + ("_Stage3" if stage == 3 else ""))
            close(losses, others, rtol=2e-3)
    assert ended.rehearsal["ranks"]["1"]["steps"] == 6


def test_a_script_written_for_cuda(job):
    ended = job("written_for_cuda.py", TORCH_TRANSFER_TO_NPU="1").check()
    *losses, facts = ended.recorded[0]
    assert facts == ["Ascend910B2", True, True, 1024.0]
    close(losses, job("cpu_twin.py", device="cpu").check().recorded[0], rtol=2e-3)  # float16


@pytest.mark.every_case
def test_a_script_adapted_by_hand(job):
    """It imports deepspeed_npu, which is not installed; the module provided in its place does nothing."""
    ended = job("adapted_by_hand.py").check()
    *_, facts = ended.recorded[0]
    assert facts == ["Ascend910B2", True, True, 1024.0]


def test_a_code_base_whose_plugin_asks_for_transfer_to_npu(job):
    """Also for names that it imported from torch.cuda and functions that it scripted before; and its profiling."""
    assert job("says_cuda.py", options=("--cuda-code", "off")).check().recorded[0] == [["npu", "npu"], [True, "npu"]]


def test_the_compile_mode_of_torch_npu(job):
    """It is set before the first tensor, also in child processes; torch_npu itself stores the value."""
    ended = job("compile_mode.py", options=("--npu-compile-mode", "jit")).check()
    assert ended.recorded[0] == [["enable", "enable", "enable", "disable"]]


@pytest.fixture(scope="module")
def disagreeing(jobs):
    return jobs("disagreeing.py", nproc=2, HCCL_EXEC_TIMEOUT="3").check()


def test_a_rank_that_does_not_join_a_collective(disagreeing):
    message = dict(disagreeing.recorded[0])["one stays away"]
    assert re.search("rank 0 of 2: is in all_reduce .*, and rank 1 has not joined it within HCCL_EXEC_TIMEOUT", message)


def test_ranks_that_call_different_collectives(disagreeing):
    """Both ranks name both calls and their lines; the last pair waits on two groups of the same ranks."""
    calls = {
        "dtype": ("all_reduce of 2 float32, sum", "all_reduce of 2 int32, sum"),
        "half": ("all_gather of 2 float16", "all_gather of 2 bfloat16"),
        "reduction": ("all_reduce of 2 float32, sum", "all_reduce of 2 float32, max"),
        "root": ("broadcast of 2 float32, root 0", "broadcast of 2 float32, root 1"),
        "root of a reduction": ("reduce of 2 float32, sum, root 0", "reduce of 2 float32, sum, root 1"),
        "shape": ("all_reduce of 3 float32, sum", "all_reduce of 4 float32, sum"),
        "collective": ("broadcast of 2 float32, root 0", "all_reduce of 2 float32, sum"),
        "dtype of a message": ("send to 1 of 2 float32", "recv from 0 of 2 int32"),
        "group": ("all_reduce of 2 float32, sum", "all_reduce of 2 float32, sum"),
    }
    for rank, values in disagreeing.recorded.items():
        found = dict(values)
        for name, pair in calls.items():
            if (name, rank) == ("dtype of a message", 0):  # a send does not wait for what the receiver does
                continue
            for one in (rank, 1 - rank):
                said = rf"rank {one}.* is in {re.escape(pair[one])} at \S*disagreeing.py:\d+"
                assert re.search(said, found[name]), (rank, found[name])
    assert "of another group, of 2 ranks" in dict(disagreeing.recorded[0])["group"]


def test_four_ranks(job):
    """Their subgroups have communicators that are derived from that of the job, without exchanging a secret."""
    ended = job("four_ranks.py", nproc=4, ROOTINFO_SUBCOMM_ENABLE="1").check()
    assert ended.recorded == {rank: ["right"] for rank in range(4)}
    logs = "".join(path.read_text() for path in ended.run_dir.glob("rank-*.log"))
    assert logs.count("Create sub hccl comm by hcclCreateSubCommConfig success") == 4 * 2
