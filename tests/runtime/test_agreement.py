from __future__ import annotations

from dataclasses import replace

import pytest

from ascend_adapt.patches.declare.outcome import Outcome, Status
from ascend_adapt.runtime import agreement

NAME = "patch toy.one"


def facts_of(**states):
    return {int(rank[1:]): {"start": {"torch": "2.13.0", NAME: state}} for rank, state in states.items()}


@pytest.mark.parametrize("later", ["applied", "not_needed", "drifted", "failed", "lost"])
def test_an_armed_patch_may_yet_become_what_it_is_elsewhere(later):
    both = facts_of(r0="armed", r1=later)
    assert agreement.differences(both) == []
    assert agreement.digest(both[0]["start"]) == agreement.digest(both[1]["start"])


@pytest.mark.parametrize(
    ("one", "other"),
    [("armed", "skipped"), ("applied", "disabled"), ("applied", "not_needed"), ("drifted", "applied")],
)
def test_a_patch_that_never_becomes_the_same_is_a_difference(one, other):
    (difference,) = agreement.differences(facts_of(r0=one, r1=one, r2=other))
    assert str(difference) == f"rank 2 differs from rank 0: {NAME} is {other} instead of {one}"


@pytest.mark.parametrize("later", ["armed", "applied", "skipped"])
def test_a_patch_that_is_judged_at_import_may_become_anything(later):
    assert agreement.differences(facts_of(r0="undecided", r1=later)) == []


def test_a_fact_that_one_rank_does_not_have():
    facts = facts_of(r0="armed", r3="armed")
    del facts[3]["start"][NAME]
    (difference,) = agreement.differences(facts)
    assert str(difference) == f"rank 3 differs from rank 0: {NAME} is missing instead of armed"
    assert agreement.digest(facts[0]["start"]) != agreement.digest(facts[3]["start"])


def test_only_facts_of_the_same_moment_are_compared():
    """A rank may be far into the script, which adds plugins and paths, when another one starts, or is killed."""
    facts = facts_of(r0="armed", r1="armed", r2="skipped")
    facts[0]["first apply"] = {"torch": "2.13.0", "patch own.one": "applied", NAME: "skipped"}
    facts[2]["end"] = {"torch": "none"}
    assert [str(one) for one in agreement.differences(facts)] == [
        f"rank 2 differs from rank 0: {NAME} is skipped instead of armed"
    ]
    # Rank 0 alone imported something first, before the script added a plugin and a path.
    facts[1]["first apply"] = {"torch": "2.13.0", "patch own.two": "applied", "deepspeed": "0.19.8", NAME: "skipped"}
    facts[0]["first apply"]["deepspeed"] = "not installed"
    # Nor had it come to where the script leaves one out.
    facts[0]["first apply"]["patch own.off"], facts[1]["first apply"]["patch own.off"] = "armed", "disabled"
    assert len(agreement.differences(facts)) == 1
    facts[1]["first apply"] = {"torch": "2.13.0", "patch own.one": "drifted", NAME: "skipped"}
    facts[1]["end"] = {"torch": "2.13.0", "patch own.one": "lost"}
    facts[0]["end"] = {"torch": "2.13.0", "patch own.one": "applied"}
    assert [str(one) for one in agreement.differences(facts)] == [
        f"rank 2 differs from rank 0: {NAME} is skipped instead of armed",
        "rank 1 differs from rank 0: patch own.one is lost instead of applied",
        "rank 2 differs from rank 0: patch own.one is missing instead of applied",
        "rank 2 differs from rank 0: torch is none instead of 2.13.0",
    ]


def test_ranks_met_unless_one_had_ended_before_the_other_was_started():
    first, second = {"since": 1.0, "until": 2.0}, {"since": 2.5, "until": None}
    assert not agreement.met(first, second)
    assert not agreement.met(second, first)
    assert agreement.met(first, {"since": 1.9, "until": 3.0})
    assert agreement.met({"since": 1.0, "until": None}, second)


def test_no_ranks_agree():
    assert agreement.differences({}) == []


def test_only_the_same_call_must_have_the_same_backend():
    status = Status((), device="cpu")
    stages = {
        0: agreement.facts(status, {"attention of q [2, 4]": "flash"}),
        1: agreement.facts(status, {"gelu of x [2, 4]": "torch"}),
        2: agreement.facts(status, {"attention of q [2, 4]": "cudnn"}),
    }
    at_the_end = {rank: {"end": facts} for rank, facts in stages.items()}
    assert [str(one) for one in agreement.differences(at_the_end)] == [
        "rank 2 differs from rank 0: kernel attention of q [2, 4] is cudnn instead of flash"
    ]
    assert agreement.digest(stages[0]) == agreement.digest(stages[2])


def test_the_facts_are_versions_device_and_states():
    outcome = Outcome(
        patch="one", plugin="toy", target="wrapt.patches:f", state="armed", reason="", requires="", found="",
        reversible=True,
    )  # fmt: skip
    facts = agreement.facts(Status((outcome,), device="cpu"))
    assert (facts["device"], facts["patch toy.one"]) == ("cpu", "armed")
    later = replace(outcome, reason="the version is checked when wrapt is imported")
    assert agreement.facts(Status((later,)))["patch toy.one"] == "undecided"
    assert facts["wrapt"][0].isdigit()
    assert facts["torch"][0].isdigit()
    assert facts["torch_npu"] == "not installed"
