"""Evidence records: what they may claim, what they match, where they lie."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ascend_adapt.diagnosis import evidence, status_report
from ascend_adapt.diagnosis.evidence import EvidenceError, EvidenceRecord


def record(**changed: object) -> EvidenceRecord:
    values = {"patch": "deepspeed.one", "tier": "cpu", "proves": "wiring", "commit": "c", "date": "2026-01-01"}
    return EvidenceRecord(**{**values, "versions": {"deepspeed": "0.19.8", "torch": "2.13.0"}, **changed})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        ({"deepspeed": "0.19.8", "torch": "2.13.0"}, True),
        ({"deepspeed": "0.19.8", "torch": "2.13.0+cpu"}, True),
        ({"deepspeed": "0.19.8", "torch": "2.13.1"}, False),
        ({"deepspeed": "0.19.7", "torch": "2.13.0"}, False),
        ({"torch": "2.13.0"}, False),
    ],
)
def test_only_the_very_versions_match(found: dict[str, str], expected: bool) -> None:
    assert record().matches(found) is expected


def test_a_record_that_names_no_version_matches_nothing() -> None:
    assert not record(versions={}).matches({"torch": "2.13.0"})
    assert not record(versions={"soc": "Ascend910B3"}).matches({"torch": "2.13.0"})


def test_the_soc_is_recorded_but_not_compared() -> None:
    one = record(tier="hardware", versions={"deepspeed": "0.19.8", "torch": "2.13.0", "soc": "Ascend910B3"})
    assert one.matches({"deepspeed": "0.19.8", "torch": "2.13.0"})
    assert "soc Ascend910B3" in str(one)


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({"tier": "laptop"}, "'laptop' proves 'wiring'"),
        ({"proves": "everything"}, "proves 'everything'"),
        ({"tier": "emulated", "proves": "numerics"}, "emulated proves wiring only"),
        ({"tier": "emulated", "proves": "speed"}, "emulated proves wiring only"),
        ({"versions": "torch"}, "None, expected one line of text"),
        ({"versions": {"torch": 2}}, "2, expected one line of text"),
        ({"date": "2026\x1b[2J"}, "expected one line of text"),
        ({"commit": "one\ntwo"}, "expected one line of text"),
    ],
)
def test_a_record_claims_no_more_than_its_tier_may(changed: dict[str, str], text: str) -> None:
    with pytest.raises(EvidenceError, match=text):
        record(**changed)


def test_records_are_kept_and_renewed(tmp_path: Path) -> None:
    path = tmp_path / "new" / "records.json"
    evidence.write([record(), record(versions={"torch": "2.12.0"})], path)
    evidence.write([record(date="2026-02-02")], path)
    assert sorted(one.date for one in evidence.load(path)) == ["2026-01-01", "2026-02-02"]
    assert list(path.parent.iterdir()) == [path]


def test_a_users_own_records_are_found(tmp_path: Path) -> None:
    environ = {"XDG_STATE_HOME": str(tmp_path)}
    own = record(patch="mine.own", tier="hardware")
    evidence.write([own], evidence.user_folder(environ) / "mine.json")
    (evidence.user_folder(environ) / "damaged.json").write_text("{}")
    records, problems = evidence.known(environ)
    assert own in records
    assert len(problems) == 1
    assert "damaged.json: is not a file of evidence records" in problems[0]


def test_what_ships_is_evidence() -> None:
    for one in evidence.load(evidence.SHIPPED):
        assert one.tier in ("cpu", "cuda", "emulated", "schema"), "nobody here has an NPU"
        assert one.versions
        assert one.patch.partition(".")[0] == "deepspeed" or "." in one.patch


def test_status_shows_what_matches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setattr(evidence, "SHIPPED", tmp_path / "shipped.json")
    evidence.write([], evidence.SHIPPED)
    before = status_report.of_installation()
    assert {one.evidence for one in before.outcomes} == {()}
    (one,) = [one for one in before.outcomes if one.patch == "no_shared_memory_build"]
    import importlib.metadata

    versions = {"deepspeed": one.found.split()[1], "torch": importlib.metadata.version("torch")}
    evidence.write([record(patch="deepspeed.no_shared_memory_build", versions=versions)], evidence.SHIPPED)
    (one,) = [one for one in status_report.of_installation().outcomes if one.patch == "no_shared_memory_build"]
    assert len(one.evidence) == 1
    assert one.evidence[0].startswith("cpu: wiring on deepspeed")
    assert json.loads(json.dumps(status_report.of_installation().to_json()))


def test_status_shows_none_for_a_source_tree_of_another_release(tmp_path: Path) -> None:
    (tmp_path / "deepspeed").mkdir()
    (tmp_path / "deepspeed" / "__init__.py").write_text("def initialize(): ...\n")
    (tmp_path / "version.txt").write_text("0.5.0\n")
    outcomes = status_report.of_installation(tmp_path).outcomes
    # What is not in the tree, such as torch, is judged as it is installed, with its evidence.
    in_the_tree = [one for one in outcomes if one.plugin == "deepspeed" and one.target.startswith("deepspeed")]
    assert {one.evidence for one in in_the_tree} == {()}
