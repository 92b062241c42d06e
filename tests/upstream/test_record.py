"""The patches judged on the recorded facts of every release, and the record judged on real archives."""

from __future__ import annotations

import dataclasses

import pytest
import release_table
from upstream_releases import UPSTREAMS, Upstream

from ascend_adapt.patches.declare.spec import Registered
from ascend_adapt.testing import faults, release_matrix, upstream_facts
from ascend_adapt.testing.releases import ReleaseUnreachable
from ascend_adapt.testing.upstream_facts import Facts, RecordError, UpstreamRecord

# One of each distribution; of DeepSpeed the last before the lost gradient was fixed. every_release.py has all.
AGAIN = {"deepspeed": "0.11.1", "megatron-core": "0.19.2", "transformers": "4.57.6", "accelerate": "1.15.0"}
# Of those whose gates have a floor: the last release that must be skipped.
TOO_OLD = {"megatron-core": "0.11.0", "transformers": "4.36.2", "accelerate": "0.26.1"}
EACH = pytest.mark.parametrize("upstream", UPSTREAMS, ids=lambda upstream: upstream.distribution)


@EACH
def test_every_gate_is_right_on_every_release(upstream: Upstream) -> None:
    record = upstream_facts.load(upstream.record)
    rows = [row for release in record.releases for row in upstream.rows(record, release)]
    assert [f"{row}: {row.problem}" for row in rows if row.problem] == []
    assert len(rows) == len(record.releases) * len(upstream.patches()) > 0
    judged = {(row.decision, row.fault) for row in rows if row.fault != faults.NOT_JUDGED}
    wanted = {("patch", "present"), ("skip", "absent")}
    assert judged <= wanted
    assert (judged == wanted) or upstream.distribution != "deepspeed"
    assert judged


@pytest.mark.parametrize("distribution", TOO_OLD)
def test_what_is_older_than_any_record_is_skipped(distribution: str) -> None:
    (upstream,) = [one for one in UPSTREAMS if one.distribution == distribution]
    unseen = Facts((), (), faults.NOT_JUDGED, "")
    rows = [release_matrix.judge(one, distribution, TOO_OLD[distribution], unseen) for one in upstream.patches()]
    assert {row.decision for row in rows} == {"skip"}


# From 4.51 on, transformers calls torch_npu's attention on an NPU; from 4.54 on, an instance chooses its attention.
@pytest.mark.parametrize(
    ("patch", "first", "last"),
    [
        ("tf32_without_a_gpu", "4.37.2", ""),
        ("flash_attention_check_on_npu", "4.37.2", "4.50.3"),
        ("flash_attention_check_on_cpu", "4.37.2", "4.53.3"),
        ("flash_attention_on_cpu", "4.54.1", ""),
    ],
)
def test_older_releases_of_transformers_are_adapted(patch: str, first: str, last: str) -> None:
    (upstream,) = [one for one in UPSTREAMS if one.distribution == "transformers"]
    record = upstream_facts.load(upstream.record)
    rows = [row for release in record.releases for row in upstream.rows(record, release)]
    patched = [row.release for row in rows if row.patch == f"hf.{patch}" and row.decision == "patch"]
    assert (patched[0], patched[-1]) == (first, last or record.releases[-1])


@EACH
def test_the_record_is_what_an_archive_holds(upstream: Upstream) -> None:
    release = AGAIN[upstream.distribution]
    record = upstream_facts.load(upstream.record)
    try:
        tree = upstream.tree(release)
    except ReleaseUnreachable as error:
        pytest.skip(f"not checked: {error}")
    patches = upstream.patches()
    assert {one.name: upstream_facts.gather(one.patch, tree) for one in patches} == {
        one.name: record.of(one, release) for one in patches
    }
    rows = upstream.rows(record, release)
    assert release_matrix.disagreements(rows, patches, upstream.distribution, tree) == []


def test_the_documented_table_is_todays() -> None:
    text = release_table.PAGE.read_text()
    assert text == release_table.page(text), "make record-upstreams"


def of_deepspeed(name: str) -> tuple[Upstream, Registered, UpstreamRecord]:
    (upstream,) = [one for one in UPSTREAMS if one.distribution == "deepspeed"]
    (one,) = [one for one in upstream.patches() if one.name == name]
    return upstream, one, upstream_facts.load(upstream.record)


def with_requirement(one: Registered, text: str) -> Registered:
    from packaging.requirements import Requirement

    return dataclasses.replace(one, patch=dataclasses.replace(one.patch, requires=(Requirement(text),)))


@pytest.mark.parametrize(
    ("text", "release", "problem"),
    [
        ("deepspeed>=0.6,<0.11.1", "0.11.1", "the gate skips a release that has the fault"),
        ("deepspeed>=0.6", "0.11.2", "the gate patches a release without the fault"),
    ],
)
def test_a_gate_that_is_one_release_off_is_found(text: str, release: str, problem: str) -> None:
    _, one, record = of_deepspeed("keep_missing_grads")
    row = release_matrix.judge(with_requirement(one, text), "deepspeed", release, record.of(one, release))
    assert row.problem == problem


@pytest.mark.parametrize(
    ("name", "facts", "problem"),
    [
        ("bucket_gradients_by_dtype", Facts((), (), "present", ""), "does not exist"),
        (
            "bucket_gradients_by_dtype",
            Facts(("(tensors, kind)",), ("0",), "present", ""),
            "does not accept every argument",
        ),
        ("quote_exports", Facts(("(self, key, value)",), ("0",), "present", ""), "does not accept key="),
        ("widen_partition_metadata", Facts((), (), "not judged", ""), "does not exist"),
    ],
)
def test_a_target_that_does_not_fit_is_found(name: str, facts: Facts, problem: str) -> None:
    _, one, _ = of_deepspeed(name)
    assert problem in release_matrix.judge(one, "deepspeed", "0.9.2", facts).problem


def test_a_record_of_another_declaration_is_refused() -> None:
    _, one, record = of_deepspeed("keep_missing_grads")
    other = dataclasses.replace(one, patch=dataclasses.replace(one.patch, old="[elt.grad for elt in inputs]"))
    with pytest.raises(RecordError, match=r"made for another declaration of deepspeed\.keep_missing_grads"):
        record.of(other, "0.9.2")


def test_a_record_comes_back_as_it_was_saved(tmp_path) -> None:
    _, one, record = of_deepspeed("keep_missing_grads")
    record.save(tmp_path / "again.json")
    assert upstream_facts.load(tmp_path / "again.json") == record
    (tmp_path / "again.json").write_text("{}")
    with pytest.raises(RecordError, match="is not a record"):
        upstream_facts.load(tmp_path / "again.json")
