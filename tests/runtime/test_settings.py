"""Settings: explicit argument, else the environment, else the default."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from ascend_adapt import switches
from ascend_adapt.errors import SettingsError
from ascend_adapt.runtime import settings
from ascend_adapt.runtime.settings import Settings

ROOT = Path(__file__).parents[2]


def test_nothing_stated() -> None:
    assert settings.resolve({}) == Settings()


def test_the_environment_states_what_arguments_do_not() -> None:
    environ = {
        "ASCEND_ADAPT_DEVICE": "npu",
        "ASCEND_ADAPT_STRICT": "1",
        "ASCEND_ADAPT_DISABLE": "a, b,,",
        "ASCEND_ADAPT_ALLOW_DRIFT": "c",
        "ASCEND_ADAPT_PLUGINS": "d,e",
        "ASCEND_ADAPT_NUMERICS": "upstream",
    }
    resolved = settings.resolve(environ)
    assert (resolved.device, resolved.strict, resolved.disable) == ("npu", True, ("a", "b"))
    assert (resolved.allow_drift, resolved.allowed_plugins) == (("c",), ("d", "e"))
    stated = settings.resolve(environ, device="cpu", strict=False, disable=["z"])
    assert (stated.device, stated.strict, stated.disable) == ("cpu", False, ("z", "a", "b"))
    assert settings.resolve(environ, device="auto").device is None


def test_kernels_are_pairs_of_a_kernel_and_a_backend() -> None:
    environ = {"ASCEND_ADAPT_KERNELS": " attention:npu , softmax:reference,"}
    assert settings.resolve(environ).kernels == {"attention": "npu", "masked_softmax": "reference"}
    assert settings.resolve(environ, kernels={"gelu": "torch"}).kernels == {"gelu": "torch"}


@pytest.mark.parametrize(
    ("text", "off"),
    [
        (None, False),
        ("", False),
        ("0", True),
        ("false", True),
        ("OFF", True),
        ("no", True),
        ("1", False),
        ("on", False),
    ],
)
def test_the_kill_switch(text: str | None, off: bool) -> None:
    assert settings.is_off({} if text is None else {"ASCEND_ADAPT": text}) is off


@pytest.mark.parametrize(
    ("environ", "arguments", "words"),
    [
        ({"ASCEND_ADAPT": "perhaps"}, None, "ASCEND_ADAPT='perhaps': expected 1 or 0"),
        ({"ASCEND_ADAPT_STRICT": "very"}, {}, "ASCEND_ADAPT_STRICT='very': expected 1 or 0"),
        ({"ASCEND_ADAPT_DETERMINISTIC": "very"}, {}, "ASCEND_ADAPT_DETERMINISTIC='very': expected 1 or 0"),
        ({"ASCEND_ADAPT_STEP_GRAPH": "of"}, {}, "ASCEND_ADAPT_STEP_GRAPH='of': expected 1 or 0"),
        (
            {"ASCEND_ADAPT_DISABEL": "hf", "ASCEND_ADAPT_KERNEL": "gelu:torch"},
            {},
            "ASCEND_ADAPT_DISABEL: there is no such setting — did you mean ASCEND_ADAPT_DISABLE?\n"
            "ASCEND_ADAPT_KERNEL: there is no such setting — did you mean ASCEND_ADAPT_KERNELS?",
        ),
        ({"ASCEND_ADAPT_DEVICE": "tpu"}, {}, "device 'tpu': expected auto, npu, cuda, cpu"),
        ({}, {"device": "gpu"}, "device 'gpu': expected auto"),
        ({}, {"plugins": "one"}, "plugins='one': expected a list"),
        ({}, {"disable": "one"}, "disable='one': expected a list"),
        ({}, {"disable": 3}, "disable=3: expected a list"),
        ({}, {"disable": [3]}, "disable=[3]: expected names"),
        ({}, {"plugins": ["json"]}, "plugins=['json']: expected modules or objects"),
        ({}, {"strict": "no"}, "strict='no': expected True or False"),
        ({}, {"kernels": {"attention": 3}}, "expected KERNEL:BACKEND"),
        ({}, {"kernels": ["attention"]}, "expected {'attention': 'npu'}"),
        ({"ASCEND_ADAPT_KERNELS": "attention"}, {}, "expected KERNEL:BACKEND"),
        ({"ASCEND_ADAPT_KERNELS": "convolution:npu"}, {}, "no kernel 'convolution' — choose from attention, masked"),
        ({"ASCEND_ADAPT_KERNELS": "softmax:npu,masked_softmax:triton"}, {}, "two backends for masked_softmax"),
        ({"ASCEND_ADAPT_NUMERICS": "finite"}, {}, "ASCEND_ADAPT_NUMERICS='finite': expected upstream or exact"),
    ],
)
def test_what_cannot_be_meant_is_refused(environ: dict[str, str], arguments: Any, words: str) -> None:
    with pytest.raises(SettingsError) as caught:
        settings.is_off(environ) if arguments is None else settings.resolve(environ, **arguments)
    assert words in str(caught.value)


def test_variables_of_this_package_are_not_taken_for_misspelled_ones() -> None:
    sources = [path.read_text() for name in ("ascend_adapt", "plugins") for path in (ROOT / name).rglob("*.py")]
    assert len(names := set(re.findall(r"ASCEND_ADAPT_[A-Z_]+[A-Z]", "".join(sources)))) > 30
    settings.resolve(dict.fromkeys(names, ""))


def test_every_setting_is_documented() -> None:
    pages = "".join(path.read_text() for path in (ROOT / "docs").glob("*.md"))
    assert [name for name in settings.VARIABLES if f"ASCEND_ADAPT_{name}" not in pages] == []


@pytest.mark.parametrize(("text", "on"), [("0", False), ("off", False), ("False", False), ("1", True), (" yes ", True)])
def test_a_switch_is_on_or_off_in_every_spelling(text: str, on: bool) -> None:
    for default in (False, True):
        assert switches.is_on({"ASCEND_ADAPT_STEP_GRAPH": text}, "ASCEND_ADAPT_STEP_GRAPH", default) is on
        assert switches.is_on({}, "ASCEND_ADAPT_STEP_GRAPH", default) is default
