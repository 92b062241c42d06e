"""The script gets its arguments as typed, byte for byte, in every form of the command line."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ascend_adapt.launch import request
from ascend_adapt.launch.placement.hostfile import Host
from ascend_adapt.launch.placement.plan import of_command, of_ranks

SCRIPT = """
import os, sys
with open(os.environ["REPORT"], "wb") as reported:
    reported.write(b"".join(os.fsencode(word) + b"\\0" for word in sys.argv[1:]))
"""
FORMS = {"script": ["reported.py"], "module": ["-m", "reported"], "command": [sys.executable, "reported.py"]}


def is_argument(text):
    try:
        return b"\0" not in os.fsencode(text)
    except UnicodeEncodeError:
        return False


# Anything, and what launchers are known to change: macros of torch.distributed.run, quotes, globs, options of our own.
WORDS = st.one_of(
    st.text(st.characters(codec=None)).filter(is_argument),
    st.text(st.sampled_from("ab$ '\"\\{}*?;&|<>~`#!\n\r\t=-\udcff\udc80é")).filter(is_argument),
    st.sampled_from(["", "-", "--", "$$", "${local_rank}", "$HOME", "-m", "--nproc", "--nproc=2", "@file", "%s"]),
)
ARGUMENTS = st.lists(WORDS, max_size=40)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("arguments")
    (folder / "reported.py").write_text(SCRIPT)
    return folder


@pytest.mark.parametrize("form", FORMS)
@given(arguments=ARGUMENTS)
@settings(max_examples=5, deadline=None, suppress_health_check=list(HealthCheck))
def test_a_process_gets_them(form, arguments, folder):
    reported = folder / form
    subprocess.run(
        [sys.executable, "-m", "ascend_adapt.launch.cli", "--log-dir", f"run-{form}", *FORMS[form], *arguments],
        cwd=folder,
        env={**os.environ, "REPORT": str(reported)},
        check=True,
        stderr=subprocess.DEVNULL,
    )
    assert reported.read_bytes().split(b"\0")[:-1] == [os.fsencode(word) for word in arguments]


@pytest.mark.parametrize("form", FORMS)
@given(arguments=ARGUMENTS)
@settings(max_examples=300, deadline=None)
def test_the_plan_has_them(form, arguments):
    asked = request.parse([*FORMS[form], *arguments])
    if form == "command":
        plan = of_command(asked, device="cpu", env={})
    else:
        plan = of_ranks(asked, device="cpu", hosts=[Host("localhost", (0,))], env={}, environ={}, free_port=1)
    argv = plan.ranks[0].argv
    assert list(argv[len(argv) - len(arguments) :]) == arguments
