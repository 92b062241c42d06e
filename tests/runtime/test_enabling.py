"""enable(), disable(), status() and enabled(): joining, conflicts, the switches."""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import re
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
from stand_ins import GRAVE, TERMS, Site, counting, plugin

import ascend_adapt
from ascend_adapt import errors
from ascend_adapt.errors import AdaptError, EnableConflict, PatchDrift, SettingsError

Enable = Callable[..., ascend_adapt.Status]


def test_a_bare_enable_joins(site: Site, enable: Enable) -> None:
    first = enable(counting("upstream:f", []), device="npu", strict=True)
    assert ascend_adapt.enable() == first
    assert ascend_adapt.enable(device="npu", strict=True) == first
    assert (first.device, first.device_reason) == ("npu", "as requested")


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
        ({"device": "npu"}, {"device": "cpu"}, "device='cpu'", "device 'npu' (as requested)"),
        ({"strict": True}, {"strict": False}, "strict=False", "strict=True"),
        ({"strict": False}, {"strict": True}, "strict=True", "strict=False"),
        ({}, {"device": "npu"}, "device='npu'", "device "),
        (
            {"kernels": "gelu:torch"},
            {"kernels": {"gelu": "reference"}},
            "kernels={'gelu': 'reference'}",
            "gelu': 'torch",
        ),
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


def around(name: str, notes: list[str], **terms: Any) -> ascend_adapt.Patch:
    """A wrap of upstream:f that notes its name."""

    @ascend_adapt.wrap("upstream:f", **{**TERMS, "name": name, **terms})
    def note(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
        notes.append(name)
        return wrapped(*args, **kwargs)

    return note


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("ending", [None, KeyError])
def test_enabled_within_enabled_takes_back_just_what_it_added(
    site: Site, enable: Enable, late: bool, ending: type[Exception] | None
) -> None:
    site.write(upstream="def f(): return 1\nKEPT = (f,)\n", client="from upstream import f\n")
    if late:
        import client
    notes: list[str] = []
    enable(around("a", notes), around("b", notes), around("c", notes), name="outer")
    import client

    before = ascend_adapt.status()
    inner = plugin(around("d", notes), counting("upstream:gone", []), name="inner")
    for _ in range(2):
        with contextlib.suppress(KeyError), ascend_adapt.enabled(plugins=[inner], disable=["b"]) as status:
            assert [status[name].state for name in "abcd"] == ["applied", "disabled", "applied", "applied"]
            client.f()
            assert notes == ["d", "c", "a"]
            notes.clear()
            if ending is not None:
                raise ending
        assert ascend_adapt.status() == before
        client.f()
        assert notes == ["c", "b", "a"]
        notes.clear()
    ascend_adapt.disable()
    assert client.f is importlib.import_module("upstream").KEPT[0]


def test_enabled_with_what_is_in_force_already_takes_nothing_back(site: Site, enable: Enable) -> None:
    site.write(upstream="def f(): return 1\n")
    import upstream  # noqa: F401

    ours = plugin(counting("upstream:f", [], name="one"), counting("upstream:f", [], name="two"))
    ascend_adapt.enable(plugins=[ours], disable=["two"], strict=True)
    before = ascend_adapt.status()
    with ascend_adapt.enabled(plugins=[ours], disable=["two"], strict=True) as status:
        assert status == before
    assert ascend_adapt.status() == before


def test_enabled_takes_its_strictness_back(site: Site, enable: Enable) -> None:
    site.write(upstream="def f(): return 1\n")
    enable(counting("upstream:gone", []))
    with ascend_adapt.enabled(strict=True):
        pass
    import upstream  # noqa: F401

    assert ascend_adapt.status()["counting"].state == "drifted"


def test_the_backends_of_kernels_are_in_force_until_they_are_taken_back(site: Site) -> None:
    from ascend_adapt.kernels.requests import wanted

    with ascend_adapt.enabled(kernels="softmax:reference"):
        assert (wanted("masked_softmax"), wanted("gelu")) == ("reference", None)
        ascend_adapt.enable(kernels={"masked_softmax": "reference"})
        ascend_adapt.enable()
        assert wanted("masked_softmax") == "reference"
    assert wanted("masked_softmax") is None
    ascend_adapt.enable()
    with ascend_adapt.enabled(kernels={"gelu": "torch"}):
        assert wanted("gelu") == "torch"
    assert wanted("gelu") is None


def test_a_backend_that_no_kernel_has_is_refused_and_nothing_is_in_force(site: Site) -> None:
    with pytest.raises(SettingsError, match="gelu has no backend 'fast' — choose one of npu, triton, torch, reference"):
        ascend_adapt.enable(kernels={"gelu": "fast"})
    assert ascend_adapt.enable(kernels={"gelu": "torch"}).outcomes


def test_kernels_are_not_imported_until_they_are_asked_for() -> None:
    code = "import sys, ascend_adapt; ascend_adapt.enable(); assert 'ascend_adapt.kernels' not in sys.modules"
    environ = {name: value for name, value in os.environ.items() if not name.startswith("ASCEND_ADAPT")}
    subprocess.run([sys.executable, "-c", code], check=True, env=environ, timeout=280)


def test_disable_within_enabled_within_enabled(site: Site, enable: Enable) -> None:
    site.write(upstream="def f(): return 1\n")
    import upstream

    notes: list[str] = []
    enable(around("a", notes), name="outer")
    with ascend_adapt.enabled(plugins=[plugin(around("b", notes), name="inner")]):
        ascend_adapt.disable()
        enable(around("c", notes), name="other")
    assert ascend_adapt.status()["c"].state == "applied"
    upstream.f()
    assert notes == ["c"]


def test_one_plugin_stands_in_for_another_within_enabled(site: Site, enable: Enable) -> None:
    site.write(upstream="def f(): return 1\n")
    import upstream

    old = ascend_adapt.replace("upstream:f", name="old", **TERMS)(lambda: 2)
    new = ascend_adapt.replace("upstream:f", name="new", **TERMS)(lambda: 3)
    enable(old, name="first")
    with ascend_adapt.enabled(plugins=[plugin(new, name="second")], disable=["first"]):
        assert upstream.f() == 3
    assert upstream.f() == 2


def test_a_module_provided_within_enabled_is_gone_after_it(site: Site) -> None:
    ascend_adapt.enable()

    @ascend_adapt.provide("provided_here", **TERMS)
    def fill(module: Any) -> None:
        module.value = 1

    with ascend_adapt.enabled(plugins=[plugin(fill)]):
        assert importlib.import_module("provided_here").value == 1
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("provided_here")


FAILURES: dict[str, tuple[Callable[[], list[ascend_adapt.Patch]], dict[str, Any]]] = {
    "a grave drift": (lambda: [counting("upstream:gone", [], **GRAVE)], {}),
    "a conflict": (lambda: [ascend_adapt.replace("upstream:g", name="g2", **TERMS)(lambda: 3)], {}),
    "a drift, strict": (lambda: [counting("upstream:gone", [])], {"strict": True}),
    "an older drift, strict": (list, {"strict": True}),
    "a misspelt name": (lambda: [counting("upstream:f", [])], {"disable": ["b", "outter"]}),
    "an unknown host": (lambda: [counting("upstream:f", [], host="nobody")], {"strict": True}),
}


@pytest.mark.parametrize("failure", FAILURES)
@pytest.mark.parametrize("late", [False, True])
def test_a_joining_call_that_fails_leaves_everything_as_it_was(
    site: Site, enable: Enable, failure: str, late: bool
) -> None:
    site.write(upstream="def f(): return 1\ndef g(): return 1\n", client="from upstream import f\n")
    if late:
        import client
    notes: list[str] = []
    replaced = ascend_adapt.replace("upstream:g", name="g", **TERMS)(lambda: 2)
    drifted = counting("upstream:nowhere", [], name="drifted")
    enable(around("a", notes), around("b", notes), around("c", notes), replaced, drifted, name="outer")
    import client

    before = ascend_adapt.status()
    declare, settings = FAILURES[failure]
    newer = plugin(around("d", notes), *declare(), name="newer")
    for _ in range(2):
        with pytest.raises(AdaptError):
            ascend_adapt.enable(plugins=[newer], **{"disable": ["b"], **settings})
        assert ascend_adapt.status() == before
        client.f()
        assert notes == ["c", "b", "a"]
        notes.clear()
    assert ascend_adapt.enable() == before
    with_more = ascend_adapt.enable(plugins=[plugin(around("d", notes), name="newer")])
    assert [with_more[name].state for name in "abcd"] == ["applied"] * 4


def test_a_joining_plugin_cannot_redefine_a_host(site: Site, enable: Enable) -> None:
    """Whichever name sorts first, the host that is in force stays."""
    site.write(upstream="def f(): return 1\n", marker="")
    import upstream  # noqa: F401

    ours = ascend_adapt.CodeBase("project", present=("marker.py",))
    theirs = ascend_adapt.CodeBase("project", present=("elsewhere.py",))
    before = enable(counting("upstream:f", [], host=ours), name="first")
    assert before["counting"].state == "applied"
    after = enable(counting("upstream:f", [], name="other", host=theirs), name="a_newer_one")
    assert after["counting"] == before["counting"]
    assert "'project'" in after.problems[-1]
    with pytest.raises(KeyError):
        after["other"]


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


OF_THE_MODULE = [one for one in vars(errors).values() if isinstance(one, type) and one.__module__ == errors.__name__]


@pytest.mark.parametrize("error", OF_THE_MODULE)
def test_no_error_is_an_import_error(error: type[Exception]) -> None:
    # What an emulated operator raises stands where the device's own error would.
    assert issubclass(error, AdaptError) or error in (errors.OperatorLimit, errors.OperatorMissing)
    assert not issubclass(error, (ImportError, OSError))
