"""enable(), disable(), status() and enabled(): joining, conflicts, the switches."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from typing import Any

import pytest
from stand_ins import GRAVE, Site, counting, plugin

import ascend_adapt
from ascend_adapt import errors
from ascend_adapt.errors import AdaptError, EnableConflict, PatchDrift, SettingsError

Enable = Callable[..., ascend_adapt.Status]


def test_a_bare_enable_joins(site: Site, enable: Enable) -> None:
    first = enable(counting("upstream:f", []), device="npu", strict=True)
    assert ascend_adapt.enable() == first
    assert ascend_adapt.enable(device="npu", strict=True) == first
    assert (first.device, first.device_reason) == ("npu", "as asked")


def test_joining_adds_plugins_and_disables_more(site: Site, enable: Enable) -> None:
    site.write(upstream="def f(): return 1\n")
    calls: list[Any] = []
    enable(counting("upstream:f", calls, name="one"), name="first")
    import upstream

    status = enable(counting("upstream:f", calls, name="two"), name="second")
    assert (status["one"].state, status["two"].state) == ("applied", "applied")
    upstream.f()
    assert len(calls) == 2
    assert ascend_adapt.enable(disable=["first"])["one"].state == "disabled"
    upstream.f()
    assert len(calls) == 3
    assert ascend_adapt.enable()["one"].state == "disabled"


@pytest.mark.parametrize(
    ("first", "second", "wish", "fact"),
    [
        ({"device": "npu"}, {"device": "cpu"}, "device='cpu'", "device 'npu' (as asked)"),
        ({"strict": True}, {"strict": False}, "strict=False", "strict=True"),
        ({"strict": False}, {"strict": True}, "strict=True", "strict=False"),
        ({}, {"device": "npu"}, "device='npu'", "device "),
    ],
)
def test_callers_that_want_different_things_are_both_named(
    site: Site, first: dict[str, Any], second: dict[str, Any], wish: str, fact: str
) -> None:
    launcher = compile("import ascend_adapt\n\nascend_adapt.enable(**settings)", "/job/launcher.py", "exec")
    script = compile("\nascend_adapt.enable(**settings)", "/job/train.py", "exec")
    exec(launcher, {"settings": first})
    before = ascend_adapt.status()
    with pytest.raises(EnableConflict) as caught:
        exec(script, {"settings": second, "ascend_adapt": ascend_adapt})
    text = str(caught.value)
    assert f"enable({wish}) at /job/train.py:2" in text
    assert f"{fact}" in text
    assert "since enable() at /job/launcher.py:3" in text
    assert ascend_adapt.status() == before


def test_the_caller_of_enabled_is_named(site: Site) -> None:
    script = compile("\nwith enabled(device='npu'):\n    enable(device='cpu')", "/job/train.py", "exec")
    with pytest.raises(EnableConflict, match=re.escape("/job/train.py:2")) as caught:
        exec(script, {"enabled": ascend_adapt.enabled, "enable": ascend_adapt.enable})
    assert "enable(device='cpu') at /job/train.py:3" in str(caught.value)


def test_a_strict_caller_may_join_one_that_did_not_say(site: Site, enable: Enable) -> None:
    site.write(upstream="def f(): return 1\n")
    import upstream  # noqa: F401

    enable(counting("upstream:gone", []))
    with pytest.raises(PatchDrift):
        ascend_adapt.enable(strict=True)


def test_the_kill_switch(site: Site, enable: Enable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ASCEND_ADAPT", "0")
    monkeypatch.setenv("ASCEND_ADAPT_DEVICE", "not even read")
    site.write(upstream="def f(): return 1\nKEPT = (f,)\n")
    status = enable(counting("upstream:f", [], **GRAVE), counting("upstream:gone", [], **{**GRAVE, "name": "gone"}))
    assert {(one.state, one.reason) for one in status.outcomes} == {("disabled", "ASCEND_ADAPT=0")}
    assert ascend_adapt.status() == status
    import upstream

    assert upstream.f is upstream.KEPT[0]
    with ascend_adapt.enabled() as inside:
        assert {one.state for one in inside.outcomes} == {"disabled"}


@pytest.mark.parametrize("text", ["perhaps", "2"])
def test_a_kill_switch_that_says_nothing_is_refused(site: Site, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("ASCEND_ADAPT", text)
    with pytest.raises(SettingsError, match="ASCEND_ADAPT="):
        ascend_adapt.enable()


def test_enabled_reverts_also_after_an_error(site: Site) -> None:
    site.write(upstream="def f(): return 1\n")
    import upstream

    original = upstream.f
    ours = plugin(counting("upstream:f", []))
    with pytest.raises(KeyError), ascend_adapt.enabled(plugins=[ours]) as status:  # noqa: PT012
        assert status["counting"].state == "applied"
        assert upstream.f is not original
        raise KeyError
    assert upstream.f is original
    with pytest.raises(PatchDrift), ascend_adapt.enabled(plugins=[plugin(counting("upstream:gone", [], **GRAVE))]):
        raise AssertionError
    assert upstream.f is original


def test_enabled_within_enabled_leaves_the_outer_one_in_force(site: Site) -> None:
    site.write(upstream="def f(): return 1\n")
    import upstream

    ours = plugin(counting("upstream:f", []))
    with ascend_adapt.enabled(plugins=[ours]):
        with ascend_adapt.enabled():
            pass
        assert ascend_adapt.status()["counting"].state == "applied"
    assert ascend_adapt.status()["counting"].state == "reverted"
    assert not hasattr(upstream.f, "__wrapped__")


def test_disable_without_enable_does_nothing(site: Site) -> None:
    ascend_adapt.disable()
    before = ascend_adapt.status()
    assert ascend_adapt.disable() == before


def test_a_name_gives_one_outcome(site: Site, enable: Enable) -> None:
    status = enable(counting("upstream:f", []))
    assert status["counting"] is status["stand_in.counting"]
    with pytest.raises(KeyError):
        status["nobody"]


def test_status_is_plain_data(site: Site, enable: Enable) -> None:
    import json

    status = enable(counting("upstream:f", [], requires="upstream>=2", devices="cpu"), device="cpu")
    data = json.loads(json.dumps(status.to_json()))
    (outcome,) = [one for one in data["outcomes"] if one["plugin"] == "stand_in"]
    assert outcome["requires"] == "upstream>=2, device cpu"
    assert outcome["state"] == "armed"
    assert outcome["evidence"] == []


def test_one_line_is_logged_on_the_first_rank_only(
    site: Site, enable: Enable, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO, "ascend_adapt")
    enable(counting("upstream:f", []))
    (record,) = caplog.records
    assert "1 armed" in record.getMessage() or "armed" in record.getMessage()
    caplog.clear()
    ascend_adapt.disable()
    monkeypatch.setenv("RANK", "3")
    enable(counting("upstream:f", []))
    assert not caplog.records


@pytest.mark.parametrize("error", [one for one in vars(errors).values() if isinstance(one, type)])
def test_no_error_is_an_import_error(error: type[Exception]) -> None:
    assert issubclass(error, AdaptError)
    assert not issubclass(error, (ImportError, OSError))
