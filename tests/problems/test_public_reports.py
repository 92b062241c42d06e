"""The thirty public reports, and set-ups and logs with which nothing is wrong."""

from __future__ import annotations

from pathlib import Path

import healthy
import pytest
import thirty_reports
from thirty_reports import NAMED, REPORTS, SILENT, Report

from ascend_adapt.problems import explanation, known, reading
from ascend_adapt.problems.facts import Facts
from ascend_adapt.problems.log_text import LogText

ROOT = Path(__file__).parents[2]
PROBLEMS, _ = known.problems({})


@pytest.mark.parametrize("report", REPORTS, ids=lambda one: one.number)
def test_a_report_is_named_as_the_documentation_says(report):
    text = thirty_reports.output(report)
    if report.verdict == SILENT:
        assert "must be fixed:" not in text
        assert "cause" not in text
    else:
        assert "" not in thirty_reports.shown(report, text), text


def test_at_least_twenty_are_named():
    assert sum(report.verdict == NAMED for report in REPORTS) >= 20


def test_a_healthy_host_shows_nothing():
    text = thirty_reports.output(Report("healthy", "", SILENT))
    assert text.splitlines()[1:] == ["nothing must be fixed"]


def test_the_table_is_in_the_documentation():
    text = (ROOT / "docs" / "diagnosis.md").read_text()
    for report in REPORTS:
        assert f"| [{report.number}]({report.address}) | {report.verdict} |" in text


@pytest.mark.parametrize("name", healthy.LOGS)
def test_a_healthy_log_shows_nothing(name):
    assert explanation.explain(LogText(healthy.LOGS[name]), PROBLEMS, Facts()) == []


@pytest.mark.parametrize("name", healthy.SET_UPS)
def test_a_healthy_set_up_predicts_nothing(name):
    facts = Facts(**healthy.SET_UPS[name], is_complete=True)
    assert [one.problem.name for one in explanation.predict(PROBLEMS, facts)] == []


@pytest.mark.parametrize("file", healthy.files(ROOT), ids=str)
def test_files_of_the_examples_predict_nothing(file):
    facts = Facts({}, {}, "npu", reading.read(ROOT / file), is_complete=True)
    assert [one.problem.name for one in explanation.predict(PROBLEMS, facts) if one.must_fix] == []
