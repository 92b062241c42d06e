"""Code bases as they are found: at a commit that nobody has looked at, and two of one package name on one path.

The trees are of our own, with the marker files of the real ones.
"""

from __future__ import annotations

import ast
import sys

import pytest
from stand_ins import Site, plugin

from ascend_adapt import disable, enable, rewrite, wrap
from ascend_adapt.errors import PatchDrift
from ascend_adapt.patches.declare import syntax

TERMS = {"why": "a test", "until": "the test ends"}
MARKERS = {
    "megatron-deepspeed": ("megatron/core/__init__.py", "megatron/arguments.py"),
    "megatron-lm": ("megatron/core/__init__.py",),
}


def checkout(site: Site, host: str, source: str) -> str:
    """Write a tree that is ``host`` by its files, with ``source`` as its megatron/loss.py; return its folder."""
    folder = site.folder / host
    for marker in ("megatron/__init__.py", "megatron/core/__init__.py", *MARKERS[host]):
        (folder / marker).parent.mkdir(parents=True, exist_ok=True)
        (folder / marker).touch()
    (folder / "megatron" / "loss.py").write_text(source)
    return str(folder)


def patches(without: str):
    gone = wrap("megatron.loss:scaled_loss", host="megatron-deepspeed", name="gone", without=without, **TERMS)
    changed = rewrite(
        "megatron.loss:loss",
        old="total / count",
        new="total / (count + 1)",
        host="megatron-deepspeed",
        name="changed",
        without=without,
        **TERMS,
    )
    other = wrap("megatron.loss:loss", host="megatron-lm", name="of_the_other", without=without, **TERMS)
    return plugin(gone(pass_on), changed, other(pass_on))


def pass_on(wrapped, instance, args, kwargs):
    return wrapped(*args, **kwargs)


@pytest.fixture(autouse=True)
def _only_the_patches_of_this_test(site, monkeypatch):
    """The stand-ins are recognised as the code bases they stand for, and have next to nothing of them."""
    monkeypatch.setenv("ASCEND_ADAPT_PLUGINS", "stand_in")


def test_an_unknown_commit_says_what_drifted_and_runs(site: Site, monkeypatch, caplog) -> None:
    monkeypatch.syspath_prepend(
        checkout(site, "megatron-deepspeed", "def loss(total, count): return total / count ** 2\n")
    )
    enable(plugins=[patches("crash")], device="cpu")
    from megatron.loss import loss

    status = enable()
    assert {name: status[name].state for name in ("gone", "changed", "of_the_other")} == {
        "gone": "drifted",
        "changed": "drifted",
        "of_the_other": "skipped",
    }
    assert status["gone"].reason == "megatron.loss:scaled_loss: 'scaled_loss' is not in module megatron.loss"
    assert "megatron.loss:loss" in status["changed"].reason
    assert loss(8, 2) == 2
    # In the job's own output, once: where upstream then fails, nothing else would explain it.
    messages = [message for message in caplog.messages if "drifted" in message]
    assert len(messages) == 2
    assert "'gone' (plugin 'stand_in'" in messages[0]
    assert messages[0].endswith("'scaled_loss' is not in module megatron.loss — without it: crash (a test)")


@pytest.mark.parametrize(("name", "value"), [("RANK", "1"), ("ASCEND_ADAPT_ALLOW_DRIFT", "gone,changed")])
def test_drift_is_logged_by_one_rank_and_not_if_it_is_allowed(site: Site, monkeypatch, caplog, name, value) -> None:
    monkeypatch.setenv(name, value)
    monkeypatch.syspath_prepend(
        checkout(site, "megatron-deepspeed", "def loss(total, count): return total / count ** 2\n")
    )
    enable(plugins=[patches("crash")], device="cpu")
    import megatron.loss  # noqa: F401

    assert enable()["gone"].state == "drifted"
    assert "drifted" not in caplog.text


def test_an_unknown_commit_stops_where_numbers_would_be_wrong(site: Site, monkeypatch) -> None:
    monkeypatch.syspath_prepend(
        checkout(site, "megatron-deepspeed", "def loss(total, count): return total / count ** 2\n")
    )
    enable(plugins=[patches("wrong numbers")], device="cpu")
    with pytest.raises(PatchDrift, match="'gone'.*without it: wrong numbers .a test.; --allow-drift gone continues"):
        import megatron.loss  # noqa: F401


def test_what_somebody_wrote_into_a_function_is_not_left_out_for_speed(site: Site, monkeypatch, caplog) -> None:
    """A fused attention or loss computes all of a function by itself: right for the bodies that it was read off."""
    source = "def loss(total, count): return total / count\n"
    known = syntax.digest(ast.parse(source).body[0])
    for edited in (False, True):
        fast = wrap("megatron.loss:loss", bodies=known, name="fast", **{**TERMS, "without": "slower"})
        text = source.replace("count\n", "count + 0.5  # ours\n") if edited else source
        monkeypatch.syspath_prepend(checkout(site, "megatron-deepspeed", text))
        status = enable(plugins=[plugin(fast(lambda wrapped, instance, args, kwargs: "fused"))], device="cpu")
        from megatron.loss import loss

        assert loss(8, 2) == (4.5 if edited else "fused")
        assert enable()["fast"].state == ("drifted" if edited else "applied"), status
        assert ("its body is" in caplog.text) == edited
        disable()
        for name in [name for name in sys.modules if name.partition(".")[0] == "megatron"]:
            del sys.modules[name]


@pytest.mark.parametrize("first", MARKERS)
def test_of_two_megatrons_on_one_path_the_host_of_each_patch_is_named(site: Site, monkeypatch, first) -> None:
    source = "def loss(total, count): return total / count\ndef scaled_loss(x): return x\n"
    (second,) = set(MARKERS) - {first}
    monkeypatch.syspath_prepend(checkout(site, second, source))
    folder = checkout(site, first, source)
    monkeypatch.syspath_prepend(folder)
    enable(plugins=[patches("wrong numbers")], device="cpu")
    import megatron.loss

    status = enable()
    for_first = {"megatron-deepspeed": {"gone", "changed"}, "megatron-lm": {"of_the_other"}}
    assert {name for name in ("gone", "changed", "of_the_other") if status[name].state == "applied"} == for_first[first]
    assert megatron.loss.loss(6, 2) == (2 if first == "megatron-deepspeed" else 3)
    for name in for_first[second]:
        assert status[name].state == "skipped"
        assert status[name].reason.startswith(f"is for {second}: megatron/arguments.py is")
        assert folder in status[name].reason
        assert status[name].requires == f"host {second}"
