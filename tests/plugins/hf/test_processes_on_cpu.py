"""accelerate in two ranks on CPUs, the real one."""

from __future__ import annotations

from pathlib import Path

import pytest

from ascend_adapt.testing.releases import Releases, ReleaseUnreachable

RELEASES = Releases(Path(__file__).parents[3] / ".releases")
PATCH = "hf.cpu_process_group"


def test_ranks_are_a_group(launch):
    ended = launch("group.py", "--nproc", "2")
    assert ended.code == 0, ended.output
    assert ended.reported == [[2, "DistributedType.MULTI_CPU", 3.0]] * 2
    assert ended.outcome(PATCH)["state"] == "applied"


@pytest.mark.every_case
def test_without_the_patch_each_rank_is_alone(launch):
    ended = launch("group.py", "--nproc", "2", "--disable", PATCH)
    assert ended.reported == [[1, "DistributedType.NO", 1.0], [1, "DistributedType.NO", 1.0]]


@pytest.mark.parametrize("kind", ["NO", "MULTI_GPU"])
def test_only_ranks_that_would_get_no_group_get_one(kind, monkeypatch):
    from accelerate.utils import DistributedType

    from ascend_adapt_plugins.hf.processes_on_cpu import cpu_process_group

    reported = None, DistributedType[kind]
    for rank, size, expected in (
        (None, "2", reported),
        ("0", "1", reported),
        ("0", "2", ("gloo", DistributedType.MULTI_CPU)),
    ):
        monkeypatch.setenv("WORLD_SIZE", size)
        monkeypatch.delenv("LOCAL_RANK", raising=False)
        if rank is not None:
            monkeypatch.setenv("LOCAL_RANK", rank)
        found = cpu_process_group.function(lambda *_: reported, None, (), {})
        assert found == (expected if kind == "NO" else reported)


def test_a_rank_of_an_older_accelerate_that_uses_deepspeed_gets_the_cpu(launch):
    try:
        sources = RELEASES.tree("accelerate", "0.27.2") / "src"
    except ReleaseUnreachable as error:
        pytest.skip(f"not checked: {error}")
    ended = launch("state_with_deepspeed.py", python_path=str(sources))
    assert ended.code == 0, ended.output
    assert ended.reported == [["0.27.2", "DistributedType.DEEPSPEED", "cpu"]]
    assert ended.outcome("hf.deepspeed_of_accelerate_on_cpu")["state"] == "applied"
