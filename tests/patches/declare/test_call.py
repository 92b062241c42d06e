"""A call as a wrapper sees it."""

from __future__ import annotations

from typing import Any

import pytest
from stand_ins import TERMS

from ascend_adapt import Call, wrap
from ascend_adapt.errors import PatchDrift, PatchSpecError


def upstream(tag: str, path: str = "here", *more: int, strict: bool = True, **others: Any) -> tuple[Any, ...]:
    return tag, path, more, strict, others


def call(*args: Any, **kwargs: Any) -> Call:
    return Call(upstream, None, args, kwargs)


def test_arguments_have_upstreams_names_and_defaults() -> None:
    one = call("a", strict=False)
    assert (one["tag"], one["path"], one["strict"]) == ("a", "here", False)
    assert call(tag="b", path="there")["path"] == "there"


def test_the_original_gets_the_call_as_it_was_made_but_for_what_was_set() -> None:
    assert call("a", "p", 1, 2, extra=3).proceed() == upstream("a", "p", 1, 2, extra=3)
    changed = call("a", strict=False, extra=3)
    changed["path"] = changed["path"] + "/x"
    assert changed.proceed() == upstream("a", "here/x", strict=False, extra=3)


def test_a_parameter_that_upstream_lacks_is_drift() -> None:
    renamed = call("a")
    with pytest.raises(PatchDrift, match=r"^upstream\(tag, .*\): has no parameter 'folder', which its patch uses — "):
        renamed["folder"] = 1
    with pytest.raises(TypeError, match="missing a required argument: 'tag'"):
        call()["tag"]


def test_both_forms_of_a_wrapper_see_the_same_parts() -> None:
    @wrap("m:f", **TERMS)
    def parts(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
        return wrapped, instance, args, kwargs

    @wrap("m:f", **TERMS)
    def whole(call: Call) -> Any:
        return call.wrapped, call.instance, call.args, call.kwargs

    given = (upstream, "self", ("a",), {"strict": False})
    assert parts.function is not None
    assert whole.function is not None
    assert whole.function(*given) == parts.function(*given) == given
    assert (whole.name, parts.name) == ("whole", "parts")
    with pytest.raises(PatchSpecError, match=r"does not take \(wrapped, instance, args, kwargs\) or \(call\)"):
        wrap("m:f", **TERMS)(lambda wrapped, instance: None)
